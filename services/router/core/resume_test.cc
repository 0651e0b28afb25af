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

}  // namespace
}  // namespace baton::router
