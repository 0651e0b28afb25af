// Endpoints: to members at once, to others when they are wanted, kept until they are found dead.
#include <gtest/gtest.h>

#include "services/worker/core/memberships_fixture.h"

namespace baton::worker {
namespace {

using Told = std::vector<std::string>;

TEST_F(MembershipsTest, MembersAreConnectedToBeforeTheyAreTold) {
  Add("a:1", 11, {Stage("s0"), Stage("s1"), Stage("self")});
  unreachable_ = {"s1"};
  Begin({"a:1"});
  EXPECT_EQ(standing_, (Told{"s0/1"}));
  EXPECT_EQ(unreached_, (Told{"s1/1"}));
  EXPECT_EQ(told_, (Names{"s0/1", "s1/1"})) << "tried, with or without success";
  EXPECT_EQ(tells_, 1);
}

TEST_F(MembershipsTest, WhoIsOfAnotherChainIsNoMember) {
  PeerWorker stranger = Stage("b0");
  stranger.chain_id = "b";
  Add("a:1", 11, {Stage("s0"), stranger, Decode("d0")});  // As in a small cluster.
  Begin({"a:1"});
  EXPECT_EQ(told_, (Names{"s0/1"}));
  EXPECT_EQ(open_, (Names{"d0/1", "s0/1"})) << "whom it may have to do with";
  Do(PeersWanted{{{"b0", 1}}});
  EXPECT_EQ(open_, (Names{"b0/1", "d0/1", "s0/1"}));
  EXPECT_EQ(routers_["a:1"].lookups, 0) << "it has said where that one is";
}

TEST_F(MembershipsTest, WhoIsWantedIsLookedUpAndConnectedToOnce) {
  Add("a:1", 11).others = {Decode("d0"), Decode("d1")};
  Begin({"a:1"});
  Do(PeersWanted{{{"d0", 1}, {"d1", 1}}});
  EXPECT_EQ(standing_, (Told{"d0/1", "d1/1"}));
  EXPECT_EQ(core_->endpoints().Find({"d0", 1})->role, Role::kDecode);
  Do(PeersWanted{{{"d0", 1}}});
  EXPECT_EQ(standing_, (Told{"d0/1", "d1/1", "d0/1"})) << "every wish is answered";
  EXPECT_EQ(routers_["a:1"].lookups, 2);
  EXPECT_EQ(connects_, 2);
}

TEST_F(MembershipsTest, WhoIsWantedTwiceBeforeTheAnswerIsLookedUpOnce) {
  Add("a:1", 11);
  answers_lookups_ = false;
  Begin({"a:1"});
  Do(PeersWanted{{{"d0", 1}}});
  Do(PeersWanted{{{"d0", 1}}});
  EXPECT_EQ(routers_["a:1"].lookups, 1);
  Do(PeerLookedUp{IdOf("a:1"), {"d0", 1}, Decode("d0")});
  EXPECT_EQ(standing_, (Told{"d0/1"}));
  Do(PeerLookedUp{IdOf("a:1"), {"d0", 1}, Decode("d0")});
  EXPECT_EQ(connects_, 1) << "an answer to nothing";
}

TEST_F(MembershipsTest, EveryRouterIsAskedUntilOneKnows) {
  Add("a:1", 11);
  Add("b:1", 22).up = false;
  Add("c:1", 33).others = {Decode("d0")};
  Begin({"a:1", "b:1", "c:1"});
  Do(PeersWanted{{{"d0", 1}}});
  EXPECT_EQ(standing_, (Told{"d0/1"}));
  EXPECT_EQ(routers_["a:1"].lookups, 1);
  EXPECT_EQ(routers_["b:1"].lookups, 0) << "it does not answer";
}

// A router that is wrong, or hostile, gets nobody an endpoint to another worker than it names.
TEST_F(MembershipsTest, AnotherLifeThanTheOneThatIsWantedIsNoAnswer) {
  Add("a:1", 11);
  answers_lookups_ = false;
  Begin({"a:1"});
  Do(PeersWanted{{{"d0", 1}}});
  Do(PeerLookedUp{IdOf("a:1"), {"d0", 1}, Decode("d0", 2)});
  EXPECT_EQ(unreached_, (Told{"d0/1"}));
  EXPECT_EQ(connects_, 0);
}

TEST_F(MembershipsTest, WhomNobodyKnowsIsRefusedForAHeartbeatsTime) {
  Router& router = Add("a:1", 11);
  Begin({"a:1"});
  Do(PeersWanted{{{"d0", 1}}});
  EXPECT_EQ(unreached_, (Told{"d0/1"}));
  router.others = {Decode("d0")};
  Do(PeersWanted{{{"d0", 1}}});
  EXPECT_EQ(unreached_, (Told{"d0/1", "d0/1"}));
  EXPECT_EQ(router.lookups, 1);
  Pass(500 * kMs);
  Do(PeersWanted{{{"d0", 1}}});
  EXPECT_EQ(standing_, (Told{"d0/1"}));
}

TEST_F(MembershipsTest, WithoutARouterNobodyIsFound) {
  Begin({});
  Do(PeersWanted{{{"d0", 1}}});
  EXPECT_EQ(unreached_, (Told{"d0/1"}));
}

TEST_F(MembershipsTest, TheNextRouterIsAskedInPlaceOfOneThatIsForgotten) {
  Add("10.0.0.1:1", 11);
  Add("10.0.0.2:1", 22);
  dns_ = std::vector<std::string>{"10.0.0.1:1", "10.0.0.2:1"};
  Begin({}, {"router:1"});
  answers_lookups_ = false;
  Do(PeersWanted{{{"d0", 1}}});
  ASSERT_EQ(routers_["10.0.0.1:1"].lookups, 1);
  routers_["10.0.0.1:1"].up = false;
  dns_ = std::vector<std::string>{"10.0.0.2:1"};
  Do(RouterNameResolved{"router:1", dns_});
  Pass(10 * kSecond);
  ASSERT_EQ(forgotten_, (Names{"10.0.0.1:1"}));
  EXPECT_EQ(routers_["10.0.0.2:1"].lookups, 1);
  Do(PeerLookedUp{IdOf("10.0.0.2:1"), {"d0", 1}, Decode("d0")});
  EXPECT_EQ(standing_, (Told{"d0/1"}));
}

// Their other ends stand: peers let go of nobody for what a router says.
TEST_F(MembershipsTest, WhatRoutersListClosesNoEndpoint) {
  Router& router = Add("a:1", 11, {Stage("s0")});
  router.others = {Decode("d0")};
  Begin({"a:1"});
  Do(PeersWanted{{{"d0", 1}}});
  const uint64_t to_s0 = EndpointTo({"s0", 1});
  const uint64_t to_d0 = EndpointTo({"d0", 1});
  router.others = {};
  SetView(router, {});
  Pass(kSecond);
  EXPECT_EQ(told_, Names{});
  router.knows = false;  // It has taken the worker for dead.
  Pass(kSecond);
  ASSERT_EQ(router.registrations, 2);
  EXPECT_EQ(EndpointTo({"s0", 1}), to_s0);
  EXPECT_EQ(EndpointTo({"d0", 1}), to_d0);
  EXPECT_TRUE(lost_.empty());
}

// It may be the connection alone that has died. Who wants it meanwhile waits.
TEST_F(MembershipsTest, AnEndpointThatDiesAfterAWhileIsToldAndOpenedAnewAfterAMoment) {
  Router& router = Add("a:1", 11, {Stage("s0")});
  router.others = {Decode("d0")};
  Begin({"a:1"});
  Do(PeersWanted{{{"d0", 1}}});
  Pass(kSecond);
  const uint64_t before = EndpointTo({"s0", 1});
  Do(PeerFailed{before});
  Do(PeerFailed{EndpointTo({"d0", 1})});
  EXPECT_EQ(lost_, (Told{"s0/1", "d0/1"}));
  Pass(400 * kMs);
  Do(PeersWanted{{{"d0", 1}}});
  EXPECT_EQ(connects_, 2) << "not at once";
  EXPECT_TRUE(unreached_.empty());
  Pass(100 * kMs);
  EXPECT_GT(EndpointTo({"s0", 1}), before);
  EXPECT_NE(EndpointTo({"d0", 1}), 0u);
  EXPECT_EQ(router.lookups, 2) << "where it is now; that of a member is known";
  Do(PeerFailed{before});
  EXPECT_EQ(lost_.size(), 2u) << "the death of a former one is no news";
}

TEST_F(MembershipsTest, AMembersEndpointThatDiesAtOnceIsOpenedAnewAfterAMoment) {
  Add("a:1", 11, {Stage("s0")}).interval_us = 10 * kSecond;
  Begin({"a:1"});
  Do(PeerFailed{EndpointTo({"s0", 1})});
  EXPECT_EQ(EndpointTo({"s0", 1}), 0u);
  const int64_t died_us = now_us_;
  EXPECT_EQ(TickUntil([this] { return EndpointTo({"s0", 1}) != 0; }), died_us + 500 * kMs);
}

// It leads nowhere: a peer that is dead, and whose lease is not over yet.
TEST_F(MembershipsTest, WhoseEndpointDiesAtOnceIsRefusedForAMoment) {
  Add("a:1", 11).others = {Decode("d0")};
  Begin({"a:1"});
  Do(PeersWanted{{{"d0", 1}}});
  Pass(kMs);
  Do(PeerFailed{EndpointTo({"d0", 1})});
  Do(PeersWanted{{{"d0", 1}}});
  EXPECT_EQ(unreached_, (Told{"d0/1"}));
  EXPECT_EQ(connects_, 1);
}

TEST_F(MembershipsTest, OfTwoLivesOfOneNameTheOneThatCameLastIsTold) {
  Add("a:1", 11, {Stage("s0", 1)});
  Router& b = Add("b:1", 22, {Stage("s0", 1)});
  Begin({"a:1", "b:1"});
  SetView(b, {Stage("s0", 2)});
  Pass(kSecond);
  EXPECT_EQ(told_, (Names{"s0/2"}));
  SetView(routers_["a:1"], {Stage("s0", 1), Stage("s1")});
  Pass(kSecond);
  EXPECT_EQ(told_, (Names{"s0/2", "s1/1"})) << "a late router lists it still";
}

TEST_F(MembershipsTest, WhoWillLeaveConnectsToThoseAloneWhoAreWanted) {
  Router& a = Add("a:1", 11, {Stage("s0", 5)});
  a.others = {Decode("d0")};
  Begin({"a:1"});
  Do(StopAsked{});
  const int connects = connects_;
  SetView(a, {Stage("s0", 5), Stage("s1", 6)});
  Pass(3 * kSecond);
  EXPECT_EQ(connects_, connects);
  EXPECT_NE(EndpointTo({"s0", 5}), 0u) << "what stands stays";
  Do(PeersWanted{{{"d0", 1}}});
  EXPECT_NE(EndpointTo({"d0", 1}), 0u) << "a request that it has begun may need it";
  EXPECT_GT(core_->NextDeadlineUs(now_us_), now_us_);
}

TEST_F(MembershipsTest, AListThatChangesNobodyIsNoNewsToTheWorker) {
  Router& a = Add("a:1", 11, {Stage("s0")});
  Begin({"a:1"});
  const int tells = tells_;
  SetView(a, {Stage("s0")});
  Pass(2 * kSecond);
  EXPECT_EQ(a.had, 2u);
  EXPECT_EQ(tells_, tells);
}

TEST_F(MembershipsTest, TheRanksOfADecodeStageNeedNoEndpoints) {
  MembershipOptions options;
  options.self = Decode("self");
  options.self.decode_id = "7";
  options.router_addresses = {"a:1"};
  PeerWorker rank = Decode("d1");
  rank.decode_id = "7";
  Add("a:1", 11, {rank});
  core_ = std::make_unique<Memberships>(options, now_us_);
  Do(MembershipTick{});
  EXPECT_EQ(told_, (Names{"d1/1"}));
  EXPECT_EQ(connects_, 0);
}

TEST(EndpointsTest, ThereAreNeverMoreThanTheLimit) {
  Endpoints endpoints;
  for (size_t i = 0; i < Endpoints::kMost; ++i) {
    ASSERT_EQ(endpoints.Begin({absl::StrCat("d", i), 1}), Endpoints::Want::kNew);
  }
  EXPECT_EQ(endpoints.Begin({"one-more", 1}), Endpoints::Want::kRefused);
  endpoints.Failed({"d0", 1}, 5);
  endpoints.Expire(5);
  EXPECT_EQ(endpoints.Begin({"one-more", 1}), Endpoints::Want::kNew) << "failures make room";
}

}  // namespace
}  // namespace baton::worker
