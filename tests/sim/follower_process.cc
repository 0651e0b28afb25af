#include "tests/sim/follower_process.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/content.h"
#include "tests/sim/decode_process.h"
#include "tests/sim/router_process.h"

namespace baton::sim {

FollowerProcess::FollowerProcess(World& world, const Topology& topology, StageGroups& groups,
                                 int node, uint64_t incarnation)
    : DecodeRank(world, topology, groups, node, incarnation,
                 {nullptr, nullptr,
                  [this](const DecodeSteps::Ended& ended) { HandleStage(ResultOf(ended)); }}),
      link_(world, topology, groups, group_, node,
            {DecodePlaceOf(topology, node, self_), topology.PagesOf(node)},
            {[this](const links::Hello& hello) { return Begin(hello); },
             [this](const absl::Status& why) {
               EndEpoch(why);
               grants_.EndEpoch();
             },
             [this](uint64_t epoch, uint64_t number) {
               HandleStage(prefill::NextStageDone{epoch, number});
             },
             [this] { return grants_.newest_generation(); }}) {
  membership_ = std::make_unique<WorkerMembership>(
      world, topology.times, node, RouterProcess::Describe(topology, self_),
      [this] {
        const bool draining = drain_ != nullptr && drain_->draining();
        router::WorkerLoad load;
        load.free_pages = topology_.PagesOf(node_) - stage_.held_pages() - grants_.held_pages();
        return WorkerMembership::Status{!draining, load, draining};
      },
      [this] { CheckNeighbours(); });
  drain_ = std::make_unique<WorkerDrain>(
      world, topology, node, *membership_,
      WorkerDrain::Hooks{[](int64_t) {}, [this](std::string& why_not) { return AtRest(why_not); }});
  membership_->Start();
  kv_.Start();
}

// ---- What the first process tells it ----

// By way of the lease table's time line, where the grant must be in force before a writer hears of
// it.
void FollowerProcess::Take(const KvGrant& grant) {
  if (const absl::Status status = grants_.Grant(grant); !status.ok()) return FailEpoch(status);
  kv_.After([this, epoch = epoch_, slot = grant.slot, generation = grant.generation] {
    OnReport(epoch, prefill::MemberGranted{member_, slot, generation});
  });
}

void FollowerProcess::Take(const prefill::RevokeKv& revoke) {
  const absl::Status status = grants_.Revoke(revoke.slot, revoke.generation);
  if (!status.ok()) FailEpoch(status);
}

void FollowerProcess::OnLease(const LeaseEvent& event) {
  OnReport(epoch_, prefill::KvHeard{member_, event});
}

const Oracle::Sequence* FollowerProcess::SequenceOfGrant(uint64_t generation) const {
  const int leader = topology_.DecodeNode(topology_.DecodeOf(node_), 0);
  if (!world_.alive(leader) || members_.empty() ||
      world_.incarnation(leader) != members_.front().incarnation) {
    return nullptr;
  }
  return static_cast<DecodeProcess*>(world_.process(leader))->SequenceOfGrant(generation);
}

void FollowerProcess::CallBroken(uint64_t call) {
  membership_->CallBroken(call);
  group_.CallBroken(call);
  link_.Raise(links::LinkGone{call});
}

void FollowerProcess::ReceiveOrder(uint64_t call, const SimOrder& order, bool nonsense) {
  const bool taken = link_.Stands(call) && epoch_ != 0;
  link_.HearWork(call, epoch_,
                 [this, order] { std::visit([this](const auto& o) { Take(o); }, order); });
  if (!nonsense || !taken || !world_.violation().empty()) return;
  // A stage that ends its epoch says so in its own time.
  world_.After(node_, 10, "nonsense is refused", [this, call, epoch = epoch_] {
    if (epoch_ != epoch || epoch == 0 || !link_.Stands(call)) return;
    world_.Violate(absl::StrCat(self_.id, " goes on after an order that makes no sense"));
  });
}

}  // namespace baton::sim
