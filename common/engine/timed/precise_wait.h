// Waiting to within some ten microseconds without burning a core.
#ifndef COMMON_ENGINE_TIMED_PRECISE_WAIT_H_
#define COMMON_ENGINE_TIMED_PRECISE_WAIT_H_

#include <cstdint>

namespace baton {

// Until `deadline_us` of NowUs()'s clock; returns at once if that is past. Sleeps but for the last
// moment, which a sleeper on a virtual machine would miss.
void WaitUntilUs(int64_t deadline_us);

}  // namespace baton

#endif  // COMMON_ENGINE_TIMED_PRECISE_WAIT_H_
