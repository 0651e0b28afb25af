// What members are told of one another, which links make a chain or a decode service ready, and
// pairs that could not connect.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "services/router/core/membership_ranks_fixture.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr int64_t kApartUs = 500;

// A chain of two stages of two ranks, one of a single stage, and a decode service of two ranks.
class MembershipListsTest : public MembershipRanksTest {
 protected:
  MembershipListsTest() {
    Begin(/*told_of_all=*/0);
    single_.instance.incarnation = 50;
  }
  void Begin(int told_of_all) {
    members_ = Membership({.lease_us = 10'000,
                           .pair_grace_us = 5000,
                           .told_of_all = told_of_all,
                           .unconnected_us = kApartUs});
  }
  void JoinEverybody() {
    JoinAll(Together(Together(grid_, service_), {single_}));
    members_.TakeRelisted();
  }
  const Worker& At(const WorkerInfo& worker) const { return *members_.Find(worker.instance); }
  std::vector<std::string> ListFor(const WorkerInfo& worker) const {
    std::vector<std::string> names;
    for (const WorkerInfo& member : members_.ListFor(At(worker)))
      names.push_back(member.instance.id);
    return names;
  }
  std::vector<std::string> Relisted() {
    std::vector<std::string> names;
    for (const InstanceRef& member : members_.TakeRelisted()) names.push_back(member.id);
    return names;
  }
  std::vector<std::string> Ready() const {
    std::vector<std::string> names;
    for (const Pair& pair : members_.ReadyPairs()) {
      names.push_back(pair.chain.stage0.id + "+" + pair.decode.id);
    }
    EXPECT_EQ(members_.CountReadyPairs(), names.size());
    EXPECT_EQ(members_.HasReadyPair(), !names.empty());
    return names;
  }
  Pair PairOf(const std::string& stage0, const std::string& decode) const {
    for (const Pair& pair : members_.ReadyPairs()) {
      if (pair.chain.stage0.id == stage0 && pair.decode.id == decode) return pair;
    }
    ADD_FAILURE() << stage0 << " and " << decode << " are no pair";
    return {};
  }

  std::vector<WorkerInfo> grid_ = Grid();
  std::vector<WorkerInfo> service_ = Service();
  WorkerInfo single_ = TestStage("c1", 0, 1);
};

// ---- Who hears of whom ----

TEST_F(MembershipListsTest, AMemberHearsOfItsOwnChainOrDecodeServiceAlone) {
  JoinEverybody();
  for (const WorkerInfo& rank : grid_) {
    EXPECT_THAT(ListFor(rank), ElementsAre("c0-0-0", "c0-0-1", "c0-1-0", "c0-1-1"));
  }
  for (const WorkerInfo& rank : service_) EXPECT_THAT(ListFor(rank), ElementsAre("d0-0", "d0-1"));
  EXPECT_THAT(ListFor(single_), ElementsAre("c1-0"));
}

TEST_F(MembershipListsTest, OnlyItsOwnMembersComingAndGoingConcernsAMember) {
  JoinEverybody();
  ASSERT_TRUE(members_.Remove(service_[1].instance, now_us_, lost_));
  EXPECT_THAT(Relisted(), ElementsAre("d0-0"));
  EXPECT_THAT(ListFor(service_[0]), ElementsAre("d0-0"));
  EXPECT_THAT(Relisted(), IsEmpty()) << "once";

  service_[1].instance.incarnation = 200;
  ASSERT_EQ(Join(service_[1]), absl::OkStatus());
  EXPECT_THAT(Relisted(), ElementsAre("d0-0", "d0-1"));
  EXPECT_EQ(members_.ListFor(At(service_[0])).back(), service_[1]) << "the life that is here";

  ASSERT_EQ(Join(TestDecode("d9")), absl::OkStatus());
  EXPECT_THAT(Relisted(), ElementsAre("d9"));
  EXPECT_THAT(ListFor(grid_[0]), SizeIs(4));
}

TEST_F(MembershipListsTest, ALoadOrReadinessIsNoNewsToMembers) {
  JoinEverybody();
  Beat(grid_[1]);
  members_.Suspect(grid_[2].instance, now_us_);
  members_.SaysDraining(grid_[3].instance);
  ASSERT_EQ(Join(grid_[0]), absl::OkStatus()) << "again, with the same words";
  EXPECT_THAT(Relisted(), IsEmpty());
}

// Eight workers are few, nine are many.
TEST_F(MembershipListsTest, InASmallClusterEverybodyHearsOfEverybody) {
  Begin(/*told_of_all=*/8);
  JoinEverybody();
  EXPECT_THAT(ListFor(grid_[0]), SizeIs(7));
  WorkerInfo eighth = TestDecode("d8");
  ASSERT_EQ(Join(eighth), absl::OkStatus());
  EXPECT_THAT(Relisted(), SizeIs(8));
  EXPECT_THAT(ListFor(grid_[0]), SizeIs(8));

  ASSERT_EQ(Join(TestDecode("d9")), absl::OkStatus());
  EXPECT_THAT(Relisted(), SizeIs(9)) << "everybody's list is shorter";
  EXPECT_THAT(ListFor(grid_[0]), ElementsAre("c0-0-0", "c0-0-1", "c0-1-0", "c0-1-1"));
  ASSERT_EQ(Join(TestDecode("d10")), absl::OkStatus());
  EXPECT_THAT(Relisted(), ElementsAre("d10"));
  ASSERT_TRUE(members_.Remove({"d10", 1}, now_us_, lost_));
  EXPECT_THAT(Relisted(), IsEmpty());

  ASSERT_TRUE(members_.Remove(eighth.instance, now_us_, lost_));
  EXPECT_THAT(Relisted(), SizeIs(8)) << "few again";
  EXPECT_THAT(ListFor(grid_[0]), SizeIs(8));
}

// ---- Links ----

TEST_F(MembershipListsTest, AGroupWhoseSpeakerLinksAnotherLifeOfAMemberIsNotReady) {
  JoinEverybody();
  ASSERT_THAT(Ready(), ElementsAre("c0-0-0+d0-0", "c1-0+d0-0"));
  const std::vector<uint64_t> before = LinkedBy(members_, grid_[0].instance);
  ASSERT_THAT(before, SizeIs(4));
  members_.Suspect(grid_[3].instance, now_us_);
  grid_[3].instance.incarnation = 99;
  ASSERT_EQ(Join(grid_[3]), absl::OkStatus());
  Beat(grid_[3]);
  BeatLinking(grid_[0], before);
  EXPECT_THAT(Ready(), ElementsAre("c1-0+d0-0"));
  Beat(grid_[0]);
  EXPECT_THAT(Ready(), ElementsAre("c0-0-0+d0-0", "c1-0+d0-0"));
}

TEST_F(MembershipListsTest, LinksOfOthersBesideItsMembersDoNoHarm) {
  JoinEverybody();
  std::vector<uint64_t> linked = LinkedBy(members_, service_[0].instance);
  linked.insert(linked.begin(), 77);  // In no order, and of one that has left.
  BeatLinking(service_[0], linked);
  EXPECT_THAT(Ready(), SizeIs(2));
  BeatLinking(service_[0], {service_[0].instance.incarnation});
  EXPECT_THAT(Ready(), IsEmpty());
  EXPECT_EQ(members_.WhatIsMissing(), "decode service 0 has not linked its processes yet");
}

TEST_F(MembershipListsTest, OnlyTheSpeakersWordCounts) {
  JoinEverybody();
  BeatLinking(grid_[1], {});
  BeatLinking(service_[1], {7});
  BeatLinking(single_, {});
  EXPECT_THAT(Ready(), SizeIs(2));
}

// ---- Pairs that could not connect ----

TEST_F(MembershipListsTest, ThatPairAloneIsLeftAloneForItsTime) {
  JoinEverybody();
  WorkerInfo other = TestDecode("d9");
  other.instance.incarnation = 60;
  JoinAll({other});
  ASSERT_THAT(Ready(), SizeIs(4));
  now_us_ += 10;
  members_.CouldNotConnect(PairOf("c0-0-0", "d0-0"), now_us_);
  EXPECT_THAT(Ready(), UnorderedElementsAre("c0-0-0+d9", "c1-0+d0-0", "c1-0+d9"));
  EXPECT_EQ(members_.NextDeadlineUs(), now_us_ + kApartUs);
  for (const Worker& worker : members_.Workers()) {
    EXPECT_FALSE(worker.suspect) << worker.info.instance.id;
    EXPECT_EQ(worker.failures, 0);
  }
  members_.Expire(now_us_ + kApartUs - 1);
  EXPECT_THAT(Ready(), SizeIs(3));
  members_.Expire(now_us_ + kApartUs);
  EXPECT_THAT(Ready(), SizeIs(4));
  EXPECT_EQ(members_.NextDeadlineUs(), 100 + 10'000) << "the first lease";
}

TEST_F(MembershipListsTest, EachFailureBeginsItsTimeAnew) {
  JoinEverybody();
  const Pair pair = PairOf("c1-0", "d0-0");
  members_.CouldNotConnect(pair, now_us_);
  members_.CouldNotConnect(pair, now_us_ + 300);
  members_.Expire(now_us_ + kApartUs);
  EXPECT_THAT(Ready(), ElementsAre("c0-0-0+d0-0"));
  members_.Expire(now_us_ + 300 + kApartUs);
  EXPECT_THAT(Ready(), SizeIs(2));
}

TEST_F(MembershipListsTest, AnotherLifeOfEitherEndMayTryAtOnce) {
  JoinEverybody();
  members_.CouldNotConnect(PairOf("c1-0", "d0-0"), now_us_);
  ASSERT_THAT(Ready(), SizeIs(1));
  members_.Suspect(single_.instance, now_us_);
  single_.instance.incarnation = 51;
  JoinAll({single_});
  EXPECT_THAT(Ready(), SizeIs(2));
}

TEST_F(MembershipListsTest, WithNoOtherPairTheReasonIsTold) {
  JoinAll({single_, TestDecode("d9")});
  members_.CouldNotConnect(PairOf("c1-0", "d9"), now_us_);
  EXPECT_THAT(Ready(), IsEmpty());
  EXPECT_THAT(members_.WhatIsMissing(),
              HasSubstr("chain c1 could not connect to decode service d9"));
  EXPECT_EQ(members_.LargestContext(), 0);
}

// As after any other sign of change: its requests wait for it.
TEST_F(MembershipListsTest, APairThatCouldNotConnectIsExpectedAgain) {
  JoinAll({single_, TestDecode("d9")});
  now_us_ += 6000;
  ASSERT_EQ(members_.PairExpectedUntilUs(now_us_), 0) << "nothing has changed for long";
  members_.CouldNotConnect(PairOf("c1-0", "d9"), now_us_);
  EXPECT_EQ(members_.PairExpectedUntilUs(now_us_), now_us_ + 5000);
}

TEST_F(MembershipListsTest, PairsOfAllKindsAreCountedAsListed) {
  std::vector<WorkerInfo> stages = {TestDecodeStage(0, "7"), TestDecodeStage(1, "7")};
  for (WorkerInfo& stage : stages) stage.instance.incarnation += 300;
  JoinAll(Together(Together(grid_, service_), Together(stages, {single_})));
  WorkerInfo colocated = TestColocated("x", 0, 1);
  colocated.instance.incarnation = 400;
  JoinAll({colocated});
  ASSERT_THAT(Ready(), SizeIs(5));
  const Pair apart = PairOf("c0-0-0", "d7-0");
  members_.CouldNotConnect(apart, now_us_);
  EXPECT_THAT(Ready(), UnorderedElementsAre("c0-0-0+d0-0", "c1-0+d0-0", "c1-0+d7-0", "x-0+x-0"));
  members_.Suspect(stages[0].instance, now_us_);
  EXPECT_THAT(Ready(), SizeIs(3)) << "what is apart counts for nothing while it is not ready";
}

}  // namespace
}  // namespace baton::router
