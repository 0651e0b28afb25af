#include "services/prefill/testing/memory_groups.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/collective/testing/memory_transport.h"
#include "common/collective/threaded_communicator.h"

namespace baton::prefill {
namespace {

constexpr int64_t kLimitMs = 20'000;

}  // namespace

std::unique_ptr<MessageTransport> MemoryGroups::TransportOf(const GroupDescription& group) {
  MutexLock lock(&mutex_);
  auto& transports = transports_[{group.name, group.epoch}];
  if (transports.empty()) transports = baton::testing::MakeMemoryTransports(group.size());
  return std::move(transports[static_cast<size_t>(group.rank)]);
}

ConnectGroup MemoryGroups::Connect() {
  return [this](const GroupDescription& group, const std::shared_ptr<BootstrapStore>& store)
             -> absl::StatusOr<std::shared_ptr<Communicator>> {
    BATON_RETURN_IF_ERROR(store->Set(absl::StrCat("rank ", group.rank), group.members[0]));
    for (int rank = 0; rank < group.size(); ++rank) {
      BATON_ASSIGN_OR_RETURN(const std::string leader,
                             store->Get(absl::StrCat("rank ", rank), kLimitMs));
      if (leader != group.members[0]) return absl::InternalError("another group's rank");
    }
    collective::CoreOptions options;
    options.communicator.operation_timeout_ms = operation_timeout_ms_;
    BATON_ASSIGN_OR_RETURN(
        std::unique_ptr<Communicator> communicator,
        ThreadedCommunicator::Create(group, options, TransportOf(group), kLimitMs, store.get()));
    return std::shared_ptr<Communicator>(std::move(communicator));
  };
}

}  // namespace baton::prefill
