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
  CheckWatches(actions, membership.view_version());
  if (!std::holds_alternative<router::TokenReceived>(event) || !pairs_valid_) {
    CheckPairs(membership);
  }
}

void MembersWitness::CheckReply(const router::HeartbeatReceived& event,
                                const router::ReplyHeartbeat& reply,
                                const router::Membership& /*membership*/) {
  const Member* member = Find(event.instance);
  if (member == nullptr || event.router_incarnation != limits_.incarnation) {
    if (!absl::IsNotFound(reply.status)) Complain("a heartbeat of a stranger is taken");
    return;
  }
  if (!reply.status.ok()) return Complain(event.instance.id + " is a member and is not known");
  const std::string group = TellsAll() ? "all" : GroupOf(member->info);
  const auto [known, is_new] = list_versions_.try_emplace(group, reply.view_version);
  if (!is_new && reply.view_version != known->second) {
    Complain("a list has another version and is the same");
  }
  if (reply.view_changed != (event.view_version != reply.view_version) ||
      reply.drain != member->drain_asked) {
    Complain("a heartbeat's answer does not say what is so");
  }
  if (reply.view_changed && reply.workers != ListFor(member->info)) {
    Complain("a worker is told of others than its members");
  }
}

void MembersWitness::CheckMembers(const router::Membership& membership) {
  if (membership.view_version() == version_ && pairs_valid_ && relisted_.empty()) return;
  bool same = membership.Workers().size() == members_.size();
  for (const auto& [id, member] : members_) {
    same = same && membership.Find(member.info.instance) != nullptr;
  }
  if (!same) Complain("the members are not who should be");
  if (!relisted_.empty() && membership.view_version() <= version_) {
    Complain("a member comes or goes and no version is new");
  }
}

// Every member that watches is told when its list changes.
void MembersWitness::CheckWatches(const std::vector<router::Action>& actions, uint64_t version) {
  version_ = version;
  for (const std::string& group : relisted_) list_versions_.erase(group);
  if (!relisted_.empty()) list_versions_.erase("all");
  for (const auto& [rpc, instance] : watches_) {
    const Member* member = Find(instance);
    if (member == nullptr || relisted_.empty()) continue;
    if (TellsAll() || relisted_.contains(GroupOf(member->info))) noticed_.insert(rpc);
  }
  for (const router::Action& action : actions) {
    if (const auto* notice = std::get_if<router::NotifyWatch>(&action)) {
      noticed_.erase(notice->rpc_id);
    }
    if (const auto* end = std::get_if<router::EndWatch>(&action)) {
      if (watches_.contains(end->rpc_id)) Complain("a member's watch is ended");
    }
  }
  if (!noticed_.empty()) Complain("somebody who watches is not told");
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
