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

std::string NamesOf(const std::vector<worker::PeerWorker>& peers) {
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
  rejoined_.clear();
  std::visit([this](const auto& e) { Hear(e); }, event);
  ForgetRouters();
  FindRouters();
  DropTheSilent();
  UpdatePeers();
  RenewRejoined();
  Connect();
  TellPeers();
  ApplyViews();
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
          return absl::StrCat("heartbeat to ", a.router, "/", a.router_incarnation, " of view ",
                              a.view_version, " without ", absl::StrJoin(a.unconnected, ","),
                              a.leaving ? ", the last," : "", " within ", a.timeout_us);
        } else if constexpr (std::is_same_v<T, worker::OpenWatch>) {
          return absl::StrCat("watch ", a.router);
        } else if constexpr (std::is_same_v<T, worker::ForgetRouter>) {
          return absl::StrCat("forget ", a.router, " ", a.address);
        } else if constexpr (std::is_same_v<T, worker::ConnectPeers>) {
          return absl::StrCat("connect ", NamesOf(a.peers));
        } else if constexpr (std::is_same_v<T, worker::CloseEndpoint>) {
          return absl::StrCat("close ", a.endpoint);
        } else if constexpr (std::is_same_v<T, worker::EndpointsChanged>) {
          return a.lost ? "an endpoint is lost" : "an endpoint stands";
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
  if (std::exchange(router.incarnation, incarnation) != incarnation) {
    for (View* view : {&router.listed, &router.kept}) {
      for (auto& [instance, peer] : *view) peer.joined_version = 0;
    }
  }
  router.refused = router.told_of_drain = false;
  router.gave_up = false;
  router.took_us = world_.now_us();
  router.joined_us = router.due_us = world_.now_us();
  if (!router.listed.empty()) router.keep_until_us = world_.now_us() + options_.times.grace_us;
  router.version = router.applied = 0;
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
      for (const View* view : {&router.listed, &router.kept}) {
        for (const auto& [instance, peer] : *view) {
          const auto [kept, is_new] = other.kept.emplace(instance, peer);
          if (is_new) kept->second.joined_version = 0;
        }
      }
      DropReplaced(other, other.listed);
      other.keep_until_us = std::max(other.keep_until_us, now_us + options_.times.grace_us);
      Answered(router);
      router.state = State::kAlias;
      router.incarnation = event.router_incarnation;
      router.refused = false;
      DropView(router);
      router.due_us = now_us + kAliasAgainUs;
      return;
    }
    Joined(router, event);  // And its other name leads nowhere.
    router.listed = other.listed;
    router.since_us = other.since_us;
    router.viewed_us = other.viewed_us;
    router.kept = other.kept;
    router.keep_until_us = other.keep_until_us;
    router.version = other.version;
    router.applied = other.applied;
    router.joined_us = other.joined_us;
    DropView(other);
    other.state = State::kJoining;
    return;
  }
  LetGoOfPeers(router, event.router_incarnation);
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
    router.gave_up = true;
    router.due_us = now_us;
    return;
  }
  if (!event.status.ok()) return Failed(router);
  Answered(router);
  router.took_us = router.began_us;
  router.told_of_drain = event.draining;
  router.needed = event.needed_requests;
  if (event.drain) Expect(worker::BeginDrain{});
  router.left = router.left || router.says_farewell;
  router.due_us =
      router.news ? std::max(now_us, router.began_us + kNewsGapUs) : now_us + router.interval_us;
  if (event.view_version == router.version) {
    router.viewed_us = router.began_us;
    return;
  }
  if (event.view_version == router.said) {  // Given up since; nothing came.
    router.due_us = now_us;
    return;
  }
  router.version = event.view_version;
  View listed;
  uint64_t own_version = 0;
  for (const worker::PeerWorker& peer : event.workers) {
    if (peer.instance == options_.self.instance) own_version = peer.joined_version;
    if (peer.instance.id != options_.self.instance.id) listed[peer.instance] = peer;
  }
  HearOfRejoined(router, listed, own_version);
  for (const auto& [instance, peer] : router.listed) router.kept.emplace(instance, peer);
  DropReplaced(router, listed);
  router.listed = std::move(listed);
}

// Who was here before, and has joined later than it had, was given up in between.
void MembershipsWitness::HearOfRejoined(Router& router, const View& listed, uint64_t own_version) {
  for (const auto& [instance, peer] : listed) {
    const bool was_listed = router.listed.contains(instance);
    if (!was_listed) router.since_us[instance] = world_.now_us();
    if (!was_listed && !router.kept.contains(instance)) continue;
    const View& before = was_listed ? router.listed : router.kept;
    const uint64_t version = before.at(instance).joined_version;
    if (version == 0 || version == peer.joined_version) continue;
    router.since_us[instance] = world_.now_us();
    if (peer.joined_version > own_version) {
      rejoined_.push_back({&router, instance, router.viewed_us});
    }
  }
  router.viewed_us = router.began_us;
}

// Who is listed again, in whichever life, is kept no longer.
void MembershipsWitness::DropReplaced(Router& router, const View& listed) {
  std::erase_if(router.kept, [&listed](const auto& kept) {
    return std::any_of(listed.begin(), listed.end(),
                       [&kept](const auto& entry) { return entry.first.id == kept.first.id; });
  });
}

void MembershipsWitness::DropView(Router& router) {
  router.listed.clear();
  router.kept.clear();
  router.version = router.applied = 0;
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

bool MembershipsWitness::AnotherIsSettled(const Router& router) const {
  return std::any_of(routers_.begin(), routers_.end(), [&](const auto& entry) {
    const Router& other = entry.second;
    return &other != &router && other.answers() &&
           world_.now_us() - other.joined_us >= options_.times.grace_us;
  });
}

void MembershipsWitness::DropTheSilent() {
  for (auto& [id, router] : routers_) {
    if (world_.now_us() >= router.keep_until_us) router.kept.clear();
    if (router.answers() || router.listed.empty()) continue;
    const bool silent = world_.now_us() - router.heard_us >= options_.times.grace_us;
    if (silent && AnotherIsSettled(router)) DropView(router);
  }
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
    router.said = router.applied;
    std::vector<uint64_t> unconnected;
    for (const auto& [instance, peer] : router.listed) {
      const bool stands = peers_.contains(instance) && peers_.at(instance).endpoint != 0;
      if (Needs(peer) && !stands) unconnected.push_back(instance.incarnation);
    }
    std::sort(unconnected.begin(), unconnected.end());
    Expect(worker::SendHeartbeat{
        id, router.incarnation, router.applied, std::move(unconnected), leaves_,
        std::max(options_.times.rpc_timeout_us, 2 * options_.times.heartbeat_us)});
  }
}

}  // namespace baton::sim
