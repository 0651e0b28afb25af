#include "services/router/core/leg_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kCall = 4;
constexpr uint64_t kAttempt = 40;
constexpr int64_t kNowUs = 5'000'000;
constexpr int64_t kDeadlineUs = kNowUs + 30'500;
const InstanceRef kDecode{"d0", 7};
const InstanceRef kStage0{"p0", 8};
constexpr char kAddress[] = "10.0.0.1:5";

class LegCallsTest : public testing::Test {
 protected:
  std::optional<BeginCall> OpenReserve(const std::string& address = kAddress,
                                       uint64_t attempt_id = kAttempt) {
    actions_.clear();
    return calls_.Open(Reserve{attempt_id, kCall, kDecode, {}, kDeadlineUs}, address, kNowUs,
                       actions_);
  }
  std::optional<BeginCall> OpenDecodeStream(const std::string& address = kAddress) {
    actions_.clear();
    return calls_.Open(OpenStream{kAttempt, kDecode, 3, kDeadlineUs}, address, kNowUs, actions_);
  }
  std::optional<BeginCall> OpenStart(const std::string& address = kAddress) {
    actions_.clear();
    return calls_.Open(StartPrefill{kAttempt, kCall, kStage0, {}, kDeadlineUs}, address, kNowUs,
                       actions_);
  }
  void EndReserve(const absl::Status& status,
                  const absl::StatusOr<Ticket>& ticket = Ticket{kDecode, 1, 2, 3, 4}) {
    actions_.clear();
    calls_.ReserveEnded(kAttempt, status, ticket, actions_);
  }
  void Say(const StreamMessage& message) {
    actions_.clear();
    calls_.StreamSaid(kAttempt, message, actions_);
  }
  void EndStream(const absl::Status& status) {
    actions_.clear();
    calls_.StreamEnded(kAttempt, status, actions_);
  }
  void EndStart(const absl::Status& status, const std::vector<SampledToken>& told = {},
                const std::vector<int32_t>& expected = {}) {
    actions_.clear();
    calls_.StartEnded(kAttempt, status, told, expected, actions_);
  }
  // Up to an open stream and a start that runs.
  void Streaming() {
    ASSERT_TRUE(OpenReserve().has_value());
    EndReserve(absl::OkStatus());
    ASSERT_TRUE(OpenDecodeStream().has_value());
    ASSERT_TRUE(OpenStart().has_value());
  }
  template <typename T>
  T Told() const {
    EXPECT_THAT(actions_, SizeIs(1));
    return std::get<T>(std::get<TellRouter>(actions_.at(0)).event);
  }
  void TearDown() override { EXPECT_EQ(calls_.CheckInvariants(), absl::OkStatus()); }

  LegCalls calls_{100};
  std::vector<LegAction> actions_;
};

void ExpectFrom(const absl::Status& status, const std::string& leg, const std::string& instance) {
  EXPECT_EQ(LegOf(status), leg);
  EXPECT_EQ(InstanceOf(status), instance);
}

TEST_F(LegCallsTest, ACallHasTheRequestsTimeAndABackstopBehindIt) {
  const auto begin = OpenReserve();
  ASSERT_TRUE(begin.has_value());
  EXPECT_EQ(begin->call, LegCall::kReserve);
  EXPECT_EQ(begin->worker, kDecode);
  EXPECT_EQ(begin->address, kAddress);
  EXPECT_EQ(begin->timeout_ms, 31) << "30.5: no worker's clock is to end it first";
  EXPECT_EQ(begin->give_up_us, kDeadlineUs + 1'000'000);
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(LegCallsTest, EachCallHasTheSameTime) {
  ASSERT_TRUE(OpenReserve().has_value());
  for (const auto& begin : {OpenDecodeStream(), OpenStart()}) {
    ASSERT_TRUE(begin.has_value());
    EXPECT_EQ(begin->timeout_ms, 31);
    EXPECT_EQ(begin->give_up_us, kDeadlineUs + 1'000'000);
    EXPECT_EQ(begin->address, kAddress);
  }
}

TEST_F(LegCallsTest, ALateCallStillHasAMillisecondAndOneWithoutADeadlineAllTime) {
  const auto late = calls_.Open(Reserve{1, 1, kDecode, {}, kNowUs - 9}, kAddress, kNowUs, actions_);
  EXPECT_EQ(late->timeout_ms, 1);
  const auto very_late = calls_.Open(Reserve{2, 2, kDecode, {}, 5}, kAddress, kNowUs, actions_);
  EXPECT_EQ(very_late->give_up_us, kNowUs);
  const auto ever = calls_.Open(Reserve{3, 3, kDecode, {}, kNeverUs}, kAddress, kNowUs, actions_);
  EXPECT_EQ(ever->timeout_ms, std::numeric_limits<int32_t>::max());
  EXPECT_EQ(ever->give_up_us, kNeverUs);
}

TEST_F(LegCallsTest, WhoHasLeftIsNotCalledAndNotToldOfAnAbort) {
  EXPECT_EQ(OpenReserve(""), std::nullopt);
  const absl::Status status = Told<ReserveReplied>().ticket.status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status.message(), "decode d0 has left the cluster");
  ExpectFrom(status, "decode", "d0");
  actions_.clear();
  calls_.Abort(AbortDecode{kAttempt, kDecode, "why"}, actions_);
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(LegCallsTest, WhoHasLeftSinceItsReservationEndsTheLegThatCallsIt) {
  ASSERT_TRUE(OpenReserve().has_value());
  EndReserve(absl::OkStatus());
  EXPECT_EQ(OpenDecodeStream(""), std::nullopt);
  ExpectFrom(Told<DecodeEnded>().outcome.status(), "decode", "d0");
  EXPECT_EQ(OpenStart(""), std::nullopt);
  ExpectFrom(Told<PrefillEnded>().status, "prefill", "p0");
}

TEST_F(LegCallsTest, EachCallsAnswerIsTold) {
  OpenReserve();
  EndReserve(absl::OkStatus());
  EXPECT_EQ(Told<ReserveReplied>().ticket->generation, 2u);
  OpenDecodeStream();
  OpenStart();
  Say(SampledToken{.token = 9});
  EXPECT_EQ(Told<TokenReceived>().token.token, 9);
  EndStart(absl::OkStatus(), {{.token = 5}});
  EXPECT_EQ(Told<PrefillEnded>().status, absl::OkStatus());
  EXPECT_THAT(Told<PrefillEnded>().prompt_tokens, SizeIs(1));
  Say(StreamFinished{FinishReason::kStop});
  EXPECT_EQ(*Told<DecodeEnded>().outcome, FinishReason::kStop);
  EXPECT_EQ(Told<DecodeEnded>().attempt_id, kAttempt);
}

TEST_F(LegCallsTest, NothingTakesACompleteAnswerBack) {
  for (const absl::Status& end :
       {absl::OkStatus(), absl::UnavailableError("reset"), absl::CancelledError("")}) {
    Streaming();
    Say(StreamFinished{FinishReason::kLength});
    for (const StreamMessage& more : std::vector<StreamMessage>{
             SampledToken{.token = 1}, StreamFinished{FinishReason::kStop}, StreamMalformed{}}) {
      Say(more);
      EXPECT_THAT(actions_, IsEmpty());
    }
    EndStream(end);
    EXPECT_THAT(actions_, IsEmpty());
    calls_.Forget(kCall);
  }
}

TEST_F(LegCallsTest, AStreamThatBreaksOffIsNoAnswer) {
  Streaming();
  EndStream(absl::OkStatus());
  const absl::Status status = Told<DecodeEnded>().outcome.status();
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_EQ(status.message(), "decode d0 ended its stream without Finished");
  ExpectFrom(status, "decode", "d0");
  EndStream(absl::OkStatus());
  EXPECT_THAT(actions_, IsEmpty()) << "once";
}

TEST_F(LegCallsTest, WhatAStreamMayNotSayEndsTheLeg) {
  for (const auto& [message, what] : std::vector<std::pair<StreamMessage, std::string>>{
           {SampledToken{.token = -1}, "token id -1"},
           {SampledToken{.token = 100}, "token id 100"},
           {StreamMalformed{}, "neither token nor end"},
           {StreamFinished{}, "no reason that the router knows"}}) {
    Streaming();
    Say(message);
    const absl::Status status = Told<DecodeEnded>().outcome.status();
    EXPECT_TRUE(absl::IsInternal(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    ExpectFrom(status, "decode", "d0");
    Say(SampledToken{.token = 1});
    EXPECT_THAT(actions_, IsEmpty());
    actions_.clear();
    calls_.Abort(AbortDecode{kAttempt, kDecode, "x"}, actions_);
    EXPECT_THAT(actions_, SizeIs(2)) << "its call runs on: it is cancelled, and the worker told";
    calls_.Forget(kCall);
  }
}

TEST_F(LegCallsTest, TheLastTokenOfTheVocabularyIsOne) {
  Streaming();
  for (const int32_t token : {0, 99}) {
    Say(SampledToken{.token = token});
    EXPECT_EQ(Told<TokenReceived>().token.token, token);
  }
}

TEST_F(LegCallsTest, AWorkersOwnWordsArePassedOn) {
  const absl::Status own = WithLeg(absl::DataLossError("a checksum differs"), "prefill", "p1");
  OpenReserve();
  EndReserve(own);
  EXPECT_EQ(Told<ReserveReplied>().ticket.status(), own);
  EndReserve(own);
  EXPECT_THAT(actions_, IsEmpty()) << "once";
}

TEST_F(LegCallsTest, WhatNeverCameFromTheWorkerIsExplained) {
  Streaming();
  EndStart(absl::UnavailableError("connection refused"));
  absl::Status status = Told<PrefillEnded>().status;
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status.message(),
            "prefill p0 (10.0.0.1:5) could not be reached or went away during Prefill.Start: "
            "connection refused; send the request again");
  ExpectFrom(status, "prefill", "p0");
  EndStream(absl::ResourceExhaustedError("too large"));
  status = Told<DecodeEnded>().outcome.status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(status.message(), "decode d0: too large");
  ExpectFrom(status, "decode", "d0");
}

TEST_F(LegCallsTest, ACallThatItsWorkerGaveUpIsNotTheClientsWish) {
  OpenReserve();
  EndReserve(absl::CancelledError("RST"));
  const absl::Status status = Told<ReserveReplied>().ticket.status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status.message(), "decode d0 gave Decode.Reserve up: RST");
}

TEST_F(LegCallsTest, ABadTicketIsTheDecodesFault) {
  OpenReserve();
  EndReserve(absl::OkStatus(), absl::InvalidArgumentError("ticket.slot"));
  const absl::Status status = Told<ReserveReplied>().ticket.status();
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_EQ(status.message(), "decode d0 answered with a bad ticket: ticket.slot");
}

TEST_F(LegCallsTest, APromptThatIsToldIsTheOneThatWasAskedFor) {
  for (const auto& [told, right] : std::vector<std::pair<std::vector<SampledToken>, bool>>{
           {{{.token = 5}, {.token = 6}}, true},
           {{{.token = 5}, {.token = 7}}, false},
           {{{.token = 5}}, false},
           {{}, false}}) {
    Streaming();
    EndStart(absl::OkStatus(), told, {5, 6});
    EXPECT_EQ(Told<PrefillEnded>().status.ok(), right);
    EXPECT_THAT(Told<PrefillEnded>().prompt_tokens, SizeIs(right ? 2 : 0));
    calls_.Forget(kCall);
  }
}

TEST_F(LegCallsTest, AnAbortCancelsTheCallThatRunsAndTellsTheWorker) {
  Streaming();
  actions_.clear();
  calls_.Abort(AbortDecode{kAttempt, kDecode, "a stop string matched"}, actions_);
  ASSERT_THAT(actions_, SizeIs(2));
  EXPECT_EQ(std::get<CancelCall>(actions_[0]).call, LegCall::kStream);
  const auto& abort = std::get<SendAbort>(actions_[1]);
  EXPECT_EQ(abort.attempt_id, kAttempt);
  EXPECT_EQ(abort.leg, Role::kDecode);
  EXPECT_EQ(abort.worker, kDecode);
  EXPECT_EQ(abort.address, kAddress);
  EXPECT_EQ(abort.reason, "a stop string matched");
  EXPECT_EQ(abort.timeout_ms, 2000);
  Say(SampledToken{.token = 1});
  EXPECT_THAT(actions_, IsEmpty()) << "nothing of the leg is told any more";
  EndStream(absl::CancelledError(""));
  EXPECT_THAT(actions_, IsEmpty());
  calls_.Abort(AbortDecode{kAttempt, kDecode, "again"}, actions_);
  EXPECT_THAT(actions_, IsEmpty());
  EndStart(absl::OkStatus());
  EXPECT_EQ(Told<PrefillEnded>().status, absl::OkStatus()) << "the other leg goes on";
}

TEST_F(LegCallsTest, AWorkerIsToldOfAnAbortThoughItsCallHasFailed) {
  Streaming();
  EndStart(absl::UnavailableError("reset"));
  actions_.clear();
  calls_.Abort(AbortPrefill{kAttempt, kStage0, "failed"}, actions_);
  ASSERT_THAT(actions_, SizeIs(1)) << "there is nothing to cancel";
  EXPECT_EQ(std::get<SendAbort>(actions_[0]).leg, Role::kPrefill);
  EXPECT_EQ(std::get<SendAbort>(actions_[0]).worker, kStage0);
}

TEST_F(LegCallsTest, ALegThatNeverBeganNeedsNoAbort) {
  OpenReserve();
  actions_.clear();
  calls_.Abort(AbortPrefill{kAttempt, kStage0, "x"}, actions_);
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(LegCallsTest, AnotherAttemptForgetsTheOneBefore) {
  OpenReserve();
  ASSERT_TRUE(OpenReserve(kAddress, kAttempt + 1).has_value());
  EndReserve(absl::OkStatus());
  EXPECT_THAT(actions_, IsEmpty()) << "the former attempt's";
  calls_.ReserveEnded(kAttempt + 1, absl::OkStatus(), Ticket{}, actions_);
  EXPECT_EQ(Told<ReserveReplied>().attempt_id, kAttempt + 1);
}

TEST_F(LegCallsTest, NothingIsLeftOfARequestThatIsOver) {
  Streaming();
  calls_.Forget(kCall);
  EXPECT_TRUE(calls_.AtRest());
  Say(SampledToken{.token = 1});
  EndStream(absl::OkStatus());
  EXPECT_THAT(actions_, IsEmpty());
  EndStart(absl::OkStatus());
  EXPECT_THAT(actions_, IsEmpty());
  EXPECT_EQ(OpenDecodeStream(), std::nullopt);
  EXPECT_EQ(OpenStart(), std::nullopt);
  EXPECT_THAT(actions_, IsEmpty());
  calls_.Forget(kCall);
  calls_.Abort(AbortDecode{kAttempt, kDecode, "x"}, actions_);
  calls_.Abort(AbortPrefill{kAttempt, kStage0, "x"}, actions_);
  EXPECT_THAT(actions_, IsEmpty());
}

}  // namespace
}  // namespace baton::router
