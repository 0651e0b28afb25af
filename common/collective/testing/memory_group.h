// A group whose ranks are threads of one process: for tests of what computes on a communicator.
#ifndef COMMON_COLLECTIVE_TESTING_MEMORY_GROUP_H_
#define COMMON_COLLECTIVE_TESTING_MEMORY_GROUP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/collective/communicator.h"

namespace baton::testing {

// Formed: "stage 0" with the members "prefill-0-RANK". To be destroyed on one thread each, since a
// rank that leaves waits a little for the others.
std::vector<std::shared_ptr<Communicator>> FormMemoryGroup(int size, uint64_t epoch = 1,
                                                           int64_t timeout_ms = 30'000);

}  // namespace baton::testing

#endif  // COMMON_COLLECTIVE_TESTING_MEMORY_GROUP_H_
