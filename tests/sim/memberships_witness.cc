#include "tests/sim/memberships_witness.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace baton::sim {
namespace {

constexpr int64_t kNewsGapUs = 10'000;
constexpr int64_t kAliasAgainUs = 30'000'000;
constexpr int64_t kResolveGapUs = 500'000;

bool IsRefusal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsResourceExhausted(status) ||
         absl::IsInvalidArgument(status) || absl::IsOutOfRange(status);
}

std::string NameOf(const InstanceRef& instance) {
  return absl::StrCat(instance.id, "/", instance.incarnation);
}

std::string NamesOf(std::vector<worker::PeerWorker> peers, bool in_any_order = false) {
  if (in_any_order) {
    std::sort(peers.begin(), peers.end(),
              [](const auto& a, const auto& b) { return a.instance < b.instance; });
  }
  return absl::StrJoin(peers, ",", [](std::string* out, const worker::PeerWorker& peer) {
    absl::StrAppend(out, NameOf(peer.instance), "@", peer.data_address, "[", peer.layers.begin, "-",
                    peer.layers.end, ")", peer.chain_id, ":", peer.pp_rank, ".",
                    peer.tensor_rank.rank);
  });
}

}  // namespace

void MembershipsWitness::Complain(const std::string& what) {
  world_.Violate(absl::StrCat("membership of ", options_.self.instance.id, ": ", what));
}

void MembershipsWitness::Saw(const worker::MembershipEvent& event,
                             const std::vector<worker::MembershipAction>& actions,
                             const worker::Memberships& core) {
  expected_.clear();
  connecting_.clear();
  relisted_ = false;
  std::erase_if(wishes_, [this](const auto& entry) {
    return entry.second.retry_us > 0 && entry.second.retry_us <= world_.now_us();
  });
  for (auto& [peer, wish] : wishes_) {
    if (wish.again_us == 0 || world_.now_us() < wish.again_us) continue;
    wish.again_us = 0;
    LookUp(peer, 0);
  }
  std::visit([this](const auto& e) { Hear(e); }, event);
  ForgetRouters();
  FindRouters();
  KeepMembers();
  Resolve();
  Ask();
  for (const worker::MembershipAction& action : actions) {
    const auto due = expected_.find(Text(action));
    if (due == expected_.end()) return Complain("does without a reason: " + Text(action));
    expected_.erase(due);
  }
  if (!expected_.empty()) return Complain("does not do: " + *expected_.begin());
  CheckState(core);
}

std::string MembershipsWitness::Text(const worker::MembershipAction& action) {
  return std::visit(
      [](const auto& a) -> std::string {
        using T = std::decay_t<decltype(a)>;
        if constexpr (std::is_same_v<T, worker::ResolveRouterName>) {
          return absl::StrCat("resolve ", a.name);
        } else if constexpr (std::is_same_v<T, worker::SendRegister>) {
          return absl::StrCat("register at ", a.router, " ", a.address, " within ", a.timeout_us);
        } else if constexpr (std::is_same_v<T, worker::SendHeartbeat>) {
          return absl::StrCat("heartbeat to ", a.router, "/", a.router_incarnation, " with list ",
                              a.view_version, a.leaving ? ", the last," : "", " within ",
                              a.timeout_us);
        } else if constexpr (std::is_same_v<T, worker::OpenWatch>) {
          return absl::StrCat("watch ", a.router);
        } else if constexpr (std::is_same_v<T, worker::ForgetRouter>) {
          return absl::StrCat("forget ", a.router, " ", a.address);
        } else if constexpr (std::is_same_v<T, worker::ConnectPeers>) {
          return absl::StrCat("connect ", NamesOf(a.peers, /*in_any_order=*/true));
        } else if constexpr (std::is_same_v<T, worker::LookUpPeer>) {
          return absl::StrCat("look up ", NameOf(a.peer), " at ", a.router, " within ",
                              a.timeout_us);
        } else if constexpr (std::is_same_v<T, worker::PeerStands>) {
          return absl::StrCat(NameOf(a.peer), " stands by ", a.endpoint.endpoint);
        } else if constexpr (std::is_same_v<T, worker::PeerUnreachable>) {
          return absl::StrCat(NameOf(a.peer), " is out of reach");
        } else if constexpr (std::is_same_v<T, worker::PeerLost>) {
          return absl::StrCat(NameOf(a.peer), " is lost");
        } else if constexpr (std::is_same_v<T, worker::TellPeers>) {
          return absl::StrCat("tell ", NamesOf(a.peers));
        } else if constexpr (std::is_same_v<T, worker::BeginDrain>) {
          return "begin the drain";
        } else if constexpr (std::is_same_v<T, worker::TooManyRouters>) {
          return absl::StrCat("leave out ", a.address);
        } else {
          return absl::StrCat("rejected: ", a.status.ToString());
        }
      },
      action);
}

// ---- Routers ----

void MembershipsWitness::Answered(Router& router) {
  router.asked = false;
  router.failures = 0;
  router.backoff_us = options_.times.first_backoff_us;
  router.heard_us = world_.now_us();
}

void MembershipsWitness::Joined(Router& router, const worker::RegisterAnswered& event) {
  const uint64_t incarnation = event.router_incarnation;
  const int64_t own_us = options_.times.heartbeat_us;
  Answered(router);
  router.state = State::kMember;
  // A router may ask for more heartbeats, and not for fewer.
  const int64_t asked_us = event.heartbeat_interval_us;
  router.interval_us = asked_us <= 0 ? own_us : std::min(asked_us, own_us);
  router.incarnation = incarnation;
  router.refused = router.told_of_drain = false;
  router.due_us = world_.now_us();
  router.version = 0;
  router.watched_us = -1;
}

void MembershipsWitness::Hear(const worker::RegisterAnswered& event) {
  const auto found = routers_.find(event.router);
  if (found == routers_.end()) return;
  Router& router = found->second;
  const int64_t now_us = world_.now_us();
  if (IsRefusal(event.status)) {
    Answered(router);
    router.state = State::kJoining;
    if (!std::exchange(router.refused, true)) {
      router.refused_us = now_us;
      router.refused_backoff_us =
          std::min(options_.times.first_backoff_us, options_.times.heartbeat_us);
    }
    router.due_us = now_us + router.refused_backoff_us;
    router.refused_backoff_us =
        std::min(options_.times.heartbeat_us, 2 * router.refused_backoff_us);
    return;
  }
  if (!event.status.ok()) return Failed(router);
  for (auto& [id, other] : routers_) {
    if (&other == &router || other.state != State::kMember ||
        other.incarnation != event.router_incarnation) {
      continue;
    }
    if (other.failures == 0) {  // Another name of the same one.
      Answered(router);
      router.state = State::kAlias;
      router.incarnation = event.router_incarnation;
      router.refused = false;
      DropMembers(router);
      router.due_us = now_us + kAliasAgainUs;
      return;
    }
    DropMembers(other);  // Its other name leads nowhere.
    other.state = State::kJoining;
  }
  Joined(router, event);
}

void MembershipsWitness::Failed(Router& router) {
  const int64_t now_us = world_.now_us();
  const bool was_member = router.state == State::kMember;
  router.asked = false;
  router.due_us = now_us + router.backoff_us;
  router.backoff_us = std::min(options_.times.longest_backoff_us, 2 * router.backoff_us);
  if (router.state == State::kAlias) router.state = State::kJoining;
  if (++router.failures > 1) return;
  name_due_us_ = std::min(name_due_us_, std::max(now_us, resolved_us_ + kResolveGapUs));
  if (!was_member) return;
  for (auto& [id, other] : routers_) {
    const bool same = other.state == State::kAlias && other.incarnation == router.incarnation;
    if (same && !other.asked) other.due_us = now_us;
  }
}

void MembershipsWitness::Hear(const worker::HeartbeatAnswered& event) {
  const auto found = routers_.find(event.router);
  if (found == routers_.end()) return;
  Router& router = found->second;
  const int64_t now_us = world_.now_us();
  if (router.state != State::kMember || absl::IsNotFound(event.status)) {
    Answered(router);
    router.state = State::kJoining;
    router.due_us = now_us;
    return;
  }
  if (!event.status.ok()) return Failed(router);
  Answered(router);
  router.told_of_drain = event.draining;
  router.needed = event.needed_requests;
  if (event.drain) Expect(worker::BeginDrain{});
  router.left = router.left || router.says_farewell;
  router.due_us =
      router.news ? std::max(now_us, router.began_us + kNewsGapUs) : now_us + router.interval_us;
  if (event.view_version == router.version) return;
  router.version = event.view_version;
  router.listed = event.members;
  std::erase_if(router.listed, [this](const worker::PeerWorker& peer) {
    return peer.instance.id == options_.self.instance.id;
  });
  relisted_ = true;
}

void MembershipsWitness::DropMembers(Router& router) {
  router.listed.clear();
  router.version = 0;
  relisted_ = true;
}

void MembershipsWitness::News(Router& router) {
  if (!router.answers()) return;
  if (router.asked) {
    router.news = true;
  } else {
    router.due_us =
        std::min(router.due_us, std::max(world_.now_us(), router.began_us + kNewsGapUs));
  }
}

void MembershipsWitness::Hear(const worker::WatchNoticed& event) {
  const auto router = routers_.find(event.router);
  if (router != routers_.end()) News(router->second);
}

void MembershipsWitness::Hear(const worker::WatchEnded& event) {
  const auto router = routers_.find(event.router);
  if (router == routers_.end()) return;
  router->second.watching = false;
  News(router->second);
}

void MembershipsWitness::Hear(const worker::StatusChanged& /*event*/) {
  for (auto& [id, router] : routers_) News(router);
}

void MembershipsWitness::Hear(const worker::Leaves& /*event*/) {
  leaves_ = true;
  for (auto& [id, router] : routers_) News(router);
}

void MembershipsWitness::Ask() {
  const int64_t now_us = world_.now_us();
  for (auto& [id, router] : routers_) {
    const bool member = router.state == State::kMember;
    if (leaves_ && !member) router.left = true;
    const bool lately = router.watched_us >= 0 && now_us < router.watched_us + router.interval_us;
    if (router.answers() && !router.watching && !router.left && !lately) {
      router.watching = true;
      router.watched_us = now_us;
      Expect(worker::OpenWatch{id});
    }
    if (router.asked || router.left || now_us < router.due_us) continue;
    router.asked = true;
    router.news = false;
    if (!member) {
      Expect(worker::SendRegister{
          id, router.address,
          std::max(options_.times.rpc_timeout_us, 2 * options_.times.heartbeat_us)});
      continue;
    }
    router.began_us = now_us;
    router.says_farewell = leaves_;
    Expect(worker::SendHeartbeat{
        id, router.incarnation, router.version, leaves_,
        std::max(options_.times.rpc_timeout_us, 2 * options_.times.heartbeat_us)});
  }
}

}  // namespace baton::sim
