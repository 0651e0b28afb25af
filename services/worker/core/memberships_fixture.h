// What the tests of Memberships share: routers by address, each with a life and a list of members.
#ifndef SERVICES_WORKER_CORE_MEMBERSHIPS_FIXTURE_H_
#define SERVICES_WORKER_CORE_MEMBERSHIPS_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/worker/core/memberships.h"

namespace baton::worker {

inline constexpr int64_t kMs = 1000;
inline constexpr int64_t kSecond = 1'000'000;
using Names = std::set<std::string>;

inline PeerWorker Decode(const std::string& id, uint64_t incarnation = 1) {
  PeerWorker peer;
  peer.instance = {id, incarnation};
  peer.role = Role::kDecode;
  return peer;
}

inline PeerWorker Stage(const std::string& id, uint64_t incarnation = 1) {
  PeerWorker peer;
  peer.instance = {id, incarnation};
  peer.role = Role::kPrefill;
  peer.chain_id = "a";
  return peer;
}

// Routers by address, each with a life and a list; answers what the core sends at once, unless the
// router is down. Endpoints stand unless the peer is in `unreachable`. The worker is a stage.
class MembershipsTest : public testing::Test {
 protected:
  struct Router {
    uint64_t incarnation = 0;
    bool up = true;
    bool knows = false;
    absl::Status refusal;
    uint64_t version = 1;
    std::vector<PeerWorker> view;
    std::vector<PeerWorker> others;  // Whom it knows beside them.
    uint64_t had = 0;                // The version of it that the call has told.
    int lookups = 0;
    int64_t interval_us = 500 * kMs;
    int registrations = 0;
    int heartbeats = 0;
    bool silent = false;  // A black hole: nothing is answered.
  };

  void Begin(std::vector<std::string> numeric, std::vector<std::string> names = {}) {
    MembershipOptions options;
    options.self = Stage("self");
    options.router_addresses = std::move(numeric);
    options.router_names = std::move(names);
    core_ = std::make_unique<Memberships>(options, now_us_);
    Do(MembershipTick{});
  }

  void Do(const MembershipEvent& event) {
    events_.push_back(event);
    if (events_.size() > 1) return;
    while (!events_.empty()) {
      std::vector<MembershipAction> actions;
      core_->Handle(events_.front(), now_us_, actions);
      ASSERT_TRUE(core_->CheckInvariants().ok()) << core_->CheckInvariants();
      for (const MembershipAction& action : actions) {
        std::visit([this](const auto& a) { On(a); }, action);
      }
      events_.pop_front();
    }
  }

  // Lets time pass, with all that falls due.
  void Pass(int64_t duration_us) {
    const int64_t end_us = now_us_ + duration_us;
    for (int steps = 0; steps < 100'000; ++steps) {
      const int64_t next_us = std::max(now_us_ + 1, core_->NextDeadlineUs(now_us_));
      if (next_us > end_us) break;
      now_us_ = next_us;
      Do(MembershipTick{});
    }
    now_us_ = end_us;
    Do(MembershipTick{});
  }

  void On(const ResolveRouterName& action) {
    ++resolutions_;
    if (answers_dns_) events_.push_back(RouterNameResolved{action.name, dns_});
  }
  void On(const OpenLease& action) {
    address_of_[action.router] = action.address;
    called_[action.lease] = action.address;
    Router& router = routers_[action.address];
    const auto held = std::find(action.held_by.begin(), action.held_by.end(), router.incarnation);
    if (router.silent) return;
    if (!router.up) {
      events_.push_back(LeaseEnded{action.lease, absl::UnavailableError("down")});
    } else if (held != action.held_by.end()) {
      events_.push_back(LeaseEnded{action.lease, absl::AlreadyExistsError("by another call")});
    } else {
      ++router.registrations;
      router.knows = router.refusal.ok();
      granted_by_[action.lease] = router.incarnation;
      router.had = 0;
      if (router.knows) {
        events_.push_back(LeaseGranted{action.lease, router.incarnation, router.interval_us});
      } else {
        events_.push_back(LeaseEnded{action.lease, router.refusal});
      }
    }
  }
  void On(const SendHeartbeat& action) {
    Router& router = routers_[called_.at(action.lease)];
    if (router.silent) return;
    if (!router.up) {
      events_.push_back(LeaseEnded{action.lease, absl::UnavailableError("down")});
    } else if (!router.knows || granted_by_.at(action.lease) != router.incarnation) {
      events_.push_back(LeaseEnded{action.lease, absl::NotFoundError("who?")});
    } else {
      ++router.heartbeats;
      HeartbeatAnswered answer{action.lease, {}};
      if (std::exchange(router.had, router.version) != router.version) {
        answer.members = router.view;
        answer.members.push_back(Stage("self"));
      }
      events_.push_back(answer);
    }
  }
  void On(const CloseLease& action) {
    (action.left_to_router ? left_ : closed_).push_back(called_.at(action.lease));
  }
  void On(const ForgetRouter& action) { forgotten_.insert(action.address); }
  void On(const ConnectPeers& action) {
    PeersConnected answer;
    ++connects_;
    for (const PeerWorker& peer : action.peers) {
      if (unreachable_.contains(peer.instance.id)) {
        answer.failed.push_back(peer);
        continue;
      }
      open_.insert(Name(peer.instance));
      answer.standing.push_back({peer, ++last_endpoint_});
    }
    events_.insert(events_.begin() + 1, answer);  // Before any other.
  }
  void On(const LookUpPeer& action) {
    Router& router = routers_[address_of_[action.router]];
    ++router.lookups;
    if (!answers_lookups_) return;
    PeerLookedUp answer{action.router, action.peer, absl::NotFoundError("who?")};
    for (const PeerWorker& other : router.others) {
      if (other.instance == action.peer) answer.found = other;
    }
    if (!router.up) answer.found = absl::UnavailableError("down");
    events_.push_back(answer);
  }
  void On(const PeerStands& action) { standing_.push_back(Name(action.peer)); }
  void On(const PeerUnreachable& action) { unreached_.push_back(Name(action.peer)); }
  void On(const PeerLost& action) { lost_.push_back(Name(action.peer)); }
  void On(const TellPeers& action) {
    ++tells_;
    told_.clear();
    for (const PeerWorker& peer : action.peers) told_.insert(Name(peer.instance));
  }
  void On(const BeginDrain&) {}
  void On(const TooManyRouters& action) {
    ++left_outs_;
    left_out_.insert(action.address);
  }
  void On(const RejectWorker& action) {
    ++rejections_;
    rejection_ = action.status;
  }

  // 0: none stands.
  uint64_t EndpointTo(const InstanceRef& peer) const {
    const auto found = core_->endpoints().Find(peer);
    return found.has_value() ? found->endpoint : 0;
  }
  uint64_t IdOf(const std::string& address) const {
    for (const auto& [router, name] : address_of_) {
      if (name == address) return router;
    }
    return 0;
  }
  // The call that is open to the router there.
  uint64_t LeaseAt(const std::string& address) const {
    const RouterMembership* router = core_->Find(IdOf(address));
    return router == nullptr ? 0 : router->lease();
  }
  // Ticks when they are due and never else, until `is_so`; returns when that was.
  template <typename Predicate>
  int64_t TickUntil(Predicate is_so) {
    for (int steps = 0; steps < 10'000 && !is_so(); ++steps) {
      const int64_t next_us = core_->NextDeadlineUs(now_us_);
      EXPECT_GT(next_us, now_us_) << "what was due is done";
      now_us_ = std::max(now_us_ + 1, next_us);
      Do(MembershipTick{});
    }
    return now_us_;
  }
  static std::string Name(const InstanceRef& instance) {
    return absl::StrCat(instance.id, "/", instance.incarnation);
  }
  Router& Add(const std::string& address, uint64_t incarnation, std::vector<PeerWorker> view = {}) {
    Router& router = routers_[address];
    router.incarnation = incarnation;
    router.view = std::move(view);
    return router;
  }
  void SetView(Router& router, std::vector<PeerWorker> view) {
    router.view = std::move(view);
    ++router.version;
  }

  int64_t now_us_ = kSecond;
  std::map<std::string, Router> routers_;
  std::map<uint64_t, std::string> address_of_;
  absl::StatusOr<std::vector<std::string>> dns_ = std::vector<std::string>{};
  bool answers_dns_ = true;
  int resolutions_ = 0;
  Names unreachable_, open_, told_, forgotten_, left_out_;
  std::vector<std::string> standing_, unreached_, lost_;  // As they were told.
  int connects_ = 0;
  int tells_ = 0;
  int left_outs_ = 0;
  int rejections_ = 0;
  std::map<uint64_t, std::string> called_;   // Addresses, by lease.
  std::map<uint64_t, uint64_t> granted_by_;  // Routers' lives, by lease.
  std::vector<std::string> closed_, left_;   // Addresses, a call each.
  bool answers_lookups_ = true;
  uint64_t last_endpoint_ = 0;
  absl::Status rejection_;
  std::deque<MembershipEvent> events_;
  std::unique_ptr<Memberships> core_;
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_CORE_MEMBERSHIPS_FIXTURE_H_
