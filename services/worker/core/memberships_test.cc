#include <gtest/gtest.h>

#include "services/worker/core/memberships_fixture.h"

namespace baton::worker {
namespace {

TEST_F(MembershipsTest, EveryRouterHoldsTheWorkerAndListsItsMembers) {
  Router& a = Add("a:1", 11, {Stage("s0"), Stage("self")});
  Router& b = Add("b:1", 22, {Stage("s0"), Stage("s1")});
  b.version = 40;
  Begin({"a:1", "b:1"});
  EXPECT_EQ(core_->routers_joined(), 2);
  EXPECT_EQ(open_, (Names{"s0/1", "s1/1"}));
  EXPECT_EQ(told_, (Names{"s0/1", "s1/1"})) << "without the worker itself";
  Pass(kSecond);
  EXPECT_EQ(a.had, 1u);
  EXPECT_EQ(b.had, 40u);
}

TEST_F(MembershipsTest, ASilentRouterDelaysNobodyElsesHeartbeats) {
  Router& a = Add("a:1", 11);
  Add("b:1", 22).silent = true;
  Begin({"a:1", "b:1"});
  Pass(10 * kSecond);
  EXPECT_GE(a.heartbeats, 20);
  EXPECT_EQ(core_->routers_joined(), 1);
  EXPECT_TRUE(core_->registered());
}

TEST_F(MembershipsTest, ASilentRouterKeepsNobodyElseFromBeingAsked) {
  for (const char* address : {"a:1", "b:1", "c:1"}) Add(address, 11).silent = true;
  Begin({"a:1", "b:1", "c:1"});
  EXPECT_EQ(address_of_.size(), 3u);
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
  EXPECT_EQ(a.had, 3u);
  EXPECT_EQ(b.had, 1u);
  EXPECT_EQ(told_, (Names{"s0/1", "s1/1"}));
}

TEST_F(MembershipsTest, EndpointsOutliveAllRoutersAndWhatANewOneLists) {
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
  Pass(13 * kSecond);
  EXPECT_EQ(forgotten_, (Names{"10.0.0.1:1"}));
  EXPECT_EQ(told_, (Names{"s0/1"})) << "the new router has not heard of s1 yet";
  EXPECT_NE(EndpointTo({"s1", 1}), 0u) << "which may live all the same";
  EXPECT_EQ(core_->routers_joined(), 1);
}

TEST_F(MembershipsTest, ALostRoutersOtherNameTakesItsPlaceAtTheIntervalThatItAsksFor) {
  Router& lost = Add("a:1", 11, {Stage("s0")});
  Router& other = Add("b:1", 11, {Stage("s0")});
  other.interval_us = 100 * kMs;
  Begin({"a:1", "b:1"});
  EXPECT_EQ(core_->routers_joined(), 1) << "one router, however many names it has";
  ASSERT_GT(lost.heartbeats, 0);
  lost.up = false;
  Pass(5 * kSecond);
  EXPECT_NEAR(other.heartbeats, 45, 6);
  EXPECT_EQ(open_, (Names{"s0/1"}));
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
  EXPECT_LE(routers_["10.0.0.1:1"].heartbeats, 1) << "the one that was asked last holds it";
  // One way to it breaks: the other takes its place.
  routers_["[fd00::1]:1"].up = false;
  Pass(1 * kSecond);
  EXPECT_EQ(core_->routers_joined(), 1);
  EXPECT_GT(routers_["10.0.0.1:1"].heartbeats, 1);
  // And it comes back as the second.
  routers_["[fd00::1]:1"].up = true;
  Pass(10 * kSecond);
  EXPECT_EQ(core_->routers_joined(), 1);
}

// Neither had answered when the other was asked: the router holds the worker by the later call.
TEST_F(MembershipsTest, TwoAddressesThatAreAskedAtOnceSettleOnOne) {
  Add("a:1", 11, {Stage("s0")}).silent = true;
  Add("b:1", 11, {Stage("s0")}).silent = true;
  for (const bool in_order : {true, false}) {
    closed_.clear();
    Begin({"a:1", "b:1"});
    const uint64_t first = LeaseAt("a:1");
    const uint64_t second = LeaseAt("b:1");
    Do(LeaseGranted{in_order ? first : second, 11, 0});
    Do(LeaseGranted{in_order ? second : first, 11, 0});
    EXPECT_EQ(closed_, std::vector<std::string>{"a:1"});
    Do(LeaseEnded{first, absl::AlreadyExistsError("by another call")});
    EXPECT_EQ(core_->routers_joined(), 1);
    EXPECT_EQ(core_->Find(IdOf("a:1"))->state(), RouterMembership::State::kAlias);
    EXPECT_EQ(LeaseAt("b:1"), second);
  }
}

TEST_F(MembershipsTest, ACallThatBreaksIsOpenedAgainSoon) {
  Router& a = Add("a:1", 11, {Stage("s0")});
  Begin({"a:1"});
  Pass(20 * kMs);
  Do(LeaseEnded{LeaseAt("a:1"), absl::UnavailableError("reset")});
  EXPECT_FALSE(core_->registered());
  EXPECT_EQ(told_, (Names{"s0/1"})) << "its members stay";
  Pass(50 * kMs);
  EXPECT_TRUE(core_->registered());
  EXPECT_EQ(a.registrations, 2);
  EXPECT_EQ(a.had, 1u) << "and are told again";
}

TEST_F(MembershipsTest, AHeartbeatThatIsWantedIsSentAtOnceAndOneThatIsNotAnsweredEndsTheCall) {
  Router& a = Add("a:1", 11);
  Begin({"a:1"});
  Pass(20 * kMs);
  const int beats = a.heartbeats;
  Do(HeartbeatWanted{LeaseAt("a:1")});
  EXPECT_EQ(a.heartbeats, beats + 1);
  a.silent = true;
  Do(HeartbeatWanted{LeaseAt("a:1")});
  const int64_t asked_us = now_us_ + kNewsGapUs;
  EXPECT_EQ(TickUntil([this] { return !left_.empty(); }), asked_us + kSecond);
  EXPECT_TRUE(closed_.empty()) << "the router may be late";
  EXPECT_FALSE(core_->registered());
  Pass(50 * kMs + kSecond);
  EXPECT_EQ(closed_, std::vector<std::string>{"a:1"}) << "what is not granted holds nothing";
}

TEST_F(MembershipsTest, ARouterWhoseAddressIsForgottenIsAskedAtItsOtherOneAtOnce) {
  Add("10.0.0.1:1", 11, {Stage("s0")});
  Add("10.0.0.2:1", 11, {Stage("s0")});
  Add("10.0.0.9:1", 99, {Stage("s0")});
  dns_ = std::vector<std::string>{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.9:1"};
  Begin({}, {"router:1"});
  ASSERT_EQ(core_->routers_joined(), 2);
  dns_ = std::vector<std::string>{"10.0.0.1:1", "10.0.0.9:1"};
  Pass(10 * kSecond);
  ASSERT_TRUE(forgotten_.empty()) << "it answers";
  now_us_ += 10 * kSecond;  // This worker stands still, and has heard no router for so long.
  Do(MembershipTick{});
  EXPECT_EQ(forgotten_, (Names{"10.0.0.2:1"}));
  EXPECT_EQ(core_->routers_joined(), 2);
}

TEST_F(MembershipsTest, OneRouterAtThreeAddressesIsJoinedOnceWhicheverBreaks) {
  const std::vector<std::string> addresses = {"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"};
  for (const std::string& address : addresses) Add(address, 11, {Stage("s0")});
  Begin(addresses);
  for (const std::string& address : {addresses[0], addresses[1]}) {
    routers_[address].up = false;
    Pass(kSecond);
    EXPECT_EQ(core_->routers_joined(), 1);
  }
  EXPECT_EQ(core_->Find(IdOf(addresses[2]))->incarnation(), 11u);
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

TEST_F(MembershipsTest, RoomIsMadeByTheLongestSilentThatNobodyNames) {
  const auto address_of = [](int i) { return absl::StrCat("10.0.0.", 100 + i, ":1"); };
  for (int i = 0; i < kMaxRouters + 3; ++i) {
    Add(address_of(i), 100 + static_cast<uint64_t>(i));
    if (i < kMaxRouters) dns_->push_back(address_of(i));
  }
  Begin({}, {"router:1"});
  Pass(kSecond);
  for (const int silent : {7, 4, 9}) {
    routers_[address_of(silent)].up = false;
    Pass(kSecond);
  }
  ASSERT_EQ(core_->routers_joined(), kMaxRouters - 3);
  const auto replace = [&](int old, int newer) {
    std::replace(dns_->begin(), dns_->end(), address_of(old), address_of(newer));
    Do(RouterNameResolved{"router:1", dns_});
  };
  std::erase(*dns_, address_of(7));  // 9 stays named.
  replace(4, kMaxRouters);
  EXPECT_EQ(forgotten_, (Names{address_of(7)}));
  dns_->push_back(address_of(kMaxRouters + 1));
  Do(RouterNameResolved{"router:1", dns_});
  EXPECT_EQ(forgotten_, (Names{address_of(7), address_of(4)}));
  EXPECT_TRUE(left_out_.empty());
  replace(5, kMaxRouters + 2);
  EXPECT_EQ(forgotten_.size(), 2u) << "5 answers";
  EXPECT_EQ(left_out_, (Names{address_of(kMaxRouters + 2)}));
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

TEST_F(MembershipsTest, TheLoadIsNewsWhereRoutersShareTheWorker) {
  Router& a = Add("a:1", 11);
  Add("b:1", 22);
  Begin({"a:1"});
  Pass(20 * kMs);
  int before = a.heartbeats;
  Do(LoadChanged{});
  Pass(110 * kMs);
  EXPECT_EQ(a.heartbeats, before) << "it counts by itself what it has put here";
  core_.reset();
  Begin({"a:1", "b:1"});
  Pass(20 * kMs);
  before = a.heartbeats;
  for (int i = 0; i < 5; ++i) Do(LoadChanged{});
  Pass(110 * kMs);
  EXPECT_EQ(a.heartbeats, before + 1);
}

}  // namespace
}  // namespace baton::worker
