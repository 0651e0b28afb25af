// Prefill.Generate: one call that is both legs of an attempt on a colocated chain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "common/base/status.h"
#include "services/router/core/leg_calls.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kCall = 4;
constexpr uint64_t kAttempt = 40;
constexpr int64_t kNowUs = 5'000'000;
constexpr int64_t kDeadlineUs = kNowUs + 30'500;
const InstanceRef kStage0{"p0", 8};

class LegCallsColocatedTest : public testing::Test {
 protected:
  std::optional<BeginCall> Open(const std::string& address = "10.0.0.1:5",
                                uint64_t attempt_id = kAttempt) {
    actions_.clear();
    return calls_.Open(StartGeneration{attempt_id, kCall, kStage0, {}, kDeadlineUs, 7}, address,
                       kNowUs, actions_);
  }
  void Prompt(const std::vector<SampledToken>& told = {},
              const std::vector<int32_t>& expected = {}) {
    actions_.clear();
    calls_.PromptTold(kAttempt, told, expected, actions_);
  }
  void Say(const StreamMessage& message) {
    actions_.clear();
    calls_.StreamSaid(kAttempt, message, actions_);
  }
  void EndStream(const absl::Status& status) {
    actions_.clear();
    calls_.StreamEnded(kAttempt, status, actions_);
  }
  template <typename T>
  T Told() const {
    EXPECT_THAT(actions_, SizeIs(1));
    return std::get<T>(std::get<TellRouter>(actions_.at(0)).event);
  }
  // Its failure ends the stream, and is the chain's.
  void ExpectFailure(absl::StatusCode code, const std::string& words) const {
    const absl::Status status = Told<DecodeEnded>().outcome.status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
    EXPECT_EQ(LegOf(status), "prefill");
    EXPECT_EQ(InstanceOf(status), "p0");
  }
  void TearDown() override { EXPECT_EQ(calls_.CheckInvariants(), absl::OkStatus()); }

  LegCalls calls_{100};
  std::vector<LegAction> actions_;
};

TEST_F(LegCallsColocatedTest, ItHasTheRequestsTimeAndABackstop) {
  const auto begin = Open();
  ASSERT_TRUE(begin.has_value());
  EXPECT_EQ(begin->call, LegCall::kGenerate);
  EXPECT_EQ(begin->worker, kStage0);
  EXPECT_EQ(begin->timeout_ms, 31);
  EXPECT_EQ(begin->give_up_us, kDeadlineUs + 1'000'000);
}

TEST_F(LegCallsColocatedTest, PromptTokensAndEndAreTold) {
  ASSERT_TRUE(Open().has_value());
  Prompt({{.token = 5}}, {5});
  EXPECT_EQ(Told<PrefillEnded>().status, absl::OkStatus());
  EXPECT_THAT(Told<PrefillEnded>().prompt_tokens, SizeIs(1));
  Say(SampledToken{.token = 9});
  EXPECT_EQ(Told<TokenReceived>().token.token, 9);
  Say(StreamFinished{FinishReason::kStop});
  EXPECT_EQ(*Told<DecodeEnded>().outcome, FinishReason::kStop);
  EndStream(absl::UnavailableError("reset"));
  EXPECT_THAT(actions_, IsEmpty()) << "nothing takes a complete answer back";
  Prompt();
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(LegCallsColocatedTest, ThePromptComesFirstAndOnce) {
  for (const StreamMessage& early :
       std::vector<StreamMessage>{SampledToken{.token = 9}, StreamFinished{FinishReason::kStop}}) {
    ASSERT_TRUE(Open().has_value());
    Say(early);
    ExpectFailure(absl::StatusCode::kInternal, "did not begin with what it knows of the prompt");
    calls_.Forget(kCall);
  }
  ASSERT_TRUE(Open().has_value());
  Prompt();
  Prompt();
  ExpectFailure(absl::StatusCode::kInternal, "told of the prompt twice");
  Say(SampledToken{.token = 9});
  EXPECT_THAT(actions_, IsEmpty()) << "the attempt has failed";
}

TEST_F(LegCallsColocatedTest, OtherTokensThanThePromptsAreNoAnswer) {
  for (const std::vector<int32_t>& expected : std::vector<std::vector<int32_t>>{{6}, {5, 6}}) {
    ASSERT_TRUE(Open().has_value());
    Prompt({{.token = 5}}, expected);
    ExpectFailure(absl::StatusCode::kInternal, "other tokens than the prompt's");
    calls_.Forget(kCall);
  }
}

TEST_F(LegCallsColocatedTest, NonsenseAfterThePromptIsTheChains) {
  const std::vector<std::pair<StreamMessage, std::string>> nonsense = {
      {SampledToken{.token = 100}, "outside the vocabulary"},
      {SampledToken{.token = -1}, "outside the vocabulary"},
      {StreamMalformed{}, "neither token nor end"},
      {StreamFinished{}, "for no reason"}};
  for (const auto& [message, words] : nonsense) {
    ASSERT_TRUE(Open().has_value());
    Prompt();
    Say(message);
    ExpectFailure(absl::StatusCode::kInternal, words);
    calls_.Forget(kCall);
  }
}

TEST_F(LegCallsColocatedTest, AStreamThatEndsEarlyIsTheChainsFailure) {
  ASSERT_TRUE(Open().has_value());
  EndStream(absl::UnavailableError("reset"));
  ExpectFailure(absl::StatusCode::kUnavailable, "went away during Prefill.Generate: reset");
  calls_.Forget(kCall);
  ASSERT_TRUE(Open().has_value());
  Prompt();
  EndStream(absl::OkStatus());
  ExpectFailure(absl::StatusCode::kInternal, "without Finished");
  calls_.Forget(kCall);
  ASSERT_TRUE(Open().has_value());
  EndStream(WithLeg(Overloaded(absl::ResourceExhaustedError("full"), 30), "prefill", "p0"));
  EXPECT_TRUE(IsOverloaded(Told<DecodeEnded>().outcome.status()));
}

TEST_F(LegCallsColocatedTest, WhoHasLeftIsNotCalled) {
  EXPECT_EQ(Open(""), std::nullopt);
  ExpectFailure(absl::StatusCode::kUnavailable, "prefill p0 has left the cluster");
  actions_.clear();
  calls_.Abort(AbortPrefill{kAttempt, kStage0, "why"}, actions_);
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(LegCallsColocatedTest, AnAbortCancelsTheStreamAndTellsTheChain) {
  ASSERT_TRUE(Open().has_value());
  Prompt();
  actions_.clear();
  calls_.Abort(AbortPrefill{kAttempt, kStage0, "why"}, actions_);
  ASSERT_THAT(actions_, SizeIs(2));
  EXPECT_EQ(std::get<CancelCall>(actions_[0]).call, LegCall::kGenerate);
  EXPECT_EQ(std::get<SendAbort>(actions_[1]).leg, Role::kPrefill);
  EXPECT_EQ(std::get<SendAbort>(actions_[1]).worker, kStage0);
  Say(SampledToken{.token = 9});
  EXPECT_THAT(actions_, IsEmpty());
  EndStream(absl::CancelledError(""));
  EXPECT_THAT(actions_, IsEmpty());
  EXPECT_FALSE(calls_.AtRest());
  calls_.Forget(kCall);
  EXPECT_TRUE(calls_.AtRest());
}

TEST_F(LegCallsColocatedTest, ASecondAttemptTakesThePlaceOfTheFirst) {
  ASSERT_TRUE(Open().has_value());
  ASSERT_TRUE(Open("10.0.0.1:5", kAttempt + 1).has_value());
  Prompt();
  EXPECT_THAT(actions_, IsEmpty()) << "of the first one";
  calls_.PromptTold(kAttempt + 1, {}, {}, actions_);
  EXPECT_THAT(actions_, SizeIs(1));
}

// A decode service's stream tells of no prompt.
TEST_F(LegCallsColocatedTest, APromptIsOnlyAColocatedChainsToTell) {
  const InstanceRef decode{"d0", 7};
  ASSERT_TRUE(
      calls_.Open(Reserve{kAttempt, kCall, decode, {}, kDeadlineUs}, "a:1", kNowUs, actions_)
          .has_value());
  calls_.ReserveEnded(kAttempt, absl::OkStatus(), Ticket{decode, 1, 2, 3, 4}, actions_);
  ASSERT_TRUE(calls_.Open(OpenStream{kAttempt, decode, 3, kDeadlineUs}, "a:1", kNowUs, actions_)
                  .has_value());
  Prompt();
  EXPECT_THAT(actions_, IsEmpty());
  Say(SampledToken{.token = 9});
  EXPECT_EQ(Told<TokenReceived>().token.token, 9);
}

}  // namespace
}  // namespace baton::router
