// What is promised of a router's members and of its pairs: a change arrives, full workers hear of a
// request again only within the budget, and a healed cluster serves as a whole.
#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/decode_process.h"
#include "tests/sim/prefill_process.h"
#include "tests/sim/router_process.h"

namespace baton::sim {
namespace {

// A wanted heartbeat and its answer, with an answer that was under way: far below the interval.
constexpr int64_t kMembersArriveUs = 100'000;

}  // namespace

WorkerMembership* RouterProcess::MembershipOf(const InstanceRef& instance) const {
  const int node = NodeOf(instance.id);
  if (!world_.alive(node) || world_.incarnation(node) != instance.incarnation) return nullptr;
  return world_.process(node)->worker();
}

void RouterProcess::CheckMembersArrive() {
  const router::Membership& members = core_.membership();
  const uint64_t version = members.version();
  if (version == checked_version_ || !topology_.undisturbed) return;
  checked_version_ = version;
  std::erase_if(told_us_, [&](const auto& told) { return members.Find(told.first) == nullptr; });
  world_.After(node_, kMembersArriveUs, "members check", [this, version, &members] {
    if (members.version() != version) return;  // Checked later.
    for (const router::Worker& worker : members.Workers()) {
      const InstanceRef& self = worker.info.instance;
      const WorkerMembership* membership = MembershipOf(self);
      const auto told = told_us_.find(self);
      // Others' registration may have made it a member, or its own by an address that it has let go
      // of: it hears of that when it asks to join again.
      if (membership == nullptr || membership->GaveUpAsking(node_) || told == told_us_.end() ||
          world_.now_us() - told->second < kMembersArriveUs) {
        continue;
      }
      for (const router::WorkerInfo& member : members.ListFor(worker)) {
        if (member.grid() != worker.info.grid()) continue;
        // Another router may have told it of a later life.
        if (MembershipOf(member.instance) == nullptr) continue;
        const auto& known = membership->peers();
        const bool knows = member.instance == self ||
                           std::any_of(known.begin(), known.end(), [&member](const auto& peer) {
                             return peer.instance == member.instance;
                           });
        if (knows) continue;
        world_.Violate(absl::StrCat(self.id, " has not heard of ", member.instance.id, " for ",
                                    kMembersArriveUs / 1000, " ms"));
      }
    }
  });
}

void RouterProcess::TellsJoined(const router::AnswerLease& act) {
  if (core_.membership().Find(act.instance) == nullptr) return;
  const WorkerMembership* membership = MembershipOf(act.instance);
  const bool anew = membership != nullptr && membership->GaveUpAsking(node_);
  if (anew) told_us_.erase(act.instance);
  told_us_.try_emplace(act.instance, world_.now_us());
}

void RouterProcess::HandleRefusable(uint64_t attempt_id, const absl::Status& status,
                                    const router::Event& event) {
  const std::optional<uint64_t> call_id = CallOf(attempt_id);
  Handle(event);
  if (call_id.has_value()) CheckRefusal(*call_id, status);
}

void RouterProcess::CheckRefusal(uint64_t call_id, const absl::Status& status) {
  if (!IsOverloaded(status) || clients_.Get(call_id).finished) return;
  constexpr int64_t kWindowUs = int64_t{router::RetryBudget::kWindowSeconds} * 1'000'000;
  const auto forget = [this](std::deque<int64_t>& times, int64_t window_us) {
    while (!times.empty() && times.front() < world_.now_us() - window_us) times.pop_front();
  };
  kept_us_.push_back(world_.now_us());
  forget(kept_us_, kWindowUs - 1'000'000);  // It counts in whole seconds.
  forget(begun_us_, kWindowUs);
  const size_t most =
      begun_us_.size() * static_cast<size_t>(limits_.retry_budget.percent) / 100 +
      static_cast<size_t>(limits_.retry_budget.per_second) * router::RetryBudget::kWindowSeconds;
  if (kept_us_.size() <= most) return;
  world_.Violate(absl::StrCat(kept_us_.size(), " requests that full workers refused go on within ",
                              kWindowUs / 1'000'000, " s, the budget is ", most));
}

void RouterProcess::CheckServesAll() {
  std::set<std::pair<std::string, std::string>> ready;
  for (const router::Pair& pair : core_.membership().ReadyPairs()) {
    ready.emplace(pair.chain.chain_id, pair.decode.id);
  }
  for (int i = 0; i < topology_.colocated; ++i) {
    const int node = topology_.DecodeNode(topology_.decodes + i);
    const std::string id = topology_.InstanceId(world_.name(node), world_.incarnation(node));
    if (ready.contains({topology_.DecodeId(node), id})) continue;
    return world_.Violate(absl::StrCat(world_.name(node_), " does not know that ", id,
                                       " serves: ", core_.membership().WhatIsMissing()));
  }
  for (int chain = 0; chain < topology_.chains; ++chain) {
    for (int decode = 0; decode < topology_.decodes; ++decode) {
      const int node = topology_.DecodeNode(decode);
      if (!topology_.Serves(node)) continue;
      const std::string chain_id = absl::StrCat("chain-", chain);
      const std::string id = topology_.InstanceId(world_.name(node), world_.incarnation(node));
      if (ready.contains({chain_id, id})) continue;
      world_.Violate(
          absl::StrCat(world_.name(node_), " has no pair of ", chain_id, " and ", id, " ",
                       topology_.times.RecoveryUs() / 1000,
                       " ms after the last fault: ", core_.membership().WhatIsMissing()));
      return;
    }
  }
}

}  // namespace baton::sim
