// What a membership does when: leases, probations, who is expected back and for how long; and the
// pages that a decode service uses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "services/router/core/membership.h"
#include "services/router/core/test_cluster.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kLeaseUs = 1000;
constexpr int64_t kGraceUs = 5000;
constexpr int64_t kProbationUs = 100;

class MembershipTimesTest : public ::testing::Test {
 protected:
  void Join(const WorkerInfo& worker) {
    ASSERT_EQ(members_.Register(worker, now_us_, lost_), absl::OkStatus());
  }
  void Beat(const WorkerInfo& worker, bool ready = true) {
    BeatLinking(worker, LinkedBy(members_, worker.instance), ready);
  }
  void BeatLinking(const WorkerInfo& worker, std::vector<uint64_t> linked, bool ready = true) {
    members_.Heartbeat(worker.instance, ready, {}, now_us_, std::move(linked));
  }
  void JoinPair() {
    for (const WorkerInfo& worker : {stage_, decode_}) Join(worker);
    for (const WorkerInfo& worker : {stage_, decode_}) Beat(worker);
  }
  int64_t ExpectedUntilUs() const { return members_.PairExpectedUntilUs(now_us_); }
  // The decode's lease ends; the stage's does not.
  void LoseDecode() {
    now_us_ += kLeaseUs - 1;
    Beat(stage_);
    now_us_ += 1;
    ASSERT_THAT(members_.Expire(now_us_), SizeIs(1));
  }

  const WorkerInfo stage_ = TestStage("c0", 0, 1);
  const WorkerInfo decode_ = TestDecode("d0");
  Membership members_{{.lease_us = kLeaseUs,
                       .pair_grace_us = kGraceUs,
                       .first_probation_us = kProbationUs,
                       .longest_probation_us = 3 * kProbationUs}};
  std::vector<Worker> lost_;
  int64_t now_us_ = 100;
};

TEST_F(MembershipTimesTest, APairIsExpectedForAGraceAfterEachSignOfChange) {
  JoinPair();
  EXPECT_EQ(ExpectedUntilUs(), now_us_ + kGraceUs);
  now_us_ += 10;
  Beat(decode_);
  EXPECT_EQ(ExpectedUntilUs(), now_us_ - 10 + kGraceUs) << "nothing has changed";
  Beat(decode_, /*ready=*/false);
  EXPECT_EQ(ExpectedUntilUs(), now_us_ + kGraceUs);
  now_us_ += 10;
  BeatLinking(decode_, {1}, /*ready=*/false);
  EXPECT_EQ(ExpectedUntilUs(), now_us_ + kGraceUs) << "other links";
  now_us_ += 10;
  members_.Suspect(decode_.instance, now_us_);
  EXPECT_EQ(ExpectedUntilUs(), now_us_ + kGraceUs);
  now_us_ += kGraceUs - 1;
  EXPECT_EQ(ExpectedUntilUs(), now_us_ + 1);
  now_us_ += 1;
  EXPECT_EQ(ExpectedUntilUs(), 0);
}

TEST_F(MembershipTimesTest, WhoIsLostIsExpectedForAGraceAndThenForgotten) {
  JoinPair();
  LoseDecode();
  const int64_t until_us = now_us_ + kGraceUs;
  EXPECT_EQ(ExpectedUntilUs(), until_us);
  ASSERT_TRUE(members_.Remove(stage_.instance, now_us_ + 10, lost_));
  members_.Expire(now_us_ + kLeaseUs);
  EXPECT_EQ(members_.NextDeadlineUs(), until_us);
  now_us_ = until_us;
  EXPECT_EQ(ExpectedUntilUs(), 0) << "though the stage's grace goes on";
  members_.Expire(until_us);
  EXPECT_EQ(members_.NextDeadlineUs(), until_us + 10);
  members_.Expire(until_us + 10);
  EXPECT_EQ(members_.NextDeadlineUs(), kNeverUs);
}

TEST_F(MembershipTimesTest, ALaterChangeOfOneSideDoesNotBringTheOtherBack) {
  JoinPair();
  LoseDecode();
  const int64_t until_us = now_us_ + kGraceUs;
  now_us_ += kGraceUs / 2;
  Join(stage_);  // Renews its lease.
  Beat(stage_, /*ready=*/false);
  EXPECT_EQ(ExpectedUntilUs(), now_us_ + kGraceUs);
  now_us_ = until_us;
  EXPECT_EQ(ExpectedUntilUs(), 0);
}

TEST_F(MembershipTimesTest, WhoComesBackAsSomethingElseIsNotExpectedAsWhatItWas) {
  JoinPair();
  LoseDecode();
  WorkerInfo other = TestStage("c1", 0, 1);
  other.instance = {decode_.instance.id, 2};
  Join(other);
  EXPECT_EQ(ExpectedUntilUs(), 0) << "there is no decode service, and none was lost";
}

TEST_F(MembershipTimesTest, NoMoreAreExpectedBackThanThereMayBe) {
  Membership small({.lease_us = kLeaseUs, .max_workers = 2, .pair_grace_us = kGraceUs});
  const auto lose = [&](const WorkerInfo& worker, int64_t at_us) {
    ASSERT_EQ(small.Register(worker, at_us, lost_), absl::OkStatus());
    ASSERT_TRUE(small.Remove(worker.instance, at_us, lost_));
  };
  lose(stage_, 100);
  lose(decode_, 200);
  EXPECT_EQ(small.PairExpectedUntilUs(300), 200 + kGraceUs);
  lose(TestDecode("d1"), 300);
  EXPECT_EQ(small.PairExpectedUntilUs(300), 0) << "the stage, which was lost first, is forgotten";
  lose(stage_, 400);
  EXPECT_EQ(small.PairExpectedUntilUs(400), 400 + kGraceUs);
}

TEST_F(MembershipTimesTest, WhoWasHeardSinceItsSilenceWasExcusedIsExcusedAgain) {
  for (const bool registers : {false, true}) {
    members_ = Membership({.lease_us = kLeaseUs});
    Join(decode_);
    members_.ExcuseSilence(2000);
    members_.ExcuseSilence(9000);
    EXPECT_EQ(members_.Find(decode_.instance)->lease_until_us, 2000) << "once";
    registers ? Join(decode_) : Beat(decode_);
    members_.ExcuseSilence(3000);
    EXPECT_EQ(members_.Find(decode_.instance)->lease_until_us, 3000);
  }
  Beat(decode_);
  members_.ExcuseSilence(now_us_);
  EXPECT_EQ(members_.Find(decode_.instance)->lease_until_us, now_us_ + kLeaseUs) << "no sooner";
}

TEST_F(MembershipTimesTest, ATickIsDueWhenTheNextProbationEnds) {
  Membership members({.lease_us = 1'000'000, .first_probation_us = kProbationUs});
  for (const WorkerInfo& worker : {stage_, decode_}) {
    ASSERT_EQ(members.Register(worker, 0, lost_), absl::OkStatus());
  }
  members.FailedToServe(stage_.instance, 10);
  EXPECT_EQ(members.NextDeadlineUs(), 10 + kProbationUs);
  members.FailedToServe(decode_.instance, 30);
  EXPECT_EQ(members.NextDeadlineUs(), 10 + kProbationUs);
  members.Expire(10 + kProbationUs);
  EXPECT_EQ(members.NextDeadlineUs(), 30 + kProbationUs);
  EXPECT_EQ(members.Find(stage_.instance)->probation_until_us, 0);
  EXPECT_NE(members.Find(decode_.instance)->probation_until_us, 0);
  members.Expire(30 + kProbationUs);
  EXPECT_EQ(members.NextDeadlineUs(), 1'000'000);
}

TEST_F(MembershipTimesTest, AProbationIsNeverLongerThanTheLongest) {
  JoinPair();
  for (const int64_t probation_us : {100, 200, 300, 300}) {
    members_.FailedToServe(decode_.instance, now_us_);
    EXPECT_EQ(members_.Find(decode_.instance)->probation_until_us, now_us_ + probation_us);
    now_us_ += probation_us;
    Beat(decode_);
    Beat(stage_);
    members_.Expire(now_us_);
  }
}

TEST_F(MembershipTimesTest, ATickIsDueWhenAnApplicantIsForgotten) {
  Join(decode_);
  now_us_ += 200;
  WorkerInfo stranger = TestDecode("d1");
  stranger.fingerprint.dtype = "bfloat16";
  EXPECT_TRUE(absl::IsFailedPrecondition(members_.Register(stranger, now_us_, lost_)));
  const int64_t asked_us = now_us_;
  now_us_ += 300;
  Beat(decode_);
  members_.Expire(100 + kLeaseUs);
  EXPECT_EQ(members_.NextDeadlineUs(), asked_us + kLeaseUs);
}

TEST_F(MembershipTimesTest, OnlyTheFirstReasonsAreNamed) {
  const auto missing = [this](int decodes) {
    members_ = Membership({});
    for (int i = 0; i < decodes; ++i) Join(TestDecode("d" + std::to_string(i)));
    return members_.WhatIsMissing();
  };
  EXPECT_EQ(missing(3),
            "no prefill chain is registered; d0 is not ready; d1 is not ready; d2 is not ready");
  EXPECT_THAT(missing(5), HasSubstr("d2 is not ready; and 2 more"));
}

// The smallest stage bounds a chain, the first of its limits a prompt.
TEST_F(MembershipTimesTest, AChainTakesWhatFitsIntoEachOfItsStages) {
  std::vector<WorkerInfo> workers = {TestStage("c0", 0, 2), TestStage("c0", 1, 2), decode_};
  workers[1].page_count = 16;  // 256 tokens.
  for (const WorkerInfo& worker : workers) Join(worker);
  for (const WorkerInfo& worker : workers) Beat(worker);
  ASSERT_THAT(members_.ReadyPairs(), SizeIs(1));
  EXPECT_EQ(members_.ReadyPairs()[0].chain.capacity_tokens, 256);
  EXPECT_EQ(members_.ReadyPairs()[0].chain.max_prompt_tokens, 256);
  EXPECT_EQ(members_.ReadyPairs()[0].page_size, 16);
}

// Whatever others say of an id: processes of one rank are services of their own, and stages none.
TEST_F(MembershipTimesTest, PagesAreBoundedByTheRanksOfTheSameServiceAlone) {
  WorkerInfo small = TestDecodeRank(1);
  small.page_count = 32;
  WorkerInfo alone = TestDecode("d8");
  alone.decode_id = "0";
  alone.page_count = 8;
  WorkerInfo rank = TestStageRank(0, 0);
  rank.decode_id = "0";
  rank.page_count = 16;
  WorkerInfo large_alone = TestDecode("d9");
  large_alone.decode_id = "0";
  WorkerInfo other = TestDecodeRank(0, 2, "1");
  WorkerInfo other_rank = TestStageRank(0, 1);
  other_rank.decode_id = "0";
  for (const WorkerInfo& worker :
       {TestDecodeRank(0), small, alone, rank, large_alone, other, other_rank}) {
    Join(worker);
  }
  EXPECT_EQ(members_.UsablePages(TestDecodeRank(0)), 32);
  EXPECT_EQ(members_.UsablePages(small), 32);
  EXPECT_EQ(members_.UsablePages(alone), 8);
  EXPECT_EQ(members_.UsablePages(large_alone), 64);
  EXPECT_EQ(members_.UsablePages(other), 64);
  EXPECT_EQ(members_.UsablePages(other_rank), 64);
}

}  // namespace
}  // namespace baton::router
