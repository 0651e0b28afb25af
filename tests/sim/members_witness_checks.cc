// What must be true of a router's members after every event.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/members_witness.h"

namespace baton::sim {

void MembersWitness::Relisted(const router::WorkerInfo& info) { relisted_.insert(GroupOf(info)); }

std::vector<router::WorkerInfo> MembersWitness::ListFor(const router::WorkerInfo& info) const {
  std::vector<router::WorkerInfo> list;
  for (const auto& [id, member] : members_) {
    if (TellsAll() || GroupOf(member.info) == GroupOf(info)) list.push_back(member.info);
  }
  if (TellsAll()) return list;
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
    return std::pair(a.pp_rank, a.tensor_rank.rank) < std::pair(b.pp_rank, b.tensor_rank.rank);
  });
  return list;
}

void MembersWitness::Check(const router::Event& event, const std::vector<router::Action>& actions,
                           const router::RouterCore& core) {
  const router::Membership& membership = core.membership();
  CheckMembers(membership);
  CheckCalls(actions, membership.version());
  if (!std::holds_alternative<router::TokenReceived>(event) || !pairs_valid_) {
    CheckPairs(membership);
  }
}

void MembersWitness::CheckAnswer(const router::AnswerHeartbeat& answer, const InstanceRef& sender) {
  const Member* member = Find(sender);
  if (member == nullptr) return;
  if (answer.drain != member->drain_asked) Complain("a heartbeat's answer does not say what is so");
  const bool due = std::exchange(calls_.at(answer.rpc_id).list_due, false);
  if (answer.workers != (due ? ListFor(member->info) : std::vector<router::WorkerInfo>())) {
    Complain("a worker is told of others than its members, or of those that it knows");
  }
}

void MembersWitness::CheckMembers(const router::Membership& membership) {
  if (membership.version() == version_ && pairs_valid_ && relisted_.empty()) return;
  bool same = membership.Workers().size() == members_.size();
  for (const auto& [id, member] : members_) {
    same = same && membership.Find(member.info.instance) != nullptr;
  }
  if (!same) Complain("the members are not who should be");
  if (!relisted_.empty() && membership.version() <= version_) {
    Complain("a member comes or goes and no version is new");
  }
}

// Every member that has a call is asked for a heartbeat when its list changes, and no call goes on
// without a lease.
void MembersWitness::CheckCalls(const std::vector<router::Action>& actions, uint64_t version) {
  version_ = version;
  if (!relisted_.empty()) {
    const bool to_all = TellsAll();
    const bool everybody = std::exchange(told_of_all_, to_all) || to_all;
    for (auto& [rpc, call] : calls_) {
      const Member* member = Find(call.worker);
      if (member == nullptr) continue;
      const bool others = everybody || relisted_.contains(GroupOf(member->info));
      if (others && !std::exchange(call.list_due, true)) asks_due_.insert(rpc);
    }
  }
  for (const router::Action& action : actions) {
    if (const auto* ask = std::get_if<router::AskHeartbeat>(&action)) {
      asks_due_.erase(ask->rpc_id);
    }
    if (const auto* end = std::get_if<router::EndLease>(&action)) {
      if (ends_due_.erase(end->rpc_id) == 0) Complain("a call is ended without a reason");
    }
  }
  if (!asks_due_.empty()) Complain("a member is not asked for a heartbeat");
  if (!ends_due_.empty()) Complain("a call goes on without a lease");
}

int64_t MembersWitness::NextUs() const {
  int64_t next_us = kNeverUs;
  for (const auto& [id, member] : members_) {
    next_us = std::min(next_us, member.lease_until_us);
    if (member.probation_until_us != 0) next_us = std::min(next_us, member.probation_until_us);
  }
  for (const auto& [ends, until_us] : unconnected_until_us_) next_us = std::min(next_us, until_us);
  return next_us;
}

}  // namespace baton::sim
