#include "services/worker/core/memberships.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>

#include "absl/strings/str_cat.h"

namespace baton::worker {
namespace {

constexpr int64_t kMs = 1000;
constexpr int64_t kSecond = 1'000'000;
using Names = std::set<std::string>;

PeerWorker Decode(const std::string& id, uint64_t incarnation = 1) {
  PeerWorker peer;
  peer.instance = {id, incarnation};
  peer.role = Role::kDecode;
  return peer;
}

PeerWorker Stage(const std::string& id, uint64_t incarnation = 1) {
  PeerWorker peer;
  peer.instance = {id, incarnation};
  peer.role = Role::kPrefill;
  peer.chain_id = "a";
  return peer;
}

// Routers by address, each with a life and a view; answers what the core sends at once, unless the
// router is down. Endpoints stand unless the peer is in `unreachable`.
class MembershipsTest : public testing::Test {
 protected:
  struct Router {
    uint64_t incarnation = 0;
    bool up = true;
    bool knows = false;
    absl::Status refusal;
    uint64_t version = 1;
    std::vector<PeerWorker> view;
    uint64_t applied = 0;
    int registrations = 0;
    int heartbeats = 0;
    std::optional<int64_t> silent_until_us;  // A black hole: RPCs end only then.
  };

  void Begin(std::vector<std::string> numeric, std::vector<std::string> names = {}) {
    MembershipOptions options;
    options.self = Decode("self");
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
  void On(const SendRegister& action) {
    address_of_[action.router] = action.address;
    Router& router = routers_[action.address];
    if (!router.up) {
      events_.push_back(RegisterAnswered{action.router, absl::UnavailableError("down"), 0, 0});
      return;
    }
    if (router.silent_until_us.has_value()) return;
    ++router.registrations;
    router.knows = router.refusal.ok();
    events_.push_back(
        RegisterAnswered{action.router, router.refusal, router.incarnation, 500 * kMs});
  }
  void On(const SendHeartbeat& action) {
    Router& router = routers_[address_of_[action.router]];
    HeartbeatAnswered answer{action.router, absl::OkStatus(), router.version, {}};
    if (!router.up) {
      answer.status = absl::UnavailableError("down");
    } else if (router.silent_until_us.has_value()) {
      return;
    } else if (!router.knows || action.router_incarnation != router.incarnation) {
      answer.status = absl::NotFoundError("who?");
    } else {
      ++router.heartbeats;
      router.applied = action.view_version;
      if (action.view_version != router.version) answer.workers = router.view;
    }
    events_.push_back(answer);
  }
  void On(const OpenWatch&) {}
  void On(const ForgetRouter& action) { forgotten_.insert(action.address); }
  void On(const ConnectPeers& action) {
    PeersConnected answer;
    for (const PeerWorker& peer : action.peers) {
      const bool stands = !unreachable_.contains(peer.instance.id);
      if (stands) open_.insert(Name(peer.instance));
      (stands ? answer.standing : answer.failed).push_back(peer.instance);
    }
    events_.push_back(answer);
  }
  void On(const DisconnectPeer& action) {
    EXPECT_EQ(open_.erase(Name(action.peer)), 1u) << action.peer.id;
    ++disconnects_;
  }
  void On(const TellPeers& action) {
    told_.clear();
    for (const PeerWorker& peer : action.peers) told_.insert(Name(peer.instance));
  }
  void On(const TooManyRouters& action) { left_out_.insert(action.address); }
  void On(const RejectWorker& action) { rejection_ = action.status; }

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
  int disconnects_ = 0;
  absl::Status rejection_;
  std::deque<MembershipEvent> events_;
  std::unique_ptr<Memberships> core_;
};

TEST_F(MembershipsTest, EveryRouterHoldsTheWorkerAndHasItsViewApplied) {
  Router& a = Add("a:1", 11, {Stage("s0"), Decode("self")});
  Router& b = Add("b:1", 22, {Stage("s0"), Stage("s1")});
  b.version = 40;
  Begin({"a:1", "b:1"});
  EXPECT_EQ(core_->routers_joined(), 2);
  EXPECT_EQ(a.applied, 1u);
  EXPECT_EQ(b.applied, 40u);
  EXPECT_EQ(open_, (Names{"s0/1", "s1/1"}));
  EXPECT_EQ(told_, (Names{"s0/1", "s1/1"})) << "without the worker itself";
}

TEST_F(MembershipsTest, ASilentRouterDelaysNobodyElsesHeartbeats) {
  Router& a = Add("a:1", 11);
  Add("b:1", 22).silent_until_us = 0;
  Begin({"a:1", "b:1"});
  Pass(10 * kSecond);
  EXPECT_GE(a.heartbeats, 20);
  EXPECT_EQ(core_->routers_joined(), 1);
  EXPECT_TRUE(core_->registered());
}

TEST_F(MembershipsTest, ARoutersRestartTakesNothingFromTheOthers) {
  const std::vector<PeerWorker> all = {Stage("s0"), Stage("s1")};
  Router& a = Add("a:1", 11, all);
  Router& b = Add("b:1", 22, all);
  Begin({"a:1", "b:1"});
  a.up = false;
  Pass(20 * kSecond);  // Longer than any grace.
  EXPECT_EQ(core_->routers_joined(), 1);
  a = Router{.incarnation = 12, .version = 3, .view = {Stage("s1")}};
  Pass(3 * kSecond);
  EXPECT_EQ(a.applied, 3u);
  EXPECT_EQ(b.applied, 1u);
  EXPECT_EQ(open_, (Names{"s0/1", "s1/1"}));
  EXPECT_EQ(disconnects_, 0);
}

TEST_F(MembershipsTest, TheLastViewOutlivesAllRoutersAndANewOneAtAnotherAddress) {
  Add("10.0.0.1:1", 11, {Stage("s0"), Stage("s1")});
  dns_ = std::vector<std::string>{"10.0.0.1:1"};
  Begin({}, {"router:1"});
  ASSERT_EQ(open_.size(), 2u);
  routers_["10.0.0.1:1"].up = false;
  dns_ = absl::UnavailableError("no answer");
  Pass(60 * kSecond);
  EXPECT_EQ(open_.size(), 2u) << "nobody says that they are gone";
  Add("10.0.0.2:1", 12, {Stage("s0")});
  dns_ = std::vector<std::string>{"10.0.0.2:1"};
  Pass(3 * kSecond);
  EXPECT_EQ(open_, (Names{"s0/1", "s1/1"})) << "the new router may not have heard of s1 yet";
  Pass(10 * kSecond);
  EXPECT_EQ(open_, (Names{"s0/1"}));
  EXPECT_EQ(forgotten_, (Names{"10.0.0.1:1"}));
  EXPECT_EQ(core_->routers_joined(), 1);
}

TEST_F(MembershipsTest, WhatOnlyASilentRouterListsIsGivenUpOnceAnotherKnowsBetter) {
  Add("a:1", 11, {Stage("s0"), Stage("old")});
  Add("b:1", 22, {Stage("s0")});
  Begin({"a:1", "b:1"});
  ASSERT_EQ(open_.size(), 2u);
  routers_["a:1"].up = false;
  Pass(4 * kSecond);
  EXPECT_EQ(open_.size(), 2u);
  Pass(3 * kSecond);
  EXPECT_EQ(open_, (Names{"s0/1"}));
  routers_["a:1"].up = true;
  Pass(3 * kSecond);
  EXPECT_EQ(open_.size(), 2u) << "heard again, its view counts";
  EXPECT_EQ(routers_["a:1"].applied, 1u);
}

TEST_F(MembershipsTest, ADrainingRouterIsServedThoughNobodyNamesIt) {
  Router& a = Add("10.0.0.1:1", 11);
  Add("10.0.0.2:1", 22);
  dns_ = std::vector<std::string>{"10.0.0.1:1", "10.0.0.2:1"};
  Begin({}, {"router:1"});
  ASSERT_EQ(core_->routers_joined(), 2);
  dns_ = std::vector<std::string>{"10.0.0.2:1"};
  Pass(60 * kSecond);
  const int beats = a.heartbeats;
  Pass(2 * kSecond);
  EXPECT_GT(a.heartbeats, beats);
  a.up = false;
  Pass(10 * kSecond);
  EXPECT_EQ(forgotten_, (Names{"10.0.0.1:1"}));
}

TEST_F(MembershipsTest, DnsThatFailsCostsNobodyARouter) {
  Add("10.0.0.1:1", 11);
  dns_ = std::vector<std::string>{"10.0.0.1:1"};
  Begin({}, {"router:1"});
  dns_ = absl::NotFoundError("no such name");
  Pass(60 * kSecond);
  EXPECT_EQ(core_->routers_joined(), 1);
  EXPECT_TRUE(forgotten_.empty());
}

TEST_F(MembershipsTest, NamesAreResolvedAgainAndSoonAfterALoss) {
  Add("10.0.0.1:1", 11);
  dns_ = std::vector<std::string>{"10.0.0.1:1"};
  Begin({}, {"router:1"});
  Pass(60 * kSecond);
  EXPECT_NEAR(resolutions_, 13, 2);
  const int before = resolutions_;
  Add("10.0.0.2:1", 12);
  dns_ = std::vector<std::string>{"10.0.0.2:1"};
  routers_["10.0.0.1:1"].up = false;
  Pass(1500 * kMs);
  EXPECT_GT(resolutions_, before);
  EXPECT_EQ(core_->routers_joined(), 1) << "the new one";
}

TEST_F(MembershipsTest, AnUnansweredResolutionIsNotAskedTwice) {
  answers_dns_ = false;
  Begin({}, {"router:1"});
  Pass(60 * kSecond);
  EXPECT_EQ(resolutions_, 1);
}

TEST_F(MembershipsTest, OneRouterAtTwoAddressesIsJoinedOnce) {
  Add("10.0.0.1:1", 11, {Stage("s0")});
  Add("[fd00::1]:1", 11, {Stage("s0")});
  Begin({"10.0.0.1:1", "[fd00::1]:1"});
  Pass(5 * kSecond);
  EXPECT_EQ(core_->routers_joined(), 1);
  EXPECT_EQ(routers_["[fd00::1]:1"].heartbeats, 0);
  // One way to it breaks: the other takes its place, view and all.
  routers_["10.0.0.1:1"].up = false;
  routers_["[fd00::1]:1"].knows = true;
  Pass(1 * kSecond);
  EXPECT_EQ(core_->routers_joined(), 1);
  EXPECT_GT(routers_["[fd00::1]:1"].heartbeats, 0);
  EXPECT_EQ(disconnects_, 0);
  // And it comes back as the second.
  routers_["10.0.0.1:1"].up = true;
  Pass(10 * kSecond);
  EXPECT_EQ(core_->routers_joined(), 1);
  EXPECT_EQ(disconnects_, 0);
}

TEST_F(MembershipsTest, AnAddressThatComesToLeadElsewhereIsJoined) {
  Add("10.0.0.1:1", 11);
  Add("10.0.0.2:1", 11);
  Begin({"10.0.0.1:1", "10.0.0.2:1"});
  ASSERT_EQ(core_->routers_joined(), 1);
  Add("10.0.0.2:1", 33);
  Pass(40 * kSecond);
  EXPECT_EQ(core_->routers_joined(), 2);
}

TEST_F(MembershipsTest, OfTwoIncarnationsTheNewestIsToldAndBothAreConnected) {
  Router& a = Add("a:1", 11, {Stage("s0", 1)});
  Router& b = Add("b:1", 22, {Stage("s0", 1)});
  Begin({"a:1", "b:1"});
  SetView(a, {Stage("s0", 9)});
  Pass(kSecond);
  EXPECT_EQ(told_, (Names{"s0/9"}));
  EXPECT_EQ(open_, (Names{"s0/1", "s0/9"})) << "the other router's pairs name the old one";
  SetView(b, {Stage("s0", 9)});
  Pass(kSecond);
  EXPECT_EQ(open_, (Names{"s0/9"}));
}

TEST_F(MembershipsTest, AnUnreachablePeerHoldsUpOnlyTheViewsThatListIt) {
  Router& a = Add("a:1", 11, {Stage("s0")});
  Router& b = Add("b:1", 22, {Stage("s0"), Stage("far")});
  unreachable_ = {"far"};
  Begin({"a:1", "b:1"});
  Pass(2 * kSecond);
  EXPECT_EQ(a.applied, 1u);
  EXPECT_EQ(b.applied, 0u);
  EXPECT_EQ(told_, (Names{"s0/1"}));
  unreachable_ = {};
  Pass(2 * kSecond);
  EXPECT_EQ(b.applied, 1u);
  EXPECT_EQ(told_, (Names{"s0/1", "far/1"}));
}

TEST_F(MembershipsTest, AFailedEndpointIsOpenedAnewButNotAtOnce) {
  Router& a = Add("a:1", 11, {Stage("s0")});
  Begin({"a:1"});
  open_.clear();
  Do(PeerFailed{{"s0", 1}});
  EXPECT_TRUE(open_.empty());
  Pass(kSecond);
  EXPECT_EQ(open_, (Names{"s0/1"}));
  EXPECT_EQ(a.applied, 1u);
}

TEST_F(MembershipsTest, WhatCanNeverBecomeTrueEndsTheWorkerAtOnce) {
  for (const absl::Status& refusal : {absl::OutOfRangeError("speaks 3 to 4, this router 1 to 2"),
                                      absl::InvalidArgumentError("pp_rank must be below")}) {
    Add("a:1", 11).refusal = refusal;
    Begin({"a:1"});
    EXPECT_EQ(rejection_, refusal);
    EXPECT_EQ(core_->NextDeadlineUs(now_us_), kNeverUs);
  }
}

TEST_F(MembershipsTest, WhatOthersCanMendIsAskedForAgain) {
  for (const absl::Status& refusal : {absl::FailedPreconditionError("rank 0 is taken"),
                                      absl::ResourceExhaustedError("4096 workers")}) {
    Router& a = Add("a:1", 11);
    a = Router{.incarnation = 11, .refusal = refusal};
    Begin({"a:1"});
    const int64_t began_us = now_us_;
    Pass(60 * kSecond);
    EXPECT_TRUE(rejection_.ok());
    EXPECT_NEAR(a.registrations, 123, 5) << "soon at first, then with each heartbeat's interval";
    EXPECT_EQ(core_->routers_refusing(), 1);
    ASSERT_TRUE(core_->unregistered().has_value());
    EXPECT_EQ(core_->unregistered()->why,
              absl::StrCat("the router at a:1 refuses this worker: ", refusal.message()));
    EXPECT_EQ(core_->unregistered()->since_us, began_us);
    a.refusal = absl::OkStatus();
    Pass(500 * kMs);
    EXPECT_TRUE(core_->registered());
    EXPECT_EQ(core_->routers_refusing(), 0);
    EXPECT_FALSE(core_->unregistered().has_value());
  }
}

TEST_F(MembershipsTest, SaysWhyNoRouterHoldsIt) {
  Begin({});
  EXPECT_EQ(core_->unregistered()->why, "no router is known");
  Add("a:1", 11).up = false;
  Add("b:1", 22).up = false;
  Begin({"a:1", "b:1"});
  Pass(10 * kSecond);
  EXPECT_EQ(core_->unregistered()->why, "no answer from a:1 and other routers");
  EXPECT_EQ(core_->unregistered()->since_us, now_us_ - 10 * kSecond);
}

TEST_F(MembershipsTest, WhoIsHeldByARouterOutlivesAnothersRefusal) {
  Add("a:1", 11).refusal = absl::FailedPreconditionError("rank 0 is taken");
  Add("b:1", 22);
  Begin({"a:1", "b:1"});
  Pass(10 * kSecond);
  EXPECT_TRUE(rejection_.ok());
  EXPECT_GT(routers_["a:1"].registrations, 3) << "it may change its mind";
  routers_["a:1"].refusal = absl::OkStatus();
  Pass(3 * kSecond);
  EXPECT_EQ(core_->routers_joined(), 2);
}

TEST_F(MembershipsTest, ARefusalForGoodWaitsForRoutersThatMayAccept) {
  Add("a:1", 11).refusal = absl::OutOfRangeError("speaks 3 to 4");
  Add("b:1", 22).up = false;
  Begin({"a:1", "b:1"});
  Pass(kSecond);
  EXPECT_TRUE(rejection_.ok());
  Pass(2 * kSecond);
  EXPECT_FALSE(rejection_.ok()) << "nobody else is there";
}

TEST_F(MembershipsTest, OneRefusalForNowIsHopeEnough) {
  Add("a:1", 11).refusal = absl::OutOfRangeError("speaks 3 to 4");
  Add("b:1", 22).refusal = absl::FailedPreconditionError("rank 0 is taken");
  Begin({"a:1", "b:1"});
  Pass(10 * kSecond);
  EXPECT_TRUE(rejection_.ok());
  routers_["b:1"].refusal = absl::OkStatus();
  Pass(kSecond);
  EXPECT_EQ(core_->routers_joined(), 1);
}

TEST_F(MembershipsTest, ARestartOfTheRouterThatAcceptsIsNoVerdict) {
  Add("a:1", 11).refusal = absl::OutOfRangeError("speaks 3 to 4");
  Router& b = Add("b:1", 22);
  Begin({"a:1", "b:1"});
  b.incarnation = 23;
  b.knows = false;
  Pass(5 * kSecond);
  EXPECT_TRUE(rejection_.ok());
  EXPECT_EQ(b.registrations, 2);
}

TEST_F(MembershipsTest, ThereAreNeverMoreRoutersThanTheLimit) {
  std::vector<std::string> addresses;
  for (int i = 0; i < kMaxRouters + 2; ++i) {
    addresses.push_back(absl::StrCat("10.0.0.", 100 + i, ":1"));
    Add(addresses.back(), 100 + static_cast<uint64_t>(i));
  }
  dns_ = addresses;
  Begin({}, {"router:1"});
  Pass(10 * kSecond);
  EXPECT_EQ(core_->routers_joined(), kMaxRouters);
  EXPECT_EQ(left_out_, (Names{"10.0.0.116:1", "10.0.0.117:1"}));
  // One that is gone makes room.
  routers_["10.0.0.100:1"].up = false;
  addresses.erase(addresses.begin());
  dns_ = addresses;
  Pass(10 * kSecond);
  EXPECT_EQ(core_->routers_joined(), kMaxRouters);
  EXPECT_EQ(routers_["10.0.0.116:1"].registrations, 1);
}

TEST_F(MembershipsTest, AnnouncedRoutersAreJoinedAndForgottenWhenTheyFallSilent) {
  Begin({});
  EXPECT_FALSE(core_->registered());
  Add("10.0.0.5:1", 55, {Stage("s0")});
  Add("10.0.0.6:1", 66, {Stage("s0")});
  Do(RouterAnnounced{"10.0.0.5:1"});
  Do(RouterAnnounced{"10.0.0.6:1"});
  EXPECT_EQ(core_->routers_joined(), 2);
  Pass(60 * kSecond);
  EXPECT_EQ(core_->routers_joined(), 2) << "they answer";
  routers_["10.0.0.5:1"].up = false;
  Pass(10 * kSecond);
  EXPECT_EQ(forgotten_, (Names{"10.0.0.5:1"}));
  EXPECT_EQ(open_, (Names{"s0/1"}));
}

TEST_F(MembershipsTest, NewsIsToldToEveryRouterAtOnceButNotTooOften) {
  Router& a = Add("a:1", 11);
  Router& b = Add("b:1", 22);
  Begin({"a:1", "b:1"});
  Pass(20 * kMs);
  const int before = a.heartbeats;
  for (int i = 0; i < 5; ++i) Do(StatusChanged{});
  EXPECT_EQ(a.heartbeats, before + 1);
  Pass(10 * kMs);
  EXPECT_LE(a.heartbeats, before + 2);
  EXPECT_EQ(a.heartbeats, b.heartbeats);
}

}  // namespace
}  // namespace baton::worker
