#include "services/prefill/chain/begin_epoch.h"

#include <cstddef>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace baton::prefill {
namespace {

// None beyond the chain's ends.
absl::StatusOr<std::optional<NeighbourStage>> FindNeighbour(const worker::Peers& peers,
                                                            const Hello& hello, int rank) {
  if (rank < 0 || static_cast<size_t>(rank) == hello.stages.size()) return std::nullopt;
  const InstanceRef& instance = hello.stages[static_cast<size_t>(rank)].instance;
  const std::optional<PeerId> peer = peers.Find(instance);
  if (!peer.has_value()) {
    return absl::UnavailableError(absl::StrCat(instance.id, " is not connected"));
  }
  return NeighbourStage{*peer, instance};
}

}  // namespace

absl::Status BeginEpoch(StageShell& stage, const worker::Peers& peers, const Hello& hello,
                        int rank) {
  if (!stage.Quiet()) return absl::UnavailableError("work of the last epoch goes on");
  ActivationEpoch epoch;
  epoch.epoch = hello.epoch;
  epoch.max_plan_tokens = hello.max_plan_tokens;
  epoch.credits = hello.activation_credits;
  BATON_ASSIGN_OR_RETURN(epoch.previous, FindNeighbour(peers, hello, rank - 1));
  BATON_ASSIGN_OR_RETURN(epoch.next, FindNeighbour(peers, hello, rank + 1));
  stage.BeginEpoch(epoch, NowUs());
  return absl::OkStatus();
}

}  // namespace baton::prefill
