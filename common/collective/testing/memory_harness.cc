#include "common/collective/testing/memory_transport.h"
#include "common/collective/testing/threaded_harness.h"

namespace baton::testing {

std::unique_ptr<GroupHarness> MakeGroup(int size, int64_t timeout_ms) {
  std::vector<std::unique_ptr<MessageTransport>> transports = MakeMemoryTransports(size);
  return MakeThreadedGroup(size, timeout_ms, [&](int rank) { return std::move(transports[rank]); });
}

}  // namespace baton::testing
