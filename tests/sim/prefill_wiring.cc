// The wiring of a chain in the simulation: epochs, links, and what happens when they break. Plays
// services/prefill/chain_wiring and stage_link.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/prefill_process.h"

namespace baton::sim {
namespace {

constexpr int64_t kRewireUs = 200'000;

}  // namespace

void PrefillProcess::OnView() {
  if (!first()) return;
  if (epoch_ != 0) {
    for (const InstanceRef& member : members_) {
      if (membership_->FindPeer(member) >= 0) continue;
      Unwire(WithLeg(absl::UnavailableError(absl::StrCat("stage ", member.id, " left the chain")),
                     "prefill", member.id));
      break;
    }
  }
  Wire();
}

void PrefillProcess::Wire() {
  if (!first() || epoch_ != 0 || world_.now_us() < retry_wire_us_ || !stage_.Quiet()) return;
  std::vector<InstanceRef> members;
  for (int stage = 0; stage < topology_.stages; ++stage) {
    const auto it = membership_->view().find(world_.name(topology_.StageNode(chain_, stage)));
    if (it == membership_->view().end()) return;
    members.push_back(it->second.instance);
  }
  if (members[0] != self_) return;  // The view is older than this life.
  members_ = members;
  epoch_ = next_epoch_++;
  ready_.clear();
  links_.clear();
  for (int stage = 1; stage < topology_.stages; ++stage) {
    const int node = topology_.StageNode(chain_, stage);
    const uint64_t call = world_.OpenCall(node_, node);
    if (call == 0) {
      Unwire(
          WithLeg(absl::UnavailableError("a stage does not answer"), "prefill", world_.name(node)));
      return;
    }
    links_[stage] = call;
    world_.SendOnCall<PrefillProcess>(call, node_, "hello",
                                      [call, epoch = epoch_, members](PrefillProcess& peer) {
                                        peer.Hello(call, epoch, members);
                                      });
  }
  HandleStage(prefill::EpochBegan{epoch_});
  MaybeUp();
}

void PrefillProcess::MaybeUp() {
  if (epoch_ == 0 || up_ || static_cast<int>(ready_.size()) != topology_.stages - 1) return;
  up_ = true;
  HandlePlanner(prefill::ChainUp{epoch_, topology_.stages, topology_.prefill_pages});
  membership_->ReportSoon();
}

void PrefillProcess::Unwire(const absl::Status& reason) {
  if (topology_.first_router_stands) {
    world_.Violate(
        absl::StrCat("a router's death breaks ", self_.id, "'s chain: ", reason.message()));
  }
  const std::map<int, uint64_t> links = std::exchange(links_, {});
  for (const auto& [stage, call] : links) world_.BreakCall(call);
  epoch_ = 0;
  if (std::exchange(up_, false)) {
    HandlePlanner(prefill::ChainDown{reason});
    membership_->ReportSoon();
  }
  HandleStage(prefill::EpochEnded{});
  outputs_.clear();
  inputs_.clear();
  retry_wire_us_ = world_.now_us() + kRewireUs;
  world_.After(node_, kRewireUs + 50'000, "rewire timer", [this] { Wire(); });
}

void PrefillProcess::Hello(uint64_t call, uint64_t epoch, const std::vector<InstanceRef>& stages) {
  if (stages[stage_index_] != self_) {
    world_.BreakCall(call);
    return;
  }
  if (link_ != 0) world_.BreakCall(std::exchange(link_, 0));
  if (stage_open_) HandleStage(prefill::EpochEnded{});
  stage_open_ = false;
  link_ = call;
  members_ = stages;
  epoch_ = 0;
  pending_epoch_ = epoch;
  MaybeBegin();
}

void PrefillProcess::MaybeBegin() {
  if (!pending_epoch_.has_value() || !stage_.Quiet()) return;
  epoch_ = *std::exchange(pending_epoch_, std::nullopt);
  inputs_.clear();
  outputs_.clear();
  stage_open_ = true;
  HandleStage(prefill::EpochBegan{epoch_});
  world_.SendOnCall<PrefillProcess>(
      link_, node_, "link ready",
      [call = link_, stage = stage_index_, epoch = epoch_](PrefillProcess& peer) {
        peer.LinkReady(call, stage, epoch);
      });
}

void PrefillProcess::LinkReady(uint64_t call, int stage, uint64_t epoch) {
  if (epoch != epoch_ || links_[stage] != call) return;
  ready_[stage] = true;
  MaybeUp();
}

void PrefillProcess::CallBroken(uint64_t call) {
  membership_->CallBroken(call);
  for (const auto& [stage, link] : links_) {
    if (link != call) continue;
    const std::string& name = world_.name(topology_.StageNode(chain_, stage));
    Unwire(WithLeg(absl::UnavailableError(absl::StrCat("lost stage ", name)), "prefill", name));
    return;
  }
  if (call == link_) {
    link_ = 0;
    epoch_ = 0;
    pending_epoch_.reset();
    if (std::exchange(stage_open_, false)) HandleStage(prefill::EpochEnded{});
    return;
  }
  for (const auto& [attempt, prompt] : prompts_) {
    if (prompt.start_call != call || !first()) continue;
    Abort(attempt);
    return;
  }
}

}  // namespace baton::sim
