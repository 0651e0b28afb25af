// Requests whose workers fail, drain or die after the first token: they go on elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/status.h"
#include "services/router/core/router_core_fixture.h"

namespace baton::router {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Status kHandedBack = EndedByDrain(absl::AbortedError("drains"));
const absl::Status kRetracted =
    WithLeg(Retracted(absl::AbortedError("gave its pages")), "decode", "d0");

class ResumeTest : public RouterCoreTest {
 protected:
  void Allow(int max_resumes) {
    RouterLimits limits;
    limits.max_waiting = 10;
    limits.max_resumes = max_resumes;
    Reset(limits);
    JoinTwoPairs();
  }
  // 7 comes first.
  void Tell(int32_t token) {
    Handle(TokenReceived{reserve_.attempt_id, {token, 0, {}}});
    ASSERT_EQ(Only<DeliverToken>().token.token, token);
  }
  void Fail(const absl::Status& status) { Handle(DecodeEnded{reserve_.attempt_id, status}); }
  // The next attempt's ticket.
  void Answer() {
    const int read = 100 + reserve_.drawn_tokens;
    Handle(
        ReserveReplied{reserve_.attempt_id, Ticket{reserve_.decode, 0, 6, read, (read + 15) / 16}});
    ASSERT_EQ(Only<StartPrefill>().drawn_tokens, reserve_.drawn_tokens);
  }
  // Goes on on another pair, which draws this token first.
  void Resume(int32_t token) {
    reserve_ = Only<Reserve>();
    Answer();
    Handle(TokenReceived{reserve_.attempt_id, {token, 0, {}}});
  }
};

TEST_F(ResumeTest, AnotherPairGoesOnBehindTheLastToken) {
  Allow(1);
  Decoding(1);
  const InstanceRef first = reserve_.decode;
  Tell(8);
  Tell(9);
  Fail(kBroken);
  EXPECT_THAT(All<FinishCall>(), IsEmpty());
  EXPECT_EQ(Only<Reserve>().drawn_tokens, 2) << "7 and 8: 9 is drawn again";
  EXPECT_EQ(Only<Reserve>().max_tokens, 4);
  EXPECT_NE(Only<Reserve>().decode, first);
  Resume(9);
  EXPECT_THAT(All<DeliverToken>(), IsEmpty()) << "the client has it";
  Tell(10);
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kLength});
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kLength);
  EXPECT_EQ(Only<FinishCall>().attempts, 2);
  EXPECT_EQ(Only<FinishCall>().resumes, 1);
  EXPECT_EQ(core_->load().resumes.continued_total, 1);
  EXPECT_EQ(core_->load().retries_decode.failure_total, 1);
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(ResumeTest, OneTokenIsDrawnAgainFromThePromptAlone) {
  Allow(1);
  Decoding(1);
  Fail(kBroken);
  EXPECT_EQ(Only<Reserve>().drawn_tokens, 0);
  Resume(7);
  EXPECT_THAT(All<DeliverToken>(), IsEmpty());
  Tell(8);
}

TEST_F(ResumeTest, AnotherTokenEndsTheRequest) {
  Allow(5);
  Decoding(1);
  Tell(8);
  Fail(kBroken);
  Resume(9);
  EXPECT_THAT(All<DeliverToken>(), IsEmpty()) << "no text of two";
  EXPECT_THAT(All<AbortDecode>(), SizeIs(1));
  EXPECT_THAT(All<AbortPrefill>(), SizeIs(1));
  const absl::Status status = Only<FinishCall>().outcome.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("drew token 9 again where 8 was told"), HasSubstr("token 1")));
  EXPECT_EQ(core_->load().resumes.diverged_total, 1);
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(ResumeTest, NoMoreOftenThanAllowed) {
  Allow(2);
  Decoding(1);
  Fail(kBroken);
  Resume(7);
  Tell(8);
  Forgive({"d0", 1});
  Forgive({"d1", 1});
  Fail(kBroken);
  reserve_ = Only<Reserve>();
  Handle(ReserveReplied{reserve_.attempt_id, kBroken});  // It counts, whatever had come of it.
  EXPECT_EQ(Only<FinishCall>().resumes, 2);
  EXPECT_EQ(Only<FinishCall>().attempts, 3);
}

TEST_F(ResumeTest, NotAtAllIfNotAllowed) {
  Allow(0);
  Decoding(1);
  Fail(kBroken);
  EXPECT_EQ(Only<FinishCall>().attempts, 1);
  Decoding(2);
  Fail(kHandedBack);
  EXPECT_EQ(Only<FinishCall>().resumes, 0);
}

TEST_F(ResumeTest, WhatADrainHandsBackIsNotCounted) {
  Allow(1);
  Decoding(1);
  for (int i = 0; i < 5; ++i) {
    Fail(kHandedBack);
    Resume(7);
  }
  Fail(kBroken);
  Resume(7);
  EXPECT_THAT(All<FinishCall>(), IsEmpty());
}

TEST_F(ResumeTest, WhatFailsEverywhereDoesNotGoOn) {
  Allow(5);
  Decoding(1);
  Fail(InvalidField("prompt", "odd"));
  EXPECT_EQ(FieldOf(Only<FinishCall>().outcome.status()), "prompt");
}

TEST_F(ResumeTest, AFullPairThatIsToGoOnWaits) {
  Allow(1);
  Decoding(1);
  Fail(kBroken);
  reserve_ = Only<Reserve>();
  Handle(ReserveReplied{reserve_.attempt_id,
                        Overloaded(absl::ResourceExhaustedError("full"), /*retry_after_ms=*/20)});
  EXPECT_THAT(All<FinishCall>(), IsEmpty());
  EXPECT_EQ(core_->load().retries_decode.overload_total, 1);
}

TEST_F(ResumeTest, AStopStringThatMatchedMeanwhileEndsTheText) {
  Allow(1);
  Decoding(1);
  Tell(8);
  Fail(kBroken);
  reserve_ = Only<Reserve>();
  Answer();
  Handle(StopMatched{1});
  EXPECT_THAT(All<AbortDecode>(), SizeIs(1));
  EXPECT_THAT(All<AbortPrefill>(), SizeIs(1));
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kStop);
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(ResumeTest, WorkersThatCannotGoOnAreNotAskedTo) {
  RouterLimits limits;
  Reset(limits);
  WorkerInfo old = TestDecode("d1");
  old.fingerprint.protocol_version = kResumeVersion - 1;
  Join({TestStage("c0", 0, 1), TestDecode("d0"), old});
  for (const char* id : {"c0-0", "d0"}) Beat({id, 1});
  Decoding(1);
  ASSERT_EQ(reserve_.decode.id, "d0");
  Tell(8);
  Fail(kBroken);
  EXPECT_EQ(Only<FinishCall>().outcome.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(All<Reserve>(), IsEmpty());
}

// The prompt fits into the context with what has been drawn, so it does again.
TEST_F(ResumeTest, ADrawnTextTakesTheRoomOfTheNewTokens) {
  Allow(1);
  Decoding(1);
  Tell(8);
  Tell(9);
  Tell(10);
  Fail(kBroken);
  EXPECT_EQ(Only<Reserve>().drawn_tokens, 3) << "the last of four tokens is drawn again";
  Resume(10);
  Handle(TokenReceived{reserve_.attempt_id, {11, 0, {}}});
  EXPECT_THAT(All<DeliverToken>(), IsEmpty()) << "max_tokens are told";
}

// ---- What gives way to older requests ----

class RetractedTest : public ResumeTest {
 protected:
  RetractedTest() {
    RouterLimits limits;
    limits.max_resumes = 0;
    limits.max_waiting = 0;
    limits.pairing_timeout_us = limits.membership.pair_grace_us = 10 * kDeadlineUs;
    Reset(limits);
    Join({TestStage("c0", 0, 1), TestDecode("d0")});
  }
};

TEST_F(RetractedTest, TheSamePairGoesOnHoweverOften) {
  Decoding(1);
  Tell(8);
  for (int i = 0; i < 200; ++i) {
    Fail(kRetracted);
    EXPECT_EQ(Only<Reserve>().drawn_tokens, 1);
    EXPECT_EQ(Only<AbortDecode>().attempt_id, reserve_.attempt_id);
    Resume(8);
  }
  Tell(9);
  const RouterLoad load = core_->load();
  EXPECT_EQ(load.retries_decode.retraction_total, 200);
  EXPECT_EQ(load.retries_decode.failure_total + load.retries_decode.drain_total, 0);
  EXPECT_EQ(load.resumes.continued_total, 200);
  EXPECT_EQ(load.budget_exhausted_total, 0);
  Fail(kBroken);
  EXPECT_EQ(Only<FinishCall>().resumes, 200) << "a failure counts as before";
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(RetractedTest, BeforeTheFirstTokenItIsNoAttempt) {
  Prefilling(1);
  Fail(kRetracted);
  EXPECT_THAT(All<AbortPrefill>(), SizeIs(1)) << "the chain computes it in vain";
  reserve_ = Only<Reserve>();
  EXPECT_EQ(reserve_.drawn_tokens, 0);
  Handle(ReserveReplied{reserve_.attempt_id, kRetracted});  // Some follower had not granted it.
  reserve_ = Only<Reserve>();
  Answer();
  EXPECT_THAT(All<FinishCall>(), IsEmpty());
  EXPECT_EQ(core_->load().retries_decode.retraction_total, 2);
}

TEST_F(RetractedTest, AFailureBeforeTheFirstTokenIsTheFirstOneStill) {
  Reset({});
  JoinTwoPairs();
  Prefilling(1);
  for (int i = 0; i < 3; ++i) {
    Fail(kRetracted);
    reserve_ = Only<Reserve>();
    Answer();
  }
  Fail(kBroken);
  EXPECT_THAT(All<Reserve>(), SizeIs(1)) << "the second attempt";
}

// The queue's bound is for those that have not been taken.
TEST_F(RetractedTest, ItWaitsThoughTheQueueIsFull) {
  Decoding(1);
  Tell(8);
  Handle(HeartbeatReceived{2, {"d0", 1}, kIncarnation, core_->membership().view_version(), false});
  Fail(kRetracted);
  EXPECT_THAT(All<FinishCall>(), IsEmpty());
  EXPECT_EQ(core_->load().waiting, 1);
  Beat({"d0", 1});
  Resume(8);
  EXPECT_EQ(core_->load().decoding, 1);
}

TEST_F(RetractedTest, ItsDeadlineEndsIt) {
  Decoding(1);
  Handle(HeartbeatReceived{2, {"d0", 1}, kIncarnation, core_->membership().view_version(), false});
  Fail(kRetracted);
  now_us_ += 2 * kDeadlineUs;
  Handle(Tick{});
  EXPECT_TRUE(absl::IsDeadlineExceeded(Only<FinishCall>().outcome.status()));
}

}  // namespace
}  // namespace baton::router
