// Who gives way to whom, where workers drain, have left, or ask while there is no room.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "services/router/core/membership.h"
#include "services/router/core/test_cluster.h"

namespace baton::router {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;
using Names = std::set<std::string>;

constexpr int64_t kSettleUs = 5000;

class DisplacementTest : public ::testing::Test {
 protected:
  void Begin(int max_workers) {
    members_ = Membership({.lease_us = 1000'000,
                           .max_workers = max_workers,
                           .pair_grace_us = 1000'000,
                           .told_of_all = 0,
                           .settle_us = kSettleUs});
  }
  bool Joins(const WorkerInfo& worker) {
    lost_.clear();
    const absl::Status status = members_.Register(worker, now_us_, lost_);
    EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
    EXPECT_EQ(members_.CheckInvariants(), absl::OkStatus());
    return status.ok();
  }
  void Leaves(const WorkerInfo& worker) {
    ASSERT_TRUE(members_.Remove(worker.instance, now_us_, lost_));
  }
  Names Members() const { return MembersOf(members_); }
  Names Refused() const { return RefusedBy(members_); }

  DisplacementTest() { Begin(100); }
  Membership members_{{}};
  std::vector<Worker> lost_;
  int64_t now_us_ = 100;
};

TEST_F(DisplacementTest, WhoFitsTheNewOnesStaysAsItIs) {
  ASSERT_TRUE(Joins(TestDecode("d0")));
  ASSERT_TRUE(Joins(Named(TestStage("c0", 0, 4), "old")));
  EXPECT_FALSE(Joins(TestStage("c0", 0, 2)));
  EXPECT_TRUE(Joins(TestStage("c0", 1, 2)));
  EXPECT_EQ(Members(), (Names{"c0-0", "c0-1", "d0"}));
  ASSERT_THAT(lost_, SizeIs(1));
  EXPECT_EQ(lost_[0].info.instance.id, "old");
}

TEST_F(DisplacementTest, WhoLeftOnItsOwnIsNotWaitedFor) {
  ASSERT_TRUE(Joins(TestStage("c0", 0, 1)));
  ASSERT_TRUE(Joins(TestDecode("d0")));
  now_us_ += kSettleUs;
  Leaves(TestDecode("d0"));
  EXPECT_FALSE(Joins(WithOtherWeights(TestStage("x", 0, 1))));
  EXPECT_TRUE(Joins(WithOtherWeights(TestDecode("dx"))))
      << "two that can serve, and nobody who can";
  EXPECT_EQ(Members(), (Names{"x-0", "dx"}));
}

TEST_F(DisplacementTest, WhoDrainsHelpsNobodyIn) {
  const WorkerInfo drains = WithOtherWeights(TestDecode("dx"));
  ASSERT_TRUE(Joins(drains));
  members_.SaysDraining(drains.instance);
  ASSERT_TRUE(Joins(TestDecode("d0"))) << "its model stands in nobody's way";
  EXPECT_FALSE(Joins(WithOtherWeights(TestStage("x", 0, 1)))) << "alone, as d0 is";
  EXPECT_EQ(Members(), (Names{"d0", "dx"}));
}

TEST_F(DisplacementTest, WhosePlaceSomebodyHasWhoDrainsJoinsWithNobody) {
  const WorkerInfo drains = TestStage("c0", 0, 1);
  ASSERT_TRUE(Joins(drains));
  members_.SaysDraining(drains.instance);
  ASSERT_TRUE(Joins(TestDecode("d0")));
  EXPECT_FALSE(Joins(WithOtherWeights(TestDecode("dx"))));
  Leaves(TestDecode("d0"));
  EXPECT_FALSE(Joins(Named(drains, "rival"))) << "its place is taken";
  EXPECT_EQ(Members(), (Names{"c0-0"}));
  EXPECT_TRUE(Joins(WithOtherWeights(TestDecode("dx"))));
}

// Both lives of one name would be in a chain and in a decode service.
// The first to ask after a place is free would count the applicant waiting for it as its own.
TEST_F(DisplacementTest, WhoFitsTheMembersSinceAPlaceIsFreeCountsForThem) {
  const WorkerInfo dies = Named(TestStage("c0", 1, 3), "dies");
  ASSERT_TRUE(Joins(TestDecode("d0")));
  ASSERT_TRUE(Joins(TestStage("c0", 0, 3)));
  ASSERT_TRUE(Joins(dies));
  EXPECT_FALSE(Joins(TestStage("c0", 1, 3))) << "its place is taken";
  Leaves(dies);
  WorkerInfo wrong = TestDecode("dx");
  ++wrong.fingerprint.head_hash;  // Which d0 knows, and no stage that is here.
  EXPECT_FALSE(Joins(wrong));
  EXPECT_EQ(Members(), (Names{"c0-0", "d0"}));
  EXPECT_TRUE(Joins(TestStage("c0", 1, 3)));
  EXPECT_EQ(Members(), (Names{"c0-0", "c0-1", "d0"}));
}

TEST_F(DisplacementTest, ANameCountsOnceAmongThoseWhoAsk) {
  ASSERT_TRUE(Joins(TestDecode("d0")));
  ASSERT_TRUE(Joins(TestStage("c0", 0, 2)));
  WorkerInfo again = TestStage("c0", 0, 1);
  again.instance = {"d0", 2};
  EXPECT_FALSE(Joins(again)) << "one against two";
  EXPECT_EQ(Members(), (Names{"c0-0", "d0"}));
  EXPECT_THAT(lost_, IsEmpty());
}

// ---- Bounds ----

TEST_F(DisplacementTest, NoMoreApplicantsAreKnownThanThereMayBeWorkers) {
  Begin(2);
  ASSERT_TRUE(Joins(TestDecode("d0")));
  now_us_ += 10;
  for (const char* id : {"x0", "x1", "x2"}) {
    // Each of a model of its own, so that they are never two.
    WorkerInfo stranger = TestDecode(id);
    stranger.fingerprint.dtype = id;
    EXPECT_FALSE(Joins(stranger));
  }
  EXPECT_EQ(Refused(), (Names{"x0", "x1"}));
  now_us_ += 10;
  WorkerInfo stranger = TestDecode("x1");
  stranger.fingerprint.dtype = "in other words";
  EXPECT_FALSE(Joins(stranger));
  const Applicant& known = members_.applicants().at("x1");
  EXPECT_EQ(known.info, stranger) << "who is known is heard";
  EXPECT_EQ(known.since_us, now_us_ - 10);
  EXPECT_EQ(known.until_us, now_us_ + 1000'000);
}

// Workers of another model come while two of three serve; then one of those leaves.
TEST_F(DisplacementTest, AGroupLargerThanTheClusterMayBeStaysOut) {
  for (const int strangers : {2, 3}) {
    SCOPED_TRACE(strangers);
    Begin(3);
    ASSERT_TRUE(Joins(TestStage("c0", 0, 1)));
    ASSERT_TRUE(Joins(TestDecode("d0")));
    now_us_ += kSettleUs;
    for (int i = 0; i < strangers; ++i) {
      EXPECT_FALSE(Joins(WithOtherWeights(TestDecode("x" + std::to_string(i)))));
    }
    if (strangers == 2) {
      // With it there are as many applicants as may be, so that the last one is not noted.
      WorkerInfo third = TestDecode("z");
      third.fingerprint.dtype = "bfloat16";
      EXPECT_FALSE(Joins(third));
    }
    Leaves(TestDecode("d0"));
    EXPECT_EQ(Joins(WithOtherWeights(TestStage("x", 0, 1))), strangers == 2);
    EXPECT_EQ(Members(), strangers == 2 ? (Names{"x0", "x1", "x-0"}) : (Names{"c0-0"}));
  }
}

}  // namespace
}  // namespace baton::router
