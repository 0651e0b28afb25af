// Requests on a colocated chain: one call reads the prompt and decodes it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "services/router/core/router_core_fixture.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Status kFull = Overloaded(absl::ResourceExhaustedError("the queue is full"), 100);

class ColocatedTest : public RouterCoreTest {
 protected:
  ColocatedTest() { ResetTo({}); }
  void ResetTo(RouterLimits limits) {
    limits.max_waiting = 10;
    Reset(limits);
  }
  void JoinOne() { Join({TestColocated("c0", 0, 2), TestColocated("c0", 1, 2)}); }
  void JoinTwo() { Join({TestColocated("c0", 0, 1), TestColocated("c1", 0, 1)}); }
  void Again() { start_ = Only<StartGeneration>(); }
  void Begin(uint64_t call_id) {
    Request(call_id);
    Again();
  }
  void Prompt(size_t tokens = 0) {
    Handle(PrefillEnded{start_.attempt_id, absl::OkStatus(), std::vector<SampledToken>(tokens)});
  }
  void Token(int32_t token) { Handle(TokenReceived{start_.attempt_id, {token, 0, {}}}); }
  void End(absl::StatusOr<FinishReason> outcome) {
    Handle(DecodeEnded{start_.attempt_id, std::move(outcome)});
  }
  absl::Status FromChain(const absl::Status& status, const std::string& id = "") {
    return WithLeg(status, "prefill", id.empty() ? start_.stage0.id : id);
  }
  absl::Status Refusal() const { return Only<FinishCall>().outcome.status(); }
  bool Suspect(const std::string& id) const { return core_->membership().Find({id, 1})->suspect; }

  StartGeneration start_;
};

// ---- A request's life ----

TEST_F(ColocatedTest, OneCallIsTheWholeAttempt) {
  JoinOne();
  Begin(1);
  EXPECT_THAT(actions_, SizeIs(1)) << "nothing is reserved";
  EXPECT_EQ(start_.call_id, 1u);
  EXPECT_EQ(start_.stage0.id, "c0-0");
  EXPECT_THAT(start_.stages, SizeIs(2));
  EXPECT_EQ(start_.deadline_us, kDeadlineUs);
  EXPECT_EQ(start_.max_tokens, 4);
  EXPECT_EQ(core_->load().prefilling, 1);
  Prompt();
  Token(7);
  EXPECT_EQ(Only<DeliverToken>().token.token, 7);
  EXPECT_EQ(core_->load().decoding, 1);
  Token(8);
  End(FinishReason::kStop);
  ASSERT_THAT(actions_, SizeIs(1)) << "nothing is aborted, and nothing settles";
  const FinishCall finish = Only<FinishCall>();
  EXPECT_EQ(*finish.outcome, FinishReason::kStop);
  EXPECT_EQ(finish.chain_id, "c0");
  EXPECT_EQ(finish.decode_instance, "c0-0");
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(ColocatedTest, APromptWithoutAnAnswerIsOne) {
  JoinOne();
  Begin(1);
  Prompt();
  End(FinishReason::kLength);
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kLength);
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(ColocatedTest, TheClientHearsOfItsPromptFirst) {
  JoinOne();
  Handle(CallSubmitted{1, "r1", 100, 4, kDeadlineUs, /*prompt_logprobs=*/true});
  Again();
  Prompt(99);
  EXPECT_THAT(Only<DeliverPrompt>().tokens, SizeIs(99));
  Token(7);
  EXPECT_THAT(All<DeliverToken>(), SizeIs(1));
  End(FinishReason::kLength);
  EXPECT_TRUE(Only<FinishCall>().outcome.ok());
}

TEST_F(ColocatedTest, AnotherNumberOfPromptTokensIsTheChainsFault) {
  JoinOne();
  Handle(CallSubmitted{1, "r1", 100, 4, kDeadlineUs, /*prompt_logprobs=*/true});
  Again();
  Prompt(98);
  EXPECT_EQ(Only<AbortPrefill>().attempt_id, start_.attempt_id);
  EXPECT_TRUE(absl::IsInternal(Refusal())) << Refusal();
  EXPECT_EQ(LegOf(Refusal()), "prefill");
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(ColocatedTest, MoreTokensThanWereAskedForAreTheChainsFault) {
  JoinOne();
  Begin(1);
  Prompt();
  for (int i = 0; i < 5; ++i) Token(i);
  EXPECT_TRUE(absl::IsInternal(Refusal())) << Refusal();
  EXPECT_EQ(LegOf(Refusal()), "prefill");
  EXPECT_EQ(InstanceOf(Refusal()), "c0-0");
  EXPECT_EQ(Only<AbortPrefill>().stage0.id, "c0-0");
}

TEST_F(ColocatedTest, EveryEarlyEndAbortsTheOneCall) {
  JoinOne();
  const auto decoding = [this](uint64_t call_id) {
    Begin(call_id);
    Prompt();
    Token(7);
  };
  const auto aborted = [this] {
    EXPECT_THAT(All<AbortDecode>(), IsEmpty());
    EXPECT_EQ(Only<AbortPrefill>().attempt_id, start_.attempt_id);
    EXPECT_TRUE(core_->AtRest());
  };
  decoding(1);
  Handle(StopMatched{1});
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kStop);
  aborted();
  decoding(2);
  Handle(AbortCalled{9, "r2"});
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kAbort);
  aborted();
  decoding(3);
  Handle(ClientGone{3});
  aborted();
  Begin(4);
  Handle(ClientGone{4});
  aborted();
}

TEST_F(ColocatedTest, ADeadlineNamesTheChain) {
  JoinOne();
  Begin(1);
  now_us_ = kDeadlineUs;
  Handle(Tick{});
  EXPECT_TRUE(absl::IsDeadlineExceeded(Refusal())) << Refusal();
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("during prefill in chain c0"));
  Begin(2);
  Prompt();
  Token(7);
  now_us_ += kDeadlineUs;
  Handle(Tick{});
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("after 1 tokens from c0-0"));
  EXPECT_EQ(LegOf(Refusal()), "prefill");
  EXPECT_EQ(InstanceOf(Refusal()), "c0-0");
}

// ---- Failures ----

TEST_F(ColocatedTest, AFailureBeforeTheFirstTokenIsTriedOnceMoreElsewhere) {
  JoinTwo();
  for (const bool prompt_read : {false, true}) {
    Begin(1);
    const StartGeneration first = start_;
    if (prompt_read) Prompt();
    End(FromChain(absl::InternalError("a test")));
    EXPECT_EQ(Only<AbortPrefill>().attempt_id, first.attempt_id);
    Again();
    EXPECT_NE(start_.stage0, first.stage0);
    Prompt();
    End(FromChain(absl::InternalError("a test")));
    EXPECT_EQ(Only<FinishCall>().attempts, 2);
    EXPECT_TRUE(core_->AtRest());
  }
  EXPECT_EQ(core_->load().retries_prefill.failure_total, 2);
}

TEST_F(ColocatedTest, ATextGoesOnOnTheOtherChain) {
  JoinTwo();
  Begin(1);
  const InstanceRef first = start_.stage0;
  Prompt();
  Token(7);
  Token(8);
  End(FromChain(kBroken));
  Again();
  EXPECT_NE(start_.stage0, first);
  EXPECT_EQ(start_.drawn_tokens, 1);
  Prompt();
  Token(8);
  EXPECT_THAT(All<DeliverToken>(), IsEmpty());
  Token(9);
  EXPECT_EQ(Only<DeliverToken>().token.token, 9);
}

TEST_F(ColocatedTest, TheStageThatIsNamedIsSuspect) {
  JoinOne();
  Begin(1);
  End(FromChain(kBroken, "c0-1"));
  EXPECT_TRUE(Suspect("c0-1"));
  EXPECT_FALSE(Suspect("c0-0"));
}

TEST_F(ColocatedTest, TheChainIsBlamedForWhatNamesADecode) {
  JoinOne();
  Begin(1);
  End(WithLeg(kBroken, "decode", "c0-1"));
  EXPECT_TRUE(Suspect("c0-1"));
}

TEST_F(ColocatedTest, AFirstTokenProvesThatEachStageServes) {
  JoinOne();
  Begin(1);
  const StartGeneration served = start_;
  Begin(2);
  End(FromChain(kBroken, "c0-1"));
  ASSERT_EQ(core_->membership().Find({"c0-1", 1})->failures, 1);
  start_ = served;
  Prompt();
  Token(7);
  EXPECT_EQ(core_->membership().Find({"c0-1", 1})->failures, 0);
}

TEST_F(ColocatedTest, ALostStageEndsWhatTheChainDecodes) {
  JoinOne();
  Begin(1);
  Prompt();
  Token(7);
  Say({"c0-1", 1}, {0, false, {}, true, /*leaving=*/true});
  EXPECT_TRUE(IsEndedByDrain(Refusal())) << Refusal();
  EXPECT_EQ(InstanceOf(Refusal()), "c0-1");
  EXPECT_TRUE(core_->AtRest());
}

// ---- Beside pairs of chain and decode service ----

TEST_F(ColocatedTest, AFailedChainsRequestMayGoToAPairAndTheOtherWayRound) {
  Join({TestColocated("c0", 0, 1), TestStage("c1", 0, 1), TestDecode("d0")});
  for (const char* id : {"c0-0", "c1-0", "d0"}) Beat({id, 1});
  ASSERT_THAT(core_->membership().ReadyPairs(), SizeIs(2));
  Request(1);
  if (All<StartGeneration>().empty()) {
    reserve_ = Only<Reserve>();
    Handle(ReserveReplied{reserve_.attempt_id, kBroken});
    Again();
    Prompt();
    Token(7);
    End(FinishReason::kStop);
  } else {
    Again();
    End(FromChain(kBroken));
    reserve_ = Only<Reserve>();
    Answer();
    Handle(TokenReceived{reserve_.attempt_id, {7, 0, {}}});
    Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
    Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kStop});
  }
  EXPECT_EQ(Only<FinishCall>().attempts, 2);
  EXPECT_TRUE(core_->AtRest());
}

// ---- Overload and waiting ----

TEST_F(ColocatedTest, AFullChainsRefusalIsNoFailure) {
  JoinTwo();
  Begin(1);
  const StartGeneration first = start_;
  End(FromChain(kFull));
  Again();
  EXPECT_NE(start_.stage0, first.stage0);
  EXPECT_EQ(core_->load().retries_prefill.refused_total, 1);
  EXPECT_EQ(core_->load().retries_prefill.overload_total, 1);
  for (uint64_t call_id = 2; call_id <= 4; ++call_id) {
    Request(call_id);
    EXPECT_NE(Only<StartGeneration>().stage0, first.stage0) << "which is full";
  }
}

TEST_F(ColocatedTest, WithoutRoomItWaitsOutTheHint) {
  JoinOne();
  Begin(1);
  End(FromChain(kFull));
  EXPECT_EQ(core_->load().waiting, 1);
  now_us_ = 100'000;
  Handle(Tick{});
  EXPECT_EQ(Only<StartGeneration>().call_id, 1u);
}

// The chain has 64 pages of 16 tokens: four requests of 240 + 16, and one that waits there.
TEST_F(ColocatedTest, WhatDoesNotFitWaitsInTheRouter) {
  JoinOne();
  for (uint64_t call_id = 1; call_id <= 6; ++call_id) {
    Handle(CallSubmitted{call_id, "r" + std::to_string(call_id), 240, 16, kDeadlineUs});
    ASSERT_THAT(All<StartGeneration>(), SizeIs(call_id <= 5 ? 1 : 0)) << call_id;
    if (call_id == 1) Again();
  }
  EXPECT_EQ(core_->load().waiting, 1);
  Prompt();
  EXPECT_THAT(actions_, IsEmpty()) << "the pages are held to the end";
  Token(7);
  End(FinishReason::kStop);
  EXPECT_EQ(Only<StartGeneration>().call_id, 6u);
}

TEST_F(ColocatedTest, WhatNeverFitsIsRefusedAtOnce) {
  JoinOne();
  Handle(CallSubmitted{1, "r1", 1000, 25, kDeadlineUs});
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal()));
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("ask for at most 24"));
  Handle(CallSubmitted{2, "r2", 1024, 1, kDeadlineUs});
  EXPECT_THAT(std::string(Refusal().message()),
              HasSubstr("the largest colocated chain takes 1024 tokens of prompt and output"));
  Handle(CallSubmitted{3, "r3", 1000, 24, kDeadlineUs});
  EXPECT_THAT(All<StartGeneration>(), SizeIs(1));
}

TEST_F(ColocatedTest, WhoAskedForNoNumberHasWhatThereIsRoomFor) {
  JoinOne();
  CallSubmitted call{1, "r1", 1000, 500, kDeadlineUs};
  call.clip = true;
  Handle(call);
  EXPECT_EQ(Only<StartGeneration>().max_tokens, 24);
}

TEST_F(ColocatedTest, ARequestWaitsForAChainThatIsComing) {
  RouterLimits limits;
  limits.pairing_timeout_us = limits.membership.pair_grace_us = 300'000;
  ResetTo(limits);
  Ask(TestColocated("c0", 0, 2));
  EXPECT_EQ(core_->outlook(now_us_), Outlook::kRefused);
  Request(1);
  EXPECT_THAT(
      std::string(Refusal().message()),
      HasSubstr("no colocated chain is ready: c0-0 is not ready; chain c0 lacks rank 1 of 2"));
  Ask(TestColocated("c0", 1, 2));
  EXPECT_EQ(core_->outlook(now_us_), Outlook::kWaits);
  Request(2);
  EXPECT_THAT(actions_, IsEmpty());
  Beat({"c0-0", 1});
  EXPECT_THAT(actions_, SizeIs(1));
  Beat({"c0-1", 1});
  EXPECT_EQ(Only<StartGeneration>().call_id, 2u);
  EXPECT_EQ(core_->outlook(now_us_), Outlook::kServed);
}

TEST_F(ColocatedTest, WaitingForOneEnds) {
  RouterLimits limits;
  limits.pairing_timeout_us = limits.membership.pair_grace_us = 300'000;
  ResetTo(limits);
  JoinOne();
  Dies({"c0-1", 1});
  Request(1);
  EXPECT_THAT(actions_, IsEmpty());
  now_us_ = 300'000;
  Handle(Tick{});
  EXPECT_TRUE(absl::IsUnavailable(Refusal()));
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("c0-1 does not answer"));
}

// ---- Leaving ----

TEST_F(ColocatedTest, EachStageIsHeldUntilTheLastToken) {
  JoinOne();
  Begin(1);
  const auto needed = [this](const char* id) {
    Say({id, 1}, {0, false, {}, /*draining=*/true});
    return Only<AnswerHeartbeat>().needed_requests;
  };
  for (const char* id : {"c0-0", "c0-1"}) EXPECT_EQ(needed(id), 1) << id;
  Prompt();
  Token(7);
  for (const char* id : {"c0-0", "c0-1"}) EXPECT_EQ(needed(id), 1) << id;
  EXPECT_THAT(core_->membership().ReadyPairs(), IsEmpty());
  End(FinishReason::kLength);
  EXPECT_TRUE(Only<FinishCall>().outcome.ok());
  for (const char* id : {"c0-0", "c0-1"}) EXPECT_EQ(needed(id), 0) << id;
}

TEST_F(ColocatedTest, WhatADrainingChainHandsBackGoesElsewhere) {
  JoinTwo();
  Begin(1);
  const StartGeneration first = start_;
  End(EndedByDrain(FromChain(absl::UnavailableError("drains"))));
  Again();
  EXPECT_NE(start_.stage0, first.stage0);
  EXPECT_EQ(core_->load().retries_prefill.drain_total, 1);
}

TEST_F(ColocatedTest, TheRoutersOwnDrainAbortsIt) {
  JoinOne();
  Begin(1);
  Handle(RouterDrainBegan{0, 1000});
  now_us_ = 1000;
  Handle(Tick{});
  EXPECT_THAT(All<AbortPrefill>(), SizeIs(1));
  EXPECT_TRUE(IsEndedByDrain(Refusal()));
  EXPECT_TRUE(core_->AtRest());
}

}  // namespace
}  // namespace baton::router
