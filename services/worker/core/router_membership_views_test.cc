// What one router's views say over time: who has joined again, who is listed since when, what
// another address of the same router takes over.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "services/worker/core/router_membership.h"

namespace baton::worker {
namespace {

using State = RouterMembership::State;

constexpr int64_t kSecond = 1'000'000;
constexpr uint64_t kOwnVersion = 1;

PeerWorker Joined(const std::string& id, uint64_t version) {
  PeerWorker worker;
  worker.instance = {id, 1};
  worker.joined_version = version;
  return worker;
}
std::vector<std::string> Names(const RouterMembership::Listed& workers) {
  std::vector<std::string> names;
  for (const auto& [instance, worker] : workers) names.push_back(instance.id);
  return names;
}

class RouterViewsTest : public testing::Test {
 protected:
  void Join(uint64_t incarnation = 7) {
    ASSERT_TRUE(router_.BeginRpc(now_us_).has_value());
    router_.Registered(incarnation, 0, now_us_);
  }
  // A heartbeat that takes a second.
  void Beat(uint64_t version, const std::vector<PeerWorker>& workers = {}) {
    now_us_ = std::max(now_us_, router_.next_rpc_us());
    asked_us_ = now_us_;
    ASSERT_TRUE(router_.BeginRpc(now_us_).has_value());
    now_us_ += kSecond;
    router_.HeartbeatTaken(version, workers, kOwnVersion, now_us_);
  }
  std::vector<std::string> Rejoined() {
    std::vector<std::string> names;
    for (const auto& rejoined : router_.TakeRejoined()) names.push_back(rejoined.peer.id);
    return names;
  }

  int64_t now_us_ = 10 * kSecond;
  int64_t asked_us_ = 0;
  RouterMembership router_{"r:1", {.grace_us = 60 * kSecond}, now_us_};
};

TEST_F(RouterViewsTest, TellsWhenTheRouterHeldTheWorker) {
  Join();
  EXPECT_EQ(router_.taken_us(), now_us_);
  Beat(1);
  EXPECT_EQ(router_.taken_us(), asked_us_) << "when it was asked, not when it answered";
  router_.Unknown(now_us_);
  EXPECT_TRUE(router_.forgotten());
  Join();
  EXPECT_FALSE(router_.forgotten());
}

TEST_F(RouterViewsTest, APeerIsListedSinceItCameOrCameAgain) {
  Join();
  Beat(1, {Joined("a", 5)});
  const int64_t since_us = now_us_;
  EXPECT_EQ(router_.ListedSinceUs({"a", 1}), since_us);
  EXPECT_EQ(router_.ListedSinceUs({"b", 1}), kNeverUs);
  Beat(2, {Joined("a", 5), Joined("b", 6)});
  EXPECT_EQ(router_.ListedSinceUs({"a", 1}), since_us);
  EXPECT_TRUE(Rejoined().empty()) << "b is new, a the same";
  const int64_t held_us = asked_us_;
  Beat(3, {Joined("a", 9), Joined("b", 6)});
  EXPECT_EQ(router_.ListedSinceUs({"a", 1}), now_us_);
  const auto rejoined = router_.TakeRejoined();
  ASSERT_EQ(rejoined.size(), 1u);
  EXPECT_EQ(rejoined[0].peer.id, "a");
  EXPECT_EQ(rejoined[0].held_until_us, held_us) << "the router was asked then, and had it";
}

TEST_F(RouterViewsTest, AVersionThatItSaidBeforeTellsHowLongThePeerWasHeld) {
  Join();
  Beat(1, {Joined("a", 5)});
  Beat(1);
  const int64_t held_us = asked_us_;
  Beat(2, {Joined("a", 9)});
  EXPECT_EQ(router_.TakeRejoined().at(0).held_until_us, held_us);
}

TEST_F(RouterViewsTest, WhoWasKeptAndIsListedWithAnotherVersionHasJoinedAgain) {
  for (const uint64_t version : {5, 9}) {
    const std::string id = "a" + std::to_string(version);
    Join();
    Beat(router_.view_version() + 1, {Joined(id, 5)});
    router_.Unknown(now_us_);
    Join();
    Beat(2);
    ASSERT_TRUE(router_.kept().contains({id, 1}));
    Beat(3, {Joined(id, version)});
    EXPECT_EQ(Rejoined().size(), version == 9 ? 1u : 0u);
    router_.Unknown(now_us_);
  }
}

TEST_F(RouterViewsTest, VersionsOfWhoIsKeptAreOfOneLifeOfTheRouter) {
  Join();
  Beat(1, {Joined("a", 5)});
  router_.Unknown(now_us_);
  Join();
  Beat(2);  // Kept by now.
  router_.Unknown(now_us_);
  Join(/*incarnation=*/8);
  Beat(1, {Joined("a", 9)});
  EXPECT_TRUE(Rejoined().empty());
}

TEST_F(RouterViewsTest, AnotherAddressTakesOverAllThatIsKnown) {
  Join();
  Beat(1, {Joined("a", 5), Joined("b", 6)});
  router_.Unknown(now_us_);
  Join();
  const int64_t keep_until_us = now_us_ + 60 * kSecond;
  Beat(2, {Joined("a", 5)});
  const int64_t since_us = router_.ListedSinceUs({"a", 1});
  const int64_t held_us = asked_us_;
  RouterMembership other("r:2", {.grace_us = 60 * kSecond}, now_us_);
  other.Registered(7, 0, now_us_);
  other.TakeOver(router_, now_us_);
  EXPECT_EQ(other.ListedSinceUs({"a", 1}), since_us);
  EXPECT_EQ(Names(other.kept()), std::vector<std::string>{"b"});
  EXPECT_EQ(other.keep_until_us(), keep_until_us);
  EXPECT_TRUE(router_.kept().empty());
  EXPECT_EQ(router_.ListedSinceUs({"a", 1}), kNeverUs);
  ASSERT_TRUE(other.BeginRpc(now_us_).has_value());
  other.HeartbeatTaken(3, {Joined("a", 9)}, kOwnVersion, now_us_);
  EXPECT_EQ(other.TakeRejoined().at(0).held_until_us, held_us);
}

TEST_F(RouterViewsTest, WhatAnotherAddressKnewIsKeptWithoutItsVersions) {
  Join();
  Beat(1, {Joined("a", 5), Joined("b", 6)});
  router_.Unknown(now_us_);
  Join();
  Beat(2, {Joined("a", 5)});
  RouterMembership other("r:2", {.grace_us = 60 * kSecond}, now_us_);
  other.Registered(7, 0, now_us_);
  other.Adopt(router_, now_us_);
  EXPECT_EQ(Names(other.kept()), (std::vector<std::string>{"a", "b"})) << "listed, and kept itself";
  ASSERT_TRUE(other.BeginRpc(now_us_).has_value());
  other.HeartbeatTaken(3, {Joined("a", 9), Joined("b", 9)}, kOwnVersion, now_us_);
  EXPECT_TRUE(other.TakeRejoined().empty());
}

TEST_F(RouterViewsTest, AnAliasIsNoRefusalAndARefusalNoAlias) {
  ASSERT_TRUE(router_.BeginRpc(now_us_).has_value());
  router_.Refused(absl::FailedPreconditionError("rank taken"), /*for_good=*/false, now_us_);
  now_us_ = router_.next_rpc_us();
  ASSERT_TRUE(router_.BeginRpc(now_us_).has_value());
  router_.IsAlias(7, now_us_);
  EXPECT_TRUE(router_.refusal().ok());
  now_us_ = router_.next_rpc_us();
  ASSERT_TRUE(router_.BeginRpc(now_us_).has_value());
  router_.Refused(absl::FailedPreconditionError("rank taken"), /*for_good=*/false, now_us_);
  EXPECT_EQ(router_.state(), State::kJoining);
}

}  // namespace
}  // namespace baton::worker
