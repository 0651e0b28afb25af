// Endpoints to the peers of the routers' views: opened, lost, withdrawn and opened anew.
#include <gtest/gtest.h>

#include "services/worker/core/memberships_fixture.h"

namespace baton::worker {
namespace {

// To its peers it was dead: they have let go of it, and its ends of the connections may be gone.
TEST_F(MembershipsTest, WhomARouterHasGivenUpConnectsToEverybodyAnew) {
  Router& router = Add("a:1", 11, {Stage("s0"), Stage("s1")});
  Begin({"a:1"});
  const uint64_t before = EndpointTo({"s0", 1});
  ASSERT_NE(before, 0u);
  router.knows = false;
  SetView(router, {Stage("s0"), Stage("s1"), Stage("s2")});
  Pass(kSecond);
  EXPECT_EQ(router.registrations, 2);
  EXPECT_EQ(closed_.size(), 2u);
  EXPECT_EQ(lost_, 1);
  EXPECT_GT(EndpointTo({"s0", 1}), before);
  EXPECT_EQ(open_, (Names{"s0/1", "s1/1", "s2/1"}));
  EXPECT_EQ(router.applied, router.version);
  EXPECT_TRUE(router.unconnected.empty());
}

TEST_F(MembershipsTest, ItTellsNoRouterOfAViewBeforeEachEndpointHasBeenTriedAnew) {
  Router& router = Add("a:1", 11, {Stage("s0")});
  Begin({"a:1"});
  ASSERT_EQ(router.applied, 1u);
  router.knows = false;
  answers_connects_ = false;
  Pass(kSecond);
  EXPECT_EQ(router.registrations, 2);
  EXPECT_EQ(router.applied, 0u);
  Do(late_answer_);
  EXPECT_EQ(router.applied, 1u);
}

// Its peers have kept their ends of it: they wait for a router that starts anew to list it.
TEST_F(MembershipsTest, EndpointsOutliveALifeOfTheRouter) {
  Router& router = Add("a:1", 11, {Stage("s0")});
  Begin({"a:1"});
  router.incarnation = 12;
  Pass(kSecond);
  EXPECT_EQ(router.registrations, 2);
  EXPECT_TRUE(closed_.empty());
}

TEST_F(MembershipsTest, WhomAnotherRouterHasHeldAllTheWhileKeepsItsEndpoints) {
  Add("a:1", 11, {Stage("s0")});
  Add("b:1", 22, {Stage("s0")});
  Begin({"a:1", "b:1"});
  Pass(6 * kSecond);
  routers_["a:1"].knows = false;
  Pass(kSecond);
  EXPECT_EQ(routers_["a:1"].registrations, 2);
  EXPECT_TRUE(closed_.empty());
}

// After a pause longer than its leases it hears so from one after the other.
TEST_F(MembershipsTest, WhomAllRoutersHaveGivenUpConnectsAnewOnce) {
  Add("a:1", 11, {Stage("s0")});
  Add("b:1", 22, {Stage("s0")});
  Begin({"a:1", "b:1"});
  routers_["a:1"].knows = routers_["b:1"].knows = false;
  Pass(kSecond);
  EXPECT_EQ(routers_["a:1"].registrations + routers_["b:1"].registrations, 4);
  EXPECT_EQ(closed_.size(), 1u);
  EXPECT_EQ(open_, (Names{"s0/1"}));
}

// `worker` as a view lists it that has held it since `version`.
PeerWorker Joined(PeerWorker worker, uint64_t version) {
  worker.joined_version = version;
  return worker;
}

// It was given up and has let go of its endpoints, and no view came in between.
TEST_F(MembershipsTest, WhoHasJoinedAgainBetweenTwoViewsIsConnectedToAnew) {
  const PeerWorker self = Joined(Decode("self"), 4);
  Router& router = Add("a:1", 11, {self, Joined(Stage("s0"), 2), Joined(Stage("s1"), 3)});
  Begin({"a:1"});
  const uint64_t to_s0 = EndpointTo({"s0", 1});
  const uint64_t to_s1 = EndpointTo({"s1", 1});
  ASSERT_EQ(router.applied, 1u);
  answers_connects_ = false;
  SetView(router, {self, Joined(Stage("s0"), 9), Joined(Stage("s1"), 3)});
  Pass(kSecond);
  EXPECT_EQ(closed_, (std::vector<uint64_t>{to_s0}));
  EXPECT_EQ(lost_, 1);
  EXPECT_EQ(router.applied, 1u) << "the endpoint has not been tried again";
  EXPECT_EQ(router.unconnected, (std::vector<uint64_t>{1}));
  Do(late_answer_);
  EXPECT_GT(EndpointTo({"s0", 1}), to_s0);
  EXPECT_EQ(EndpointTo({"s1", 1}), to_s1);
  EXPECT_EQ(router.applied, 2u);
  EXPECT_TRUE(router.unconnected.empty());
  Pass(2 * kSecond);
  EXPECT_EQ(closed_.size(), 1u) << "once";
}

// Its endpoints are of after that.
TEST_F(MembershipsTest, WhoHasJoinedAgainBeforeThisWorkerIsConnectedToAlready) {
  Router& router = Add("a:1", 11, {Joined(Decode("self"), 4), Joined(Stage("s0"), 2)});
  Begin({"a:1"});
  SetView(router, {Joined(Decode("self"), 10), Joined(Stage("s0"), 9)});
  Pass(kSecond);
  EXPECT_TRUE(closed_.empty());
}

TEST_F(MembershipsTest, WhomAnotherRouterHasListedAllTheWhileIsStillConnected) {
  Add("a:1", 11, {Joined(Stage("s0"), 2)});
  Add("b:1", 22, {Joined(Stage("s0"), 7)});
  Begin({"a:1", "b:1"});
  Pass(2 * kSecond);
  SetView(routers_["a:1"], {Joined(Stage("s0"), 9)});
  Pass(2 * kSecond);
  EXPECT_TRUE(closed_.empty());
  SetView(routers_["b:1"], {Joined(Stage("s0"), 12)});
  Pass(kSecond);
  EXPECT_TRUE(closed_.empty()) << "the first has had it again since before";
}

TEST_F(MembershipsTest, WhomAllRoutersHaveHadAgainIsConnectedToAnewOnce) {
  Add("a:1", 11, {Joined(Stage("s0"), 2)});
  Add("b:1", 22, {Joined(Stage("s0"), 7)});
  Begin({"a:1", "b:1"});
  Pass(2 * kSecond);
  SetView(routers_["a:1"], {Joined(Stage("s0"), 9)});
  SetView(routers_["b:1"], {Joined(Stage("s0"), 12)});
  Pass(2 * kSecond);
  EXPECT_EQ(closed_.size(), 1u);
  EXPECT_EQ(open_, (Names{"s0/1"}));
}

TEST_F(MembershipsTest, OfThoseWhoHaveJoinedAgainEachIsLookedAtByItself) {
  unreachable_ = {"s1"};
  Add("a:1", 11, {Joined(Stage("s0"), 2), Joined(Stage("s1"), 2), Joined(Stage("s2"), 2)});
  Add("b:1", 22, {Joined(Stage("s0"), 7)});
  Begin({"a:1", "b:1"});
  Pass(2 * kSecond);
  const uint64_t to_s2 = EndpointTo({"s2", 1});
  SetView(routers_["a:1"],
          {Joined(Stage("s0"), 9), Joined(Stage("s1"), 9), Joined(Stage("s2"), 9)});
  Pass(kSecond);
  EXPECT_EQ(closed_, (std::vector<uint64_t>{to_s2})) << "b has had s0; to s1 there was none";
}

// To the very moment: since the first was asked last, when it had the peer still.
TEST_F(MembershipsTest, WhomAnotherRouterHasListedSinceTheFirstHadItLastIsStillConnected) {
  Add("a:1", 11, {Joined(Stage("s0"), 2)});
  Add("b:1", 22, {Joined(Stage("s0"), 7)});
  Begin({"a:1", "b:1"});
  now_us_ += 20 * kMs;
  SetView(routers_["a:1"], {Joined(Stage("s0"), 9)});
  Do(WatchNoticed{IdOf("a:1")});
  EXPECT_EQ(routers_["a:1"].applied, 2u);
  EXPECT_TRUE(closed_.empty());
}

TEST_F(MembershipsTest, RoutersThatListWhoHasJoinedAgainHearAtOnceThatItIsNotConnected) {
  Router& a = Add("a:1", 11, {Joined(Stage("s0", 5), 2)});
  Router& b = Add("b:1", 22);
  Begin({"a:1", "b:1"});
  Pass(2 * kSecond);
  SetView(b, {Joined(Stage("s0", 5), 7)});
  now_us_ += 20 * kMs;
  Do(WatchNoticed{IdOf("b:1")});
  ASSERT_EQ(b.applied, 2u);
  SetView(a, {Joined(Stage("s0", 5), 9)});
  answers_connects_ = false;
  now_us_ += 20 * kMs;
  Do(WatchNoticed{IdOf("a:1")});
  ASSERT_EQ(closed_.size(), 1u) << "b has listed it only since";
  EXPECT_EQ(b.unconnected, (std::vector<uint64_t>{5}));
}

TEST_F(MembershipsTest, VersionsOfAnotherLifeOfARouterSayNothing) {
  Router& router = Add("a:1", 11, {Joined(Stage("s0"), 2)});
  Begin({"a:1"});
  router.incarnation = 12;
  SetView(router, {Joined(Stage("s0"), 5)});
  Pass(kSecond);
  ASSERT_EQ(router.registrations, 2);
  EXPECT_TRUE(closed_.empty());
  SetView(router, {Joined(Stage("s0"), 8)});
  Pass(kSecond);
  EXPECT_EQ(closed_.size(), 1u) << "those of this life do";
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

TEST_F(MembershipsTest, AnUnreachablePeerHoldsUpNobodyElse) {
  Router& a = Add("a:1", 11, {Stage("s0", 5)});
  Router& b = Add("b:1", 22, {Stage("s0", 5), Stage("far", 9), Stage("farther", 7)});
  unreachable_ = {"far", "farther"};
  Begin({"a:1", "b:1"});
  EXPECT_EQ(a.applied, 1u);
  EXPECT_EQ(b.applied, 1u);
  EXPECT_EQ(a.unconnected, (std::vector<uint64_t>{}));
  EXPECT_EQ(b.unconnected, (std::vector<uint64_t>{7, 9})) << "in order";
  EXPECT_EQ(told_, (Names{"s0/5"}));
  SetView(b, {Stage("s0", 5), Stage("far", 9), Stage("s1", 8)});  // "s1" comes later.
  Pass(kSecond);
  EXPECT_EQ(b.applied, 2u);
  EXPECT_EQ(b.unconnected, (std::vector<uint64_t>{9}));
  unreachable_ = {};
  Pass(2 * kSecond);
  EXPECT_EQ(b.unconnected, (std::vector<uint64_t>{}));
  EXPECT_EQ(told_, (Names{"s0/5", "s1/8", "far/9"}));
}

TEST_F(MembershipsTest, ALostEndpointIsWithdrawnAtOnceAndOpenedAnewAfterAWhile) {
  Router& a = Add("a:1", 11, {Stage("s0", 5), Stage("s1", 6)});
  Begin({"a:1"});
  Pass(20 * kMs);
  const int beats = a.heartbeats;
  unreachable_ = {"s0"};
  open_.erase("s0/5");
  Do(PeerFailed{EndpointTo({"s0", 5})});
  EXPECT_EQ(lost_, 1);
  EXPECT_EQ(a.heartbeats, beats + 1) << "at once";
  EXPECT_EQ(a.applied, 1u);
  EXPECT_EQ(a.unconnected, (std::vector<uint64_t>{5}));
  EXPECT_FALSE(Stands({"s0", 5}));
  Pass(3 * kSecond);
  EXPECT_EQ(a.unconnected, (std::vector<uint64_t>{5}));
  unreachable_ = {};
  Pass(500 * kMs);
  EXPECT_EQ(open_, (Names{"s0/5", "s1/6"}));
  EXPECT_TRUE(Stands({"s0", 5}));
  Pass(10 * kMs);
  EXPECT_EQ(a.unconnected, (std::vector<uint64_t>{})) << "without waiting for an interval";
}

TEST_F(MembershipsTest, AnEndpointThatDiesBeforeItIsKnownIsClosedAndOpenedAnew) {
  Router& a = Add("a:1", 11, {Stage("s0", 5)});
  answers_connects_ = false;
  Begin({"a:1"});
  Pass(20 * kMs);
  EXPECT_EQ(a.applied, 0u);
  Do(PeerFailed{last_endpoint_});
  answers_connects_ = true;
  Do(late_answer_);
  EXPECT_EQ(closed_, std::vector<uint64_t>{1});
  EXPECT_EQ(lost_, 0) << "it never stood";
  EXPECT_EQ(a.applied, 1u) << "tried in vain";
  EXPECT_EQ(a.unconnected, (std::vector<uint64_t>{5}));
  Pass(600 * kMs);
  EXPECT_EQ(EndpointTo({"s0", 5}), 2u);
  EXPECT_EQ(a.unconnected, (std::vector<uint64_t>{}));
}

TEST_F(MembershipsTest, TheDeathOfAFormerEndpointIsNoNews) {
  Router& a = Add("a:1", 11, {Stage("s0", 5)});
  Begin({"a:1"});
  Pass(20 * kMs);
  SetView(a, {});
  Pass(kSecond);
  SetView(a, {Stage("s0", 5)});
  Pass(kSecond);
  ASSERT_EQ(EndpointTo({"s0", 5}), 2u);
  const int lost = lost_;
  Do(PeerFailed{1});
  EXPECT_EQ(lost_, lost);
  EXPECT_EQ(EndpointTo({"s0", 5}), 2u);
}

TEST_F(MembershipsTest, AnAnswerThatComesTooLateLeavesNothingOpen) {
  Router& a = Add("a:1", 11, {Stage("s0", 5)});
  answers_connects_ = false;
  Begin({"a:1"});
  Pass(20 * kMs);
  SetView(a, {});
  Pass(kSecond);
  Do(late_answer_);
  EXPECT_EQ(open_, Names{});
  EXPECT_FALSE(Stands({"s0", 5}));
}

TEST_F(MembershipsTest, WhoWillLeaveConnectsToNobodyNew) {
  Router& a = Add("a:1", 11, {Stage("s0", 5)});
  Begin({"a:1"});
  Pass(20 * kMs);
  Do(StopAsked{});
  const int connects = connects_;
  SetView(a, {Stage("s0", 5), Stage("s1", 6)});
  Pass(3 * kSecond);
  EXPECT_EQ(connects_, connects);
  EXPECT_TRUE(Stands({"s0", 5})) << "what stands stays";
  EXPECT_EQ(a.applied, 2u) << "routers don't wait for it";
  EXPECT_EQ(a.unconnected, (std::vector<uint64_t>{6}));
  EXPECT_GT(core_->NextDeadlineUs(now_us_), now_us_);
}

TEST_F(MembershipsTest, TheWorkerHearsOfEachChangeOnceAndAtOnce) {
  Router& a = Add("a:1", 11, {Joined(Stage("s0"), 2), Joined(Stage("s1"), 2), Stage("s2")});
  answers_connects_ = false;
  Begin({"a:1"});
  Pass(20 * kMs);
  EXPECT_EQ(gained_, 0);
  const PeersConnected all = late_answer_;
  const int beats = a.heartbeats;
  Do(PeersConnected{{all.standing.at(0)}, {}});
  EXPECT_EQ(gained_, 1);
  EXPECT_EQ(told_, (Names{"s0/1"}));
  EXPECT_EQ(a.heartbeats, beats) << "its view is not applied yet";
  a.silent_until_us = kNeverUs;  // Nothing but this event comes.
  Do(PeersConnected{{all.standing.at(1)}, {}});
  EXPECT_EQ(gained_, 2);
  EXPECT_EQ(told_, (Names{"s0/1", "s1/1"}));
  EXPECT_EQ(core_->peers().at(0).joined_version, 0u) << "which is of views";
  const int tells = tells_;
  Do(PeersConnected{{}, {all.standing.at(2).peer}});
  EXPECT_EQ(gained_, 2);
  EXPECT_EQ(tells_, tells);
}

TEST_F(MembershipsTest, AViewThatChangesNobodyIsNoNewsToTheWorker) {
  Router& a = Add("a:1", 11, {Stage("s0")});
  Begin({"a:1"});
  const int tells = tells_;
  SetView(a, {Joined(Stage("s0"), 4)});
  Pass(2 * kSecond);
  EXPECT_EQ(a.applied, 2u);
  EXPECT_EQ(tells_, tells);
}

}  // namespace
}  // namespace baton::worker
