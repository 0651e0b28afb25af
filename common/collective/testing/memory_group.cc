#include "common/collective/testing/memory_group.h"

#include <cstddef>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/collective/testing/memory_transport.h"
#include "common/collective/threaded_communicator.h"

namespace baton::testing {

std::vector<std::shared_ptr<Communicator>> FormMemoryGroup(int size, uint64_t epoch,
                                                           int64_t timeout_ms) {
  collective::CoreOptions options;
  options.communicator.operation_timeout_ms = timeout_ms;
  GroupDescription group = {"stage 0", epoch, 0, {}};
  for (int rank = 0; rank < size; ++rank) group.members.push_back(absl::StrCat("prefill-0-", rank));
  std::vector<std::unique_ptr<MessageTransport>> transports = MakeMemoryTransports(size);
  std::vector<std::shared_ptr<Communicator>> ranks(transports.size());
  std::vector<std::thread> threads;  // Forming waits for the others.
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    group.rank = static_cast<int>(rank);
    threads.emplace_back([&, rank, group] {
      auto formed =
          ThreadedCommunicator::Create(group, options, std::move(transports[rank]), 60'000);
      BATON_CHECK(formed.ok()) << formed.status();
      ranks[rank] = *std::move(formed);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

}  // namespace baton::testing
