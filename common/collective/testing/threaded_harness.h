// Ranks that are threads' communicators in one process, over any transport.
#ifndef COMMON_COLLECTIVE_TESTING_THREADED_HARNESS_H_
#define COMMON_COLLECTIVE_TESTING_THREADED_HARNESS_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/collective/message_transport.h"
#include "common/collective/testing/group_harness.h"

namespace baton::testing {

// Connects one rank; called for all ranks at once, on threads of their own.
using ConnectRank = std::function<absl::StatusOr<std::unique_ptr<MessageTransport>>(int rank)>;

std::unique_ptr<GroupHarness> MakeThreadedGroup(int size, int64_t timeout_ms,
                                                const ConnectRank& connect);

}  // namespace baton::testing

#endif  // COMMON_COLLECTIVE_TESTING_THREADED_HARNESS_H_
