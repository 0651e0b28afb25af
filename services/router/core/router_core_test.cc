// A request through its phases, its failures and its second try.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "services/router/core/router_core_fixture.h"

namespace baton::router {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(RouterCoreTest, ARequestGoesThroughAllItsPhases) {
  JoinOnePair();
  Reserving(1);
  EXPECT_EQ(reserve_.attempt_id >> 32, 0xab);
  EXPECT_EQ(reserve_.decode.id, "d0");
  EXPECT_THAT(reserve_.writers, SizeIs(2));
  EXPECT_EQ(core_->load().reserving, 1);

  Handle(ReserveReplied{reserve_.attempt_id, Ticket{reserve_.decode, 3, 5, 100, 7}});
  const OpenStream stream = Only<OpenStream>();
  EXPECT_EQ(stream.generation, 5);
  const StartPrefill start = Only<StartPrefill>();
  EXPECT_EQ(start.stage0.id, "c0-0");
  EXPECT_EQ(start.ticket.slot, 3);
  EXPECT_EQ(core_->load().prefilling, 1);

  Handle(TokenReceived{reserve_.attempt_id, {7, -0.5F, {}}});
  EXPECT_EQ(Only<DeliverToken>().token.token, 7);
  EXPECT_EQ(core_->load().decoding, 1);
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  EXPECT_THAT(actions_, IsEmpty());
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kLength});
  const FinishCall finish = Only<FinishCall>();
  EXPECT_EQ(*finish.outcome, FinishReason::kLength);
  EXPECT_EQ(finish.attempts, 1);
  EXPECT_EQ(finish.chain_id, "c0");
  EXPECT_EQ(finish.decode_instance, "d0");
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(RouterCoreTest, ACompleteAnswerWaitsForThePrefillReportButNotForLong) {
  JoinOnePair();
  Decoding(1);
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kStop});
  EXPECT_THAT(actions_, IsEmpty());
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kStop);
  EXPECT_TRUE(core_->AtRest());

  Decoding(2);
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kStop});
  now_us_ = core_->NextDeadlineUs();
  EXPECT_EQ(now_us_, RouterLimits().settle_us);
  Handle(Tick{});
  EXPECT_THAT(All<AbortPrefill>(), SizeIs(1));
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kStop);
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(RouterCoreTest, APrefillFailureAfterTheWholeAnswerChangesNothing) {
  JoinOnePair();
  Decoding(1);
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kLength});
  Handle(PrefillEnded{reserve_.attempt_id, kBroken});
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kLength);
  EXPECT_TRUE(core_->AtRest());
}

// So that a worker that keeps asking is logged once.
TEST_F(RouterCoreTest, ARefusalInTheSameWordsIsCalledRepeated) {
  JoinOnePair();
  Ask(TestDecode("d0"));
  EXPECT_FALSE(Only<AnswerLease>().repeated) << "it is no refusal";
  WorkerInfo stranger = TestDecode("d1");
  stranger.fingerprint.dtype = "bfloat16";
  const auto asks = [&] {
    Ask(stranger);
    EXPECT_TRUE(absl::IsFailedPrecondition(Only<AnswerLease>().status));
    EXPECT_EQ(Only<AnswerLease>().instance, stranger.instance);
    return Only<AnswerLease>().repeated;
  };
  EXPECT_FALSE(asks());
  EXPECT_TRUE(asks());
  stranger.fingerprint.dtype = "float16";
  EXPECT_FALSE(asks()) << "in other words";
  stranger.instance.incarnation = 2;
  EXPECT_FALSE(asks()) << "to another life";
  EXPECT_TRUE(asks());
  stranger.fingerprint.dtype = "float32";
  Ask(stranger);
  EXPECT_EQ(Only<AnswerLease>().status, absl::OkStatus());
  EXPECT_FALSE(Only<AnswerLease>().repeated);
}

// ---- Failures of each leg in each phase ----

TEST_F(RouterCoreTest, AFailedReservationEndsTheRequestAndIsWithdrawn) {
  JoinOnePair();
  Reserving(1);
  Handle(ReserveReplied{reserve_.attempt_id, kBroken});
  EXPECT_EQ(Only<AbortDecode>().attempt_id, reserve_.attempt_id);
  EXPECT_THAT(All<AbortPrefill>(), IsEmpty());
  const absl::Status status = Only<FinishCall>().outcome.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(LegOf(status), "decode");
  EXPECT_EQ(InstanceOf(status), "d0");
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(RouterCoreTest, APrefillFailureEndsTheDecodeLeg) {
  JoinOnePair();
  for (const bool decoding : {false, true}) {
    Forgive({"c0-0", 1});  // What failed last time.
    if (decoding) {
      Decoding(1);
    } else {
      Prefilling(1);
    }
    Handle(PrefillEnded{reserve_.attempt_id, kBroken});
    EXPECT_EQ(Only<AbortDecode>().attempt_id, reserve_.attempt_id);
    const absl::Status status = Only<FinishCall>().outcome.status();
    EXPECT_EQ(LegOf(status), "prefill");
    EXPECT_EQ(InstanceOf(status), "c0-0");
    EXPECT_TRUE(core_->AtRest());
  }
}

TEST_F(RouterCoreTest, ADecodeFailureEndsThePrefillLeg) {
  JoinOnePair();
  for (const bool decoding : {false, true}) {
    Forgive({"d0", 1});  // What failed last time.
    if (decoding) {
      Decoding(1);
    } else {
      Prefilling(1);
    }
    Handle(DecodeEnded{reserve_.attempt_id, kBroken});
    EXPECT_EQ(Only<AbortPrefill>().attempt_id, reserve_.attempt_id);
    const absl::Status status = Only<FinishCall>().outcome.status();
    EXPECT_EQ(LegOf(status), "decode");
    EXPECT_EQ(InstanceOf(status), "d0");
    EXPECT_TRUE(core_->AtRest());
  }
}

TEST_F(RouterCoreTest, TheLegThatAStatusNamesIsBlamed) {
  JoinOnePair();
  Prefilling(1);
  Handle(DecodeEnded{reserve_.attempt_id, WithLeg(kBroken, "prefill", "c0-1")});
  const absl::Status status = Only<FinishCall>().outcome.status();
  EXPECT_EQ(LegOf(status), "prefill");
  EXPECT_EQ(InstanceOf(status), "c0-1");
}

TEST_F(RouterCoreTest, ATicketThatDoesNotFitIsRefused) {
  JoinOnePair();
  const std::vector<Ticket> wrong = {
      {{"d0", 9}, 0, 5, 100, 7}, {{"d0", 1}, 0, 0, 100, 7}, {{"d0", 1}, 0, 5, 99, 7}};
  for (const Ticket& ticket : wrong) {
    Reserving(1);
    Handle(ReserveReplied{reserve_.attempt_id, ticket});
    EXPECT_EQ(Only<FinishCall>().outcome.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(All<AbortDecode>(), SizeIs(1));
  }
}

TEST_F(RouterCoreTest, ADecodeThatSendsTooMuchIsStopped) {
  JoinOnePair();
  Decoding(1);
  for (int i = 0; i < 3; ++i) Handle(TokenReceived{reserve_.attempt_id, {}});
  EXPECT_THAT(All<DeliverToken>(), SizeIs(1));
  Handle(TokenReceived{reserve_.attempt_id, {}});
  EXPECT_THAT(All<DeliverToken>(), IsEmpty());
  EXPECT_EQ(Only<FinishCall>().outcome.status().code(), absl::StatusCode::kInternal);
}

// ---- Retries ----

TEST_F(RouterCoreTest, AFailureBeforeTheFirstTokenIsRetriedOnceElsewhere) {
  JoinTwoPairs();
  Prefilling(1);
  const Reserve first = reserve_;
  Handle(PrefillEnded{first.attempt_id, kBroken});
  EXPECT_EQ(Only<AbortDecode>().attempt_id, first.attempt_id);
  EXPECT_THAT(All<FinishCall>(), IsEmpty());
  reserve_ = Only<Reserve>();
  EXPECT_NE(reserve_.attempt_id, first.attempt_id);
  EXPECT_NE(reserve_.writers, first.writers);
  EXPECT_EQ(core_->load().retries_prefill.failure_total, 1);

  Answer();
  Handle(DecodeEnded{reserve_.attempt_id, kBroken});
  EXPECT_THAT(All<Reserve>(), IsEmpty());
  const FinishCall finish = Only<FinishCall>();
  EXPECT_EQ(finish.attempts, 2);
  EXPECT_EQ(LegOf(finish.outcome.status()), "decode");
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(RouterCoreTest, ARetriedReservationTakesAnotherDecode) {
  JoinTwoPairs();
  Reserving(1);
  const Reserve first = reserve_;
  Handle(ReserveReplied{first.attempt_id, kBroken});
  EXPECT_NE(Only<Reserve>().decode, first.decode);
  EXPECT_EQ(core_->load().retries_decode.failure_total, 1);
  // The one that failed is avoided by others, too, even when it is heard from, for a while.
  for (uint64_t call_id = 2; call_id < 6; ++call_id) {
    Reserving(call_id);
    EXPECT_NE(reserve_.decode, first.decode);
    Beat(first.decode);
  }
  Forgive(first.decode);
  Reserving(6);
  EXPECT_EQ(reserve_.decode, first.decode);
}

TEST_F(RouterCoreTest, AFirstTokenProvesThatItsWorkersServe) {
  JoinTwoPairs();
  Prefilling(1);
  const Reserve served = reserve_;
  Handle(CallSubmitted{2, "r2", 100, 4, now_us_ + kDeadlineUs});
  const Reserve other = Only<Reserve>();
  EXPECT_NE(other.decode, served.decode);
  Prefilling(3);
  EXPECT_EQ(reserve_.decode, served.decode);
  Handle(DecodeEnded{reserve_.attempt_id, kBroken});
  EXPECT_EQ(core_->membership().Find(served.decode)->failures, 1);
  Handle(TokenReceived{served.attempt_id, {7, 0, {}}});
  EXPECT_EQ(core_->membership().Find(served.decode)->failures, 0);
  EXPECT_EQ(core_->membership().Find(served.decode)->probation_until_us, 0);
}

TEST_F(RouterCoreTest, WhatFailsEverywhereIsNotRetried) {
  JoinTwoPairs();
  Reserving(1);
  Handle(ReserveReplied{reserve_.attempt_id, InvalidField("prompt", "odd")});
  EXPECT_THAT(All<Reserve>(), IsEmpty());
  EXPECT_EQ(FieldOf(Only<FinishCall>().outcome.status()), "prompt");
}

TEST_F(RouterCoreTest, EventsOfAnAttemptThatIsOverAreIgnored) {
  JoinTwoPairs();
  Prefilling(1);
  const uint64_t old = reserve_.attempt_id;
  Handle(PrefillEnded{old, kBroken});
  reserve_ = Only<Reserve>();
  const std::vector<Event> stale = {ReserveReplied{old, Ticket{reserve_.decode, 0, 5, 100, 7}},
                                    TokenReceived{old, {}},
                                    DecodeEnded{old, FinishReason::kStop},
                                    DecodeEnded{old, kBroken},
                                    PrefillEnded{old, kBroken},
                                    PrefillEnded{old, {}}};
  for (const Event& event : stale) {
    Handle(event);
    EXPECT_THAT(actions_, IsEmpty());
  }
  EXPECT_EQ(core_->load().reserving, 1);
}

}  // namespace
}  // namespace baton::router
