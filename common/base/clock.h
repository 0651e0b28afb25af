// Time for shells. Cores never read a clock: `now_us` is handed to them with every event.
#ifndef COMMON_BASE_CLOCK_H_
#define COMMON_BASE_CLOCK_H_

#include <chrono>
#include <cstdint>
#include <limits>

namespace baton {

// "No deadline" wherever a time in microseconds is expected.
inline constexpr int64_t kNeverUs = std::numeric_limits<int64_t>::max();

// Microseconds of the steady clock: monotonic, never comparable between machines.
inline int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace baton

#endif  // COMMON_BASE_CLOCK_H_
