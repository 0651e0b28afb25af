// Requests that ask for their prompt's tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "common/base/status.h"
#include "services/router/core/router_core_fixture.h"

namespace baton::router {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

class PromptTokensTest : public RouterCoreTest {
 protected:
  void Prefilling(uint64_t call_id) {
    Handle(
        CallSubmitted{call_id, "r" + std::to_string(call_id), 100, 4, now_us_ + kDeadlineUs, true});
    reserve_ = Only<Reserve>();
    Answer();
  }
  void Token(int32_t token) { Handle(TokenReceived{reserve_.attempt_id, {token, 0, {}}}); }
  void PrefillEnds(size_t tokens = 99) {
    Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus(), std::vector<SampledToken>(tokens)});
  }
};

TEST_F(PromptTokensTest, ThePromptComesBeforeTokensThatOvertookIt) {
  JoinOnePair();
  Prefilling(1);
  Token(7);
  Token(8);
  EXPECT_THAT(actions_, IsEmpty());
  EXPECT_EQ(core_->load().prefilling, 1);
  PrefillEnds();
  ASSERT_THAT(actions_, SizeIs(3));
  EXPECT_THAT(std::get<DeliverPrompt>(actions_[0]).tokens, SizeIs(99));
  EXPECT_EQ(std::get<DeliverToken>(actions_[1]).token.token, 7);
  EXPECT_EQ(std::get<DeliverToken>(actions_[2]).token.token, 8);
  Token(9);
  EXPECT_EQ(Only<DeliverToken>().token.token, 9);
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kLength});
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kLength);
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(PromptTokensTest, AnAnswerIsNotCompleteWithoutThePrompt) {
  JoinOnePair();
  Prefilling(1);
  Token(7);
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kStop});
  EXPECT_EQ(core_->NextDeadlineUs(), kDeadlineUs) << "a report would not be waited for so long";
  PrefillEnds();
  EXPECT_THAT(All<DeliverPrompt>(), SizeIs(1));
  EXPECT_THAT(All<DeliverToken>(), SizeIs(1));
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kStop);
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(PromptTokensTest, AFailureBeforeThePromptIsToldIsRetried) {
  JoinTwoPairs();
  Prefilling(1);
  Token(7);
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kStop});
  Handle(PrefillEnded{reserve_.attempt_id, kBroken, {}});
  EXPECT_THAT(All<FinishCall>(), IsEmpty());
  reserve_ = Only<Reserve>();
  Answer();
  Token(7);
  PrefillEnds();
  EXPECT_THAT(All<DeliverToken>(), SizeIs(1)) << "what the first attempt held is gone";
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kStop});
  EXPECT_EQ(Only<FinishCall>().attempts, 2);
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(PromptTokensTest, ThePromptIsToldOnceOverARetry) {
  JoinTwoPairs();
  Prefilling(1);
  PrefillEnds();
  EXPECT_THAT(All<DeliverPrompt>(), SizeIs(1));
  Handle(DecodeEnded{reserve_.attempt_id, kBroken});
  reserve_ = Only<Reserve>();
  Answer();
  Token(7);
  EXPECT_THAT(All<DeliverToken>(), SizeIs(1));
  PrefillEnds();
  EXPECT_THAT(actions_, IsEmpty());
  Handle(ClientGone{1});
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(PromptTokensTest, AFailureWithoutAnyTokensIsToldAsItIs) {
  JoinOnePair();
  Prefilling(1);
  Handle(PrefillEnded{reserve_.attempt_id, absl::DataLossError("a test"), {}});
  EXPECT_EQ(Only<FinishCall>().outcome.status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(PromptTokensTest, AnotherNumberOfTokensIsTheChainsFault) {
  JoinOnePair();
  Prefilling(1);
  PrefillEnds(98);
  const absl::Status status = Only<FinishCall>().outcome.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(LegOf(status), "prefill");
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(PromptTokensTest, DeadlineAndAbortEndTheWaiting) {
  JoinOnePair();
  Prefilling(1);
  Token(7);
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kStop});
  now_us_ = core_->NextDeadlineUs();
  Handle(Tick{});
  const absl::Status status = Only<FinishCall>().outcome.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(LegOf(status), "prefill");
  Prefilling(2);
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kStop});
  Handle(AbortCalled{9, "r2"});
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kAbort);
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(PromptTokensTest, HeldTokensCountAgainstTheLimit) {
  JoinOnePair();
  Prefilling(1);
  for (int i = 0; i < 4; ++i) Token(i);
  EXPECT_THAT(actions_, IsEmpty());
  Token(4);
  EXPECT_EQ(Only<FinishCall>().outcome.status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(core_->AtRest());
}

}  // namespace
}  // namespace baton::router
