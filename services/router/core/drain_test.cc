// Workers that drain, and the router that does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/status.h"
#include "services/router/core/router_core_fixture.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Status kHandedBack =
    EndedByDrain(WithLeg(absl::UnavailableError("drains"), "decode", "d0"));

class DrainTest : public RouterCoreTest {
 protected:
  AnswerHeartbeat BeatDraining(const InstanceRef& instance, bool leaving = false) {
    Say(instance, {0, false, {}, true, leaving});
    return Only<AnswerHeartbeat>();
  }
  absl::Status Refusal() const { return Only<FinishCall>().outcome.status(); }
};

TEST_F(DrainTest, AWorkerThatSaysSoIsInNoPair) {
  JoinOnePair();
  BeatDraining({"c0-1", 1});
  EXPECT_THAT(core_->membership().ReadyPairs(), IsEmpty());
  EXPECT_THAT(core_->membership().WhatIsMissing(), HasSubstr("c0-1 is draining"));
  Beat({"c0-1", 1});
  EXPECT_THAT(core_->membership().ReadyPairs(), IsEmpty()) << "there is no way back";
}

TEST_F(DrainTest, AWorkerThatIsToDrainHearsOfIt) {
  JoinOnePair();
  Handle(DrainRequested{3, "d0"});
  EXPECT_EQ(Only<ReplyDrain>().status, absl::OkStatus());
  EXPECT_EQ(Only<AskHeartbeat>().rpc_id, call_of_.at({"d0", 1}));
  Beat({"d0", 1});
  EXPECT_TRUE(Only<AnswerHeartbeat>().drain);
  Beat({"c0-0", 1});
  EXPECT_FALSE(Only<AnswerHeartbeat>().drain);
}

TEST_F(DrainTest, AStageIsHeldUntilDecodeHasTheWholePrompt) {
  JoinOnePair();
  Reserving(1);
  EXPECT_EQ(BeatDraining({"c0-1", 1}).needed_requests, 1);
  Answer();
  EXPECT_EQ(BeatDraining({"c0-1", 1}).needed_requests, 1);
  Handle(TokenReceived{reserve_.attempt_id, {7, 0, {}}});
  EXPECT_EQ(BeatDraining({"c0-1", 1}).needed_requests, 1) << "its receipts may be on their way";
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  EXPECT_EQ(BeatDraining({"c0-1", 1}).needed_requests, 0);
  EXPECT_EQ(BeatDraining({"d0", 1}).needed_requests, 1);
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kLength});
  EXPECT_EQ(BeatDraining({"d0", 1}).needed_requests, 0);
}

TEST_F(DrainTest, ADecodeIsHeldUntilTheChainHasItsReceipts) {
  JoinOnePair();
  Prefilling(1);
  Handle(TokenReceived{reserve_.attempt_id, {7, 0, {}}});
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kLength});
  EXPECT_EQ(BeatDraining({"d0", 1}).needed_requests, 1) << "the answer is complete, the chain asks";
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  EXPECT_EQ(BeatDraining({"d0", 1}).needed_requests, 0);
}

TEST_F(DrainTest, ARequestNeedsItsOwnPairAndNobodyElse) {
  JoinTwoPairs();
  Prefilling(1);
  ASSERT_THAT(reserve_.writers, SizeIs(1));
  for (const char* id : {"c0-0", "c1-0", "d0", "d1"}) {
    const bool own = id == reserve_.decode.id || id == reserve_.writers[0].instance.id;
    EXPECT_EQ(BeatDraining({id, 1}).needed_requests, own ? 1 : 0) << id;
  }
}

TEST_F(DrainTest, WhoLeavesIsGoneAtOnceAndItsRequestsAreDrained) {
  JoinOnePair();
  Decoding(1);
  BeatDraining({"d0", 1}, /*leaving=*/true);
  EXPECT_TRUE(IsEndedByDrain(Refusal())) << Refusal();
  EXPECT_EQ(core_->load().drain.worker_total, 1);
  EXPECT_EQ(core_->membership().Find({"d0", 1}), nullptr);
}

TEST_F(DrainTest, WhatIsHandedBackIsNoAttempt) {
  RouterLimits limits;
  limits.max_attempts = 1;
  Reset(limits);
  JoinTwoPairs();
  Reserving(1);
  const std::string first = reserve_.decode.id;
  Handle(ReserveReplied{reserve_.attempt_id, kHandedBack});
  EXPECT_NE(Only<Reserve>().decode.id, first);
  reserve_ = Only<Reserve>();
  Handle(ReserveReplied{reserve_.attempt_id, kBroken});
  EXPECT_FALSE(IsEndedByDrain(Refusal())) << "this one counts";
}

TEST_F(DrainTest, AClientWhoseTextMayNotGoOnHearsWhenToTryAgain) {
  RouterLimits limits;
  limits.max_resumes = 0;
  Reset(limits);
  JoinTwoPairs();
  Decoding(1);
  Handle(DecodeEnded{reserve_.attempt_id, kHandedBack});
  EXPECT_GT(RetryAfterMsOf(Refusal()), 0);
  EXPECT_EQ(core_->load().drain.worker_total, 1);
}

TEST_F(DrainTest, TheRouterSettlesRefusesAndEndsTheRest) {
  JoinOnePair();
  Decoding(1);
  EXPECT_EQ(core_->drain(now_us_), RouterDrain::kServing);
  const int64_t begun_us = now_us_;
  Handle(RouterDrainBegan{1000, 5000});
  EXPECT_EQ(core_->drain(now_us_), RouterDrain::kSettling);
  Request(2);
  EXPECT_THAT(All<Reserve>(), SizeIs(1));
  EXPECT_EQ(core_->NextDeadlineUs(), begun_us + 1000);

  now_us_ = begun_us + 1000;
  Request(3);
  EXPECT_TRUE(IsEndedByDrain(Refusal()) && absl::IsUnavailable(Refusal())) << Refusal();
  EXPECT_EQ(LegOf(Refusal()), "router");
  EXPECT_EQ(core_->drain(now_us_), RouterDrain::kRefusing);
  EXPECT_EQ(core_->NextDeadlineUs(), begun_us + 6000);

  now_us_ = begun_us + 6000;
  Handle(Tick{});
  EXPECT_THAT(All<FinishCall>(), SizeIs(2));
  for (const FinishCall& finish : All<FinishCall>()) {
    EXPECT_TRUE(IsEndedByDrain(finish.outcome.status()));
  }
  EXPECT_EQ(core_->drain(now_us_), RouterDrain::kDrained);
  EXPECT_EQ(core_->load().drain.refused_total, 1);
  EXPECT_EQ(core_->load().drain.time_over_total, 2);
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(DrainTest, WhoseAnswerIsCompleteLacksOnlyItsReportWhenTheTimeIsOver) {
  JoinOnePair();
  Decoding(1);
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kLength});
  ASSERT_THAT(All<FinishCall>(), SizeIs(0)) << "the chain's report is still to come";
  Handle(RouterDrainBegan{1000, 5000});
  now_us_ += 6000;
  Handle(Tick{});
  ASSERT_EQ(Only<FinishCall>().outcome.status(), absl::OkStatus());
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kLength);
  EXPECT_THAT(All<AbortPrefill>(), SizeIs(1));
  EXPECT_EQ(core_->load().drain.time_over_total, 0);
  EXPECT_TRUE(core_->AtRest());
}

}  // namespace
}  // namespace baton::router
