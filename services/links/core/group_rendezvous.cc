#include "services/links/core/group_rendezvous.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace baton::links {
namespace {

Rendezvous::Caller CallerOf(int member) { return static_cast<Rendezvous::Caller>(member) + 1; }

// As statuses write it.
std::string GroupName(const ChainPlace& place, int stage) {
  if (place.role == Role::kDecode) return absl::StrCat("decode service ", place.chain_id);
  return absl::StrCat("stage ", stage, " of ", place.chain_id);
}

}  // namespace

GroupDescription GroupOf(const ChainPlace& place, const Hello& hello) {
  GroupDescription group;
  group.name = GroupName(place, place.stage);
  group.epoch = hello.epoch;
  group.rank = place.rank();
  for (int rank = 0; rank < place.ranks(); ++rank) {
    const int member = place.stage * place.ranks() + rank;
    group.members.push_back(hello.members[static_cast<size_t>(member)].instance.id);
  }
  return group;
}

void GroupRendezvous::Begin(const Hello& hello, int64_t timeout_ms) {
  hello_ = hello;
  groups_.clear();
  for (int stage = 0; stage < place_.stages; ++stage) {
    groups_.emplace_back(GroupName(place_, stage), timeout_ms);
  }
}

Rendezvous* GroupRendezvous::Of(int member) {
  return groups_.empty() ? nullptr : &groups_[static_cast<size_t>(place_.StageOf(member))];
}

void GroupRendezvous::OnJoin(int member, int64_t now_us) {
  Rendezvous* const group = Of(member);
  if (group == nullptr) return;
  const InstanceRef& instance = hello_.members[static_cast<size_t>(member)].instance;
  group->OnJoin(CallerOf(member),
                {.epoch = hello_.epoch,
                 .rank = place_.RankOf(member),
                 .size = place_.ranks(),
                 .member = instance.id,
                 .incarnation = instance.incarnation},
                now_us);
}

void GroupRendezvous::OnEntry(int member, const Rendezvous::Entry& entry) {
  if (Rendezvous* const group = Of(member); group != nullptr) {
    group->OnEntry(CallerOf(member), entry);
  }
}

void GroupRendezvous::OnConnected(int member) {
  if (Rendezvous* const group = Of(member); group != nullptr) group->OnConnected(CallerOf(member));
}

void GroupRendezvous::Tick(int64_t now_us) {
  for (Rendezvous& group : groups_) group.Tick(now_us);
}

std::vector<GroupRendezvous::ToMember> GroupRendezvous::TakeMessages() {
  std::vector<ToMember> words;
  for (Rendezvous& group : groups_) {
    for (Rendezvous::Message& message : group.TakeMessages()) {
      words.push_back({static_cast<int>(message.to) - 1, std::move(message)});
    }
  }
  return words;
}

}  // namespace baton::links
