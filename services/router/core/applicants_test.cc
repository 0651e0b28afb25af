// Who is a member when workers of two models, or two for one place, ask to join.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/router/core/fit.h"
#include "services/router/core/membership.h"
#include "services/router/core/test_cluster.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Names = std::set<std::string>;

constexpr int64_t kLeaseUs = 1000;
constexpr int64_t kGraceUs = 3000;
constexpr int64_t kSettleUs = 5000;

class ApplicantsTest : public ::testing::Test {
 protected:
  absl::Status Ask(const WorkerInfo& worker) {
    lost_.clear();
    absl::Status status = members_.Register(worker, now_us_, lost_);
    EXPECT_TRUE(members_.CheckInvariants().ok()) << members_.CheckInvariants();
    return status;
  }
  bool Joins(const WorkerInfo& worker) {
    const absl::Status status = Ask(worker);
    EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
    return status.ok();
  }
  void Settle() { now_us_ += kSettleUs; }
  // Renews the leases of all that are here.
  void BeatAll() {
    for (const Worker& worker : members_.Workers()) {
      members_.Heartbeat(worker.info.instance, true, {}, now_us_,
                         LinkedBy(members_, worker.info.instance));
    }
  }
  Names Members() const { return MembersOf(members_); }
  Names Refused() const { return RefusedBy(members_); }
  void Kill(const std::string& id) {
    for (const Worker& worker : members_.Workers()) {
      if (worker.info.instance.id == id) continue;
      members_.Heartbeat(worker.info.instance, true, {}, now_us_ + kLeaseUs);
    }
    now_us_ += kLeaseUs;
    // One that joined now loses its lease with it.
    for (const Worker& worker : members_.Expire(now_us_)) lost_.push_back(worker);
  }

  Membership members_{{.lease_us = kLeaseUs, .pair_grace_us = kGraceUs, .settle_us = kSettleUs}};
  std::vector<Worker> lost_;
  int64_t now_us_ = 100;
};

TEST_F(ApplicantsTest, WhoCameFirstGivesWayToThoseWhoCanServe) {
  const WorkerInfo stranger = Named(WithOtherWeights(TestDecode("d9")), "stranger");
  ASSERT_TRUE(Joins(stranger));
  EXPECT_FALSE(Joins(TestStage("c0", 0, 1)));
  EXPECT_EQ(Refused(), (Names{"c0-0"}));
  ASSERT_TRUE(Joins(TestDecode("d0"))) << "with it a pair is complete";
  EXPECT_EQ(Members(), (Names{"c0-0", "d0"}));
  ASSERT_THAT(lost_, SizeIs(1));
  EXPECT_TRUE(lost_[0].displaced);
  EXPECT_THAT(Refused(), IsEmpty());
  EXPECT_FALSE(Joins(stranger));
  EXPECT_EQ(Refused(), (Names{"stranger"}));
  const std::string refusal(members_.applicants().at("stranger").refusal.message());
  EXPECT_THAT(refusal, HasSubstr("weights of layer 0 (hash) differs: stranger has "));
  EXPECT_THAT(refusal, HasSubstr("1000"));
  EXPECT_THAT(refusal, HasSubstr("0100"));
  BeatAll();
  EXPECT_THAT(members_.ReadyPairs(), SizeIs(1));
  // It asks again and again, and changes nothing; nor does the stage's own next try.
  const uint64_t version = members_.version();
  EXPECT_FALSE(Joins(stranger));
  EXPECT_TRUE(Joins(TestStage("c0", 0, 1)));
  EXPECT_EQ(members_.version(), version);
  EXPECT_THAT(lost_, IsEmpty());
}

TEST_F(ApplicantsTest, AChainOfAnotherShapeThatCameFirstGivesWay) {
  ASSERT_TRUE(Joins(TestDecode("d0")));
  ASSERT_TRUE(Joins(Named(TestStage("c0", 0, 4), "old")));
  EXPECT_FALSE(Joins(TestStage("c0", 0, 2)));
  EXPECT_TRUE(Joins(TestStage("c0", 1, 2)));
  EXPECT_EQ(Members(), (Names{"c0-0", "c0-1", "d0"}));
  EXPECT_FALSE(Joins(Named(TestStage("c0", 0, 4), "old")));
  EXPECT_EQ(Refused(), (Names{"old"}));
}

TEST_F(ApplicantsTest, AtFirstTheLargerOfTwoGroupsThatCanServeWins) {
  ASSERT_TRUE(Joins(WithOtherWeights(TestStage("x", 0, 1))));
  ASSERT_TRUE(Joins(WithOtherWeights(TestDecode("dx"))));
  EXPECT_FALSE(Joins(TestStage("c0", 0, 1)));
  EXPECT_FALSE(Joins(TestDecode("d0"))) << "as many: nothing changes hands";
  EXPECT_TRUE(Joins(TestDecode("d1")));
  EXPECT_EQ(Members(), (Names{"c0-0", "d0", "d1"}));
  EXPECT_FALSE(Joins(WithOtherWeights(TestStage("x", 0, 1))));
  EXPECT_FALSE(Joins(WithOtherWeights(TestDecode("dx"))));
  EXPECT_EQ(Refused(), (Names{"x-0", "dx"}));
}

TEST_F(ApplicantsTest, OnceSettledWhoServesNeverGivesWay) {
  ASSERT_TRUE(Joins(WithOtherWeights(TestStage("x", 0, 1))));
  ASSERT_TRUE(Joins(WithOtherWeights(TestDecode("dx"))));
  Settle();
  EXPECT_FALSE(Joins(TestStage("c0", 0, 1)));
  for (const char* id : {"d0", "d1", "d2", "d3"}) EXPECT_FALSE(Joins(TestDecode(id)));
  EXPECT_EQ(Members(), (Names{"x-0", "dx"}));
  EXPECT_THAT(members_.WhatIsMissing(), HasSubstr("c0-0 is refused for now: "));
}

TEST_F(ApplicantsTest, WhoIsLostKeepsItsGroupsPlaceForAGrace) {
  ASSERT_TRUE(Joins(TestStage("c0", 0, 1)));
  ASSERT_TRUE(Joins(TestDecode("d0")));
  Settle();
  BeatAll();
  Kill("d0");
  ASSERT_EQ(Members(), (Names{"c0-0"}));
  EXPECT_FALSE(Joins(WithOtherWeights(TestStage("x", 0, 1))));
  EXPECT_FALSE(Joins(WithOtherWeights(TestDecode("dx")))) << "d0 is expected back";
  now_us_ += kGraceUs;
  BeatAll();
  EXPECT_FALSE(Joins(WithOtherWeights(TestStage("x", 0, 1)))) << "alone it could not serve either";
  EXPECT_TRUE(Joins(WithOtherWeights(TestDecode("dx"))));
  EXPECT_EQ(Members(), (Names{"x-0", "dx"}));
  // And there they stay: those who come back have to wait.
  EXPECT_FALSE(Joins(TestDecode("d0")));
  EXPECT_FALSE(Joins(TestStage("c0", 0, 1)));
  EXPECT_EQ(Refused(), (Names{"c0-0", "d0"}));
}

// Most likely it is dead: it is not to come back, in the place of who lives, when others ask.
TEST_F(ApplicantsTest, WhoHasGivenWayIsNoApplicantBeforeItAsks) {
  const auto old = [](int rank) {
    return Named(TestStage("c0", rank, 3), "old-" + std::to_string(rank));
  };
  ASSERT_TRUE(Joins(TestDecode("d0")));
  ASSERT_TRUE(Joins(old(0)));
  EXPECT_FALSE(Joins(TestStage("c0", 0, 2)));
  ASSERT_TRUE(Joins(TestStage("c0", 1, 2)));
  const Names whole = {"c0-0", "c0-1", "d0"};
  ASSERT_EQ(Members(), whole) << "the chain of three has given way";
  EXPECT_FALSE(Joins(old(1)));
  EXPECT_FALSE(Joins(old(2))) << "nobody knows whether its first stage lives";
  EXPECT_EQ(Members(), whole);
  EXPECT_TRUE(Joins(old(0))) << "it does, and they are more";
  EXPECT_EQ(Members(), (Names{"d0", "old-0", "old-1", "old-2"}));
}

// It has not asked since: its place is free at the time at which a refused applicant is forgotten.
TEST_F(ApplicantsTest, WhoJoinsWithOthersHasTheLeaseOfItsLastAttempt) {
  ASSERT_TRUE(Joins(Named(WithOtherWeights(TestDecode("d9")), "stranger")));
  EXPECT_FALSE(Joins(TestStage("c0", 0, 1)));
  now_us_ += kLeaseUs / 4;
  ASSERT_TRUE(Joins(TestDecode("d0")));
  ASSERT_EQ(Members(), (Names{"c0-0", "d0"}));
  now_us_ += kLeaseUs * 3 / 4;
  EXPECT_THAT(members_.Expire(now_us_), SizeIs(1));
  EXPECT_EQ(Members(), (Names{"d0"}));
}

TEST_F(ApplicantsTest, WhoAsksNoMoreJoinsWithNobody) {
  ASSERT_TRUE(Joins(Named(WithOtherWeights(TestDecode("d9")), "stranger")));
  EXPECT_FALSE(Joins(TestStage("c0", 0, 1)));
  now_us_ += kLeaseUs;
  EXPECT_FALSE(Joins(TestDecode("d0"))) << "it would be alone, as the stranger is";
  EXPECT_EQ(Members(), (Names{"stranger"}));
}

TEST_F(ApplicantsTest, AnotherModelFollowsWhereWorkersDrainAndLeave) {
  const WorkerInfo stage = TestStage("c0", 0, 1);
  const WorkerInfo decode = TestDecode("d0");
  ASSERT_TRUE(Joins(stage));
  ASSERT_TRUE(Joins(decode));
  Settle();
  BeatAll();
  EXPECT_FALSE(Joins(WithOtherWeights(TestStage("x", 0, 1))));
  EXPECT_FALSE(Joins(WithOtherWeights(TestDecode("dx"))));
  members_.SaysDraining(stage.instance);
  EXPECT_TRUE(Joins(WithOtherWeights(TestDecode("dx")))) << "nobody serves who does not drain";
  EXPECT_EQ(Members(), (Names{"c0-0", "dx", "x-0"})) << "who drains is not driven out";
  BeatAll();
  ASSERT_THAT(members_.ReadyPairs(), SizeIs(1));
  EXPECT_EQ(members_.ReadyPairs()[0].chain.stage0.id, "x-0");
  EXPECT_EQ(members_.ReadyPairs()[0].decode.id, "dx");
  std::vector<Worker> left;
  EXPECT_TRUE(members_.Remove(stage.instance, now_us_, left));
  EXPECT_FALSE(Joins(decode));
}

TEST_F(ApplicantsTest, ATakenRankIsFreeWithTheEndOfItsHoldersLease) {
  ASSERT_TRUE(Joins(TestDecode("d0")));
  ASSERT_TRUE(Joins(TestStage("c0", 0, 1)));
  Settle();
  BeatAll();
  const WorkerInfo successor = Named(TestStage("c0", 0, 1), "restarted");
  EXPECT_THAT(std::string(Ask(successor).message()), HasSubstr("rank 0 of chain c0 is taken"));
  Kill("c0-0");
  EXPECT_TRUE(Joins(successor));
  EXPECT_THAT(Refused(), IsEmpty());
}

TEST_F(ApplicantsTest, WhoAsksNoMoreIsForgotten) {
  ASSERT_TRUE(Joins(TestDecode("d0")));
  EXPECT_FALSE(Joins(WithOtherWeights(TestDecode("dx"))));
  BeatAll();
  EXPECT_EQ(members_.NextDeadlineUs(), now_us_ + kLeaseUs);
  now_us_ += kLeaseUs / 2;
  EXPECT_FALSE(Joins(WithOtherWeights(TestDecode("dx"))));
  EXPECT_EQ(members_.applicants().at("dx").since_us, now_us_ - kLeaseUs / 2);
  now_us_ += kLeaseUs - 1;
  members_.Expire(now_us_);
  EXPECT_EQ(Refused(), (Names{"dx"}));
  members_.Expire(now_us_ + 1);
  EXPECT_THAT(Refused(), IsEmpty());
}

TEST_F(ApplicantsTest, WorkersOfANewerReleaseJoinIfTheVersionsMeet) {
  WorkerInfo newer = TestDecode("d0");
  newer.fingerprint.protocol_version = kProtocolVersion + 3;
  EXPECT_TRUE(Joins(newer));
  EXPECT_TRUE(Joins(TestStage("c0", 0, 1)));
  BeatAll();
  EXPECT_THAT(members_.ReadyPairs(), SizeIs(1));
  WorkerInfo newest = TestDecode("d1");
  newest.fingerprint.protocol_version = kProtocolVersion + 3;
  newest.fingerprint.oldest_protocol_version = kProtocolVersion + 1;
  const absl::Status status = Ask(newest);
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  const std::string ours = absl::StrCat(kOldestProtocolVersion, " to ", kProtocolVersion);
  const std::string theirs = absl::StrCat(kProtocolVersion + 1, " to ", kProtocolVersion + 3);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("d1 speaks " + theirs + ", this router " + ours));
  EXPECT_THAT(Refused(), IsEmpty()) << "it can't become a member";
  // Two that meet the router but not each other, as a later router may see them.
  EXPECT_THAT(std::string(CheckFit(newest, TestDecode("d2")).message()),
              HasSubstr("protocol version differs: d1 has " + theirs + ", d2 has " + ours));
  newest.fingerprint.oldest_protocol_version = kProtocolVersion + 4;
  EXPECT_EQ(Ask(newest).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ApplicantsTest, ARestartThatDoesNotFitAnyMoreWaitsForItsOwnFormerLife) {
  ASSERT_TRUE(Joins(TestDecode("d0")));
  ASSERT_TRUE(Joins(TestStage("c0", 0, 1)));
  Settle();
  WorkerInfo changed = WithOtherWeights(TestDecode("d0"));
  changed.instance.incarnation = 2;
  EXPECT_FALSE(Joins(changed));
  EXPECT_EQ(Members(), (Names{"c0-0", "d0"}));
  EXPECT_EQ(Refused(), (Names{"d0"}));
}

}  // namespace
}  // namespace baton::router
