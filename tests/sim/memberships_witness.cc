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
        } else if constexpr (std::is_same_v<T, worker::OpenLease>) {
          return absl::StrCat("open lease ", a.lease, " at ", a.router, " ", a.address,
                              " beside those of ", absl::StrJoin(a.held_by, ","));
        } else if constexpr (std::is_same_v<T, worker::SendHeartbeat>) {
          return absl::StrCat("heartbeat on ", a.lease, a.leaving ? ", the last" : "");
        } else if constexpr (std::is_same_v<T, worker::CloseLease>) {
          return absl::StrCat(a.left_to_router ? "leave" : "close", " lease ", a.lease);
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

MembershipsWitness::Router* MembershipsWitness::ByLease(uint64_t lease) {
  for (auto& [id, router] : routers_) {
    if (router.lease == lease) return &router;
  }
  return nullptr;
}

void MembershipsWitness::Answered(Router& router) {
  router.answer_by_us = kNeverUs;
  router.failures = 0;
  router.backoff_us = options_.times.first_backoff_us;
  router.heard_us = world_.now_us();
}

void MembershipsWitness::Hang(Router& router) {
  router.lease = 0;
  router.granted = router.says_farewell = false;
  router.answer_by_us = kNeverUs;
}

void MembershipsWitness::Close(Router& router) {
  if (router.lease != 0) Expect(worker::CloseLease{router.lease});
  Hang(router);
}

void MembershipsWitness::Joined(Router& router, const worker::LeaseGranted& event) {
  const int64_t own_us = options_.times.heartbeat_us;
  Answered(router);
  router.granted = true;
  router.state = State::kMember;
  // A router may ask for more heartbeats, and not for fewer.
  const int64_t asked_us = event.heartbeat_interval_us;
  router.interval_us = asked_us <= 0 ? own_us : std::min(asked_us, own_us);
  router.incarnation = event.router_incarnation;
  router.refused = router.told_of_drain = false;
  router.due_us = world_.now_us();
}

// Another name of a router that holds the worker.
void MembershipsWitness::BecomeAlias(Router& router) {
  Answered(router);
  Hang(router);
  router.state = State::kAlias;
  router.refused = false;
  router.listed.clear();
  relisted_ = true;
  router.due_us = world_.now_us() + kAliasAgainUs;
}

void MembershipsWitness::Refused(Router& router) {
  const int64_t now_us = world_.now_us();
  Answered(router);
  Hang(router);
  router.state = State::kJoining;
  if (!std::exchange(router.refused, true)) {
    router.refused_us = now_us;
    router.refused_backoff_us =
        std::min(options_.times.first_backoff_us, options_.times.heartbeat_us);
  }
  router.due_us = now_us + router.refused_backoff_us;
  router.refused_backoff_us = std::min(options_.times.heartbeat_us, 2 * router.refused_backoff_us);
}

void MembershipsWitness::Hear(const worker::LeaseGranted& event) {
  Router* router = ByLease(event.lease);
  if (router == nullptr || router->granted) return;
  for (auto& [id, other] : routers_) {
    if (&other == router || other.state != State::kMember ||
        other.incarnation != event.router_incarnation) {
      continue;
    }
    // The router holds the worker by the later call, whichever answer comes first.
    const bool holds = other.lease > event.lease;
    Close(holds ? *router : other);
    BecomeAlias(holds ? *router : other);
    if (holds) return;
  }
  Joined(*router, event);
}

void MembershipsWitness::Hear(const worker::LeaseEnded& event) {
  Router* router = ByLease(event.lease);
  if (router == nullptr) return;
  if (absl::IsAlreadyExists(event.status)) return BecomeAlias(*router);
  if (absl::IsNotFound(event.status)) {
    router->left = router->left || router->says_farewell;
    if (!router->left) {
      Answered(*router);
      router->state = State::kJoining;
      router->due_us = world_.now_us();
    }
    return Hang(*router);
  }
  if (!router->granted && IsRefusal(event.status)) return Refused(*router);
  Failed(*router);
}

void MembershipsWitness::Failed(Router& router) {
  const int64_t now_us = world_.now_us();
  Hang(router);
  router.due_us = now_us + router.backoff_us;
  router.backoff_us = std::min(options_.times.longest_backoff_us, 2 * router.backoff_us);
  if (router.state == State::kAlias) router.state = State::kJoining;
  if (++router.failures == 1) {
    name_due_us_ = std::min(name_due_us_, std::max(now_us, resolved_us_ + kResolveGapUs));
  }
  AskAliases();
}

void MembershipsWitness::AskAliases() {
  for (auto& [id, router] : routers_) {
    if (router.state == State::kAlias && router.lease == 0) router.due_us = world_.now_us();
  }
}

void MembershipsWitness::Hear(const worker::HeartbeatAnswered& event) {
  Router* router = ByLease(event.lease);
  if (router == nullptr || !router->granted) return;
  const int64_t now_us = world_.now_us();
  Answered(*router);
  router->told_of_drain = event.draining;
  router->needed = event.needed_requests;
  if (event.drain) Expect(worker::BeginDrain{});
  if (router->says_farewell) {
    router->left = true;
    return Hang(*router);
  }
  router->due_us =
      router->news ? std::max(now_us, router->began_us + kNewsGapUs) : now_us + router->interval_us;
  if (event.members.empty()) return;
  router->listed = event.members;
  std::erase_if(router->listed, [this](const worker::PeerWorker& peer) {
    return peer.instance.id == options_.self.instance.id;
  });
  relisted_ = true;
}

void MembershipsWitness::News(Router& router) {
  if (!router.answers()) return;
  if (router.awaits()) {
    router.news = true;
  } else {
    router.due_us =
        std::min(router.due_us, std::max(world_.now_us(), router.began_us + kNewsGapUs));
  }
}

void MembershipsWitness::Hear(const worker::HeartbeatWanted& event) {
  if (Router* router = ByLease(event.lease)) News(*router);
}

void MembershipsWitness::Hear(const worker::StatusChanged& /*event*/) {
  for (auto& [id, router] : routers_) News(router);
}

void MembershipsWitness::Hear(const worker::Leaves& /*event*/) {
  leaves_ = true;
  for (auto& [id, router] : routers_) News(router);
}

int64_t MembershipsWitness::AnswerByUs() const {
  return world_.now_us() +
         std::max(options_.times.answer_timeout_us, 2 * options_.times.heartbeat_us);
}

void MembershipsWitness::Ask() {
  const int64_t now_us = world_.now_us();
  for (auto& [id, router] : routers_) {
    if (leaves_ && router.state != State::kMember && !router.left) {
      Close(router);
      router.left = true;
    }
    if (router.awaits() && now_us >= router.next_us()) {  // In vain.
      Expect(worker::CloseLease{router.lease, /*left_to_router=*/router.granted});
      Failed(router);
    }
    if (router.awaits() || now_us < router.next_us()) continue;
    router.answer_by_us = AnswerByUs();
    router.news = false;
    if (router.lease != 0) {
      router.began_us = now_us;
      router.says_farewell = leaves_;
      Expect(worker::SendHeartbeat{router.lease, leaves_});
      continue;
    }
    worker::OpenLease open{id, router.address, ++last_lease_, {}};
    for (const auto& [other_id, other] : routers_) {
      if (other.answers()) open.held_by.push_back(other.incarnation);
    }
    router.lease = open.lease;
    Expect(open);
  }
}

}  // namespace baton::sim
