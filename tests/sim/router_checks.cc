// What is promised of a router's view and of its pairs: a change arrives, the pair that an attempt
// begins on is connected, full workers hear of a request again only within the budget, and a healed
// cluster serves as a whole.
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

// A heartbeat that says so takes far less where nothing disturbs it.
constexpr int64_t kWithdrawnUs = 100'000;
// A notice, a heartbeat, its reply and the next heartbeat, with a heartbeat's reply that was under
// way: far below the interval.
constexpr int64_t kViewArrivesUs = 100'000;

}  // namespace

WorkerMembership* RouterProcess::MembershipOf(const InstanceRef& instance) const {
  const int node = NodeOf(instance.id);
  if (!world_.alive(node) || world_.incarnation(node) != instance.incarnation) return nullptr;
  return world_.process(node)->worker();
}

void RouterProcess::CheckPair(const router::Reserve& act) {
  if (!topology_.undisturbed) return;
  const auto check = [this](const InstanceRef& from, const InstanceRef& to) {
    const WorkerMembership* membership = MembershipOf(from);
    if (membership == nullptr || !membership->MissedFor(to, kWithdrawnUs)) return;
    world_.Violate(absl::StrCat(from.id, " is paired with ", to.id,
                                " though its endpoint has been dead for ", kWithdrawnUs / 1000,
                                " ms"));
  };
  for (const router::Pair& pair : core_.membership().ReadyPairs()) {
    if (pair.decode != act.decode || pair.writers != act.writers) continue;
    std::vector<InstanceRef> ranks = pair.followers;
    ranks.push_back(pair.decode);
    for (const KvWriter& writer : act.writers) {
      for (const InstanceRef& rank : ranks) {
        check(writer.instance, rank);
        check(rank, writer.instance);
      }
    }
  }
}

void RouterProcess::CheckViewArrives() {
  const uint64_t version = core_.membership().view_version();
  if (version == checked_version_ || !topology_.undisturbed) return;
  checked_version_ = version;
  world_.After(node_, kViewArrivesUs, "view check", [this, version] {
    if (core_.membership().view_version() != version) return;  // Checked later.
    for (const router::Worker& worker : core_.membership().Workers()) {
      const WorkerMembership* membership = MembershipOf(worker.info.instance);
      if (membership == nullptr) continue;  // It is dead.
      if (worker.applied_version == version) continue;
      // Others' registration has made it a member, or its own by an address that it has let go of:
      // it hears of that when it asks to join again.
      const auto told = told_.find(worker.info.instance);
      if (worker.applied_version == 0 &&
          (told == told_.end() || told->second.joined_version != worker.joined_version ||
           membership->GaveUpAsking(node_) ||
           world_.now_us() - told->second.at_us < kViewArrivesUs)) {
        CheckHearsThatItJoined(worker, *membership);
        continue;
      }
      world_.Violate(absl::StrCat(worker.info.instance.id, " has not heard of view ", version,
                                  " for ", kViewArrivesUs / 1000, " ms"));
    }
  });
}

void RouterProcess::TellsJoined(const router::ReplyRegister& act) {
  const router::Worker* worker = core_.membership().Find(act.instance);
  if (worker == nullptr) return;
  const WorkerMembership* membership = MembershipOf(act.instance);
  const bool anew = membership != nullptr && membership->GaveUpAsking(node_);
  Told& told = told_[act.instance];
  if (told.joined_version == worker->joined_version && !anew) return;
  told = {worker->joined_version, world_.now_us()};
}

// Who is refused asks as often as a member sends heartbeats, and applies the view once it is told.
// Who has let go of an address asks at the router's others within its longest backoff, which is
// shorter than a lease; if there is none it is lost by then.
void RouterProcess::CheckHearsThatItJoined(const router::Worker& joined,
                                           const WorkerMembership& worker_side) {
  const InstanceRef& instance = joined.info.instance;
  const Timings& times = topology_.times;
  const int64_t asks_us =
      worker_side.GaveUpAsking(node_) ? times.lease_us : times.membership.heartbeat_us;
  const int64_t within_us = asks_us + 2 * kViewArrivesUs;
  world_.After(node_, within_us, "join check", [this, instance, version = joined.joined_version] {
    const router::Worker* worker = core_.membership().Find(instance);
    const WorkerMembership* membership = MembershipOf(instance);
    if (worker == nullptr || worker->joined_version != version || membership == nullptr) return;
    if (membership->leaves() || worker->applied_version != 0) return;
    world_.Violate(absl::StrCat(instance.id, " joined with others and does not hear of it"));
  });
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
