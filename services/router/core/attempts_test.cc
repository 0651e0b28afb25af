// How often a request is tried, what counts as a failure, and whose it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "services/router/core/router_core_fixture.h"

namespace baton::router {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Status kHandedBack = EndedByDrain(absl::AbortedError("drains"));
const absl::Status kFull = Overloaded(absl::ResourceExhaustedError("the queue is full"), 100);
const absl::Status kWrong = absl::InternalError("a test");
const absl::Status kBarred = Unconnected(absl::UnavailableError("no way there"));

class AttemptsTest : public RouterCoreTest {
 protected:
  RouterLimits Patient(int max_attempts = 2) const {
    RouterLimits limits;
    limits.max_waiting = 10;
    limits.max_attempts = max_attempts;
    return limits;
  }
  void JoinTwoPairsWith(int max_waiting) {
    RouterLimits limits = Patient();
    limits.max_waiting = max_waiting;
    Reset(limits);
    JoinTwoPairs();
  }
  // The next attempt, which an event has begun.
  void Again() { reserve_ = Only<Reserve>(); }
  void FailReserve(const absl::Status& status) {
    Handle(ReserveReplied{reserve_.attempt_id, status});
  }
  bool Suspect(const std::string& id) const { return core_->membership().Find({id, 1})->suspect; }
};

// ---- How often ----

TEST_F(AttemptsTest, WhatIsHandedBackLeavesTheOtherTriesToFailures) {
  JoinTwoPairs();
  Reserving(1);
  FailReserve(kHandedBack);
  Again();
  EXPECT_EQ(core_->load().retries_decode.drain_total, 1);
  FailReserve(kWrong);
  Again();
  EXPECT_EQ(core_->load().retries_decode.failure_total, 1);
  FailReserve(kWrong);
  EXPECT_EQ(Only<FinishCall>().attempts, 3);
}

// For logs: the core says nothing of a request whose client has left.
TEST_F(AttemptsTest, TheEndOfACallIsToldBeforeItsClientIsGone) {
  JoinTwoPairs();
  Reserving(1);
  const FinishCall end = core_->EndOf(1, kWrong);
  EXPECT_EQ(end.call_id, 1u);
  EXPECT_EQ(end.outcome.status(), kWrong);
  EXPECT_EQ(end.attempts, 1);
  EXPECT_FALSE(end.chain_id.empty());
  EXPECT_EQ(end.decode_instance, reserve_.decode.id);
  Handle(ClientGone{1});
  EXPECT_THAT(All<FinishCall>(), IsEmpty());
  EXPECT_EQ(core_->EndOf(1, kWrong).attempts, 0);
}

TEST_F(AttemptsTest, ARefusalLeavesTheOtherTriesToFailures) {
  Reset(Patient());
  JoinTwoPairs();
  Reserving(1);
  FailReserve(kFull);
  Again();
  FailReserve(kWrong);
  EXPECT_THAT(All<FinishCall>(), IsEmpty());
  EXPECT_EQ(core_->load().waiting, 1) << "the other one is full";
  EXPECT_EQ(core_->load().retries_decode.failure_total, 1);
}

// A worker that drains is in no pair; one that only says so must not be asked for ever.
TEST_F(AttemptsTest, HandingBackIsBounded) {
  Reset(Patient(/*max_attempts=*/1));
  JoinTwoPairs();
  Reserving(1);
  for (int i = 0; i < 64; ++i) {
    FailReserve(kHandedBack);
    Again();
  }
  FailReserve(kHandedBack);
  EXPECT_EQ(Only<FinishCall>().attempts, 65);
}

TEST_F(AttemptsTest, RefusalsAreBoundedBehindTheirBudget) {
  RouterLimits limits = Patient();
  limits.retry_budget = {.percent = 0, .per_second = 100};
  limits.overload_backoff = {.first_us = 10, .longest_us = 10};
  Reset(limits);
  JoinOnePair();
  Reserving(1);
  for (int i = 0; i < 16; ++i) {
    FailReserve(
        Overloaded(absl::ResourceExhaustedError("the queue is full"), /*retry_after_ms=*/1));
    now_us_ += 1000;
    Handle(Tick{});
    Again();
  }
  FailReserve(kFull);
  EXPECT_EQ(Only<FinishCall>().attempts, 17);
}

TEST_F(AttemptsTest, ARefusalWhenTheTimeIsOverIsTheLastWord) {
  Reset(Patient());
  JoinTwoPairs();
  Reserving(1);
  now_us_ = kDeadlineUs;
  FailReserve(kFull);
  EXPECT_TRUE(IsOverloaded(Only<FinishCall>().outcome.status()));
}

TEST_F(AttemptsTest, ARefusalAfterTheFirstTokenIsAFailure) {
  Reset(Patient());
  JoinTwoPairs();
  Decoding(1);
  Handle(DecodeEnded{reserve_.attempt_id, kFull});
  EXPECT_EQ(core_->load().retries_decode.failure_total, 1);
  EXPECT_EQ(core_->load().retries_decode.refused_total, 0);
}

TEST_F(AttemptsTest, WhatIsNotTriedAgainIsNotCounted) {
  RouterLimits limits = Patient();
  limits.pairing_timeout_us = kDeadlineUs;
  Reset(limits);
  JoinOnePair();
  Reserving(1);
  FailReserve(kBroken);
  EXPECT_EQ(Only<FinishCall>().attempts, 1);
  EXPECT_EQ(core_->load().retries_decode.failure_total, 0) << "no pair is ready, and none expected";
}

// Two decodes, of which one is full: there is a pair for the request, without room. The queue's
// bound is for those that come.
TEST_F(AttemptsTest, WhatFailedWaitsForRoomBesideAFullQueue) {
  JoinTwoPairsWith(/*max_waiting=*/1);
  Reserving(1);
  FailReserve(kFull);
  Again();
  const Reserve first = reserve_;
  Prefilling(2);
  EXPECT_EQ(reserve_.decode, first.decode);
  Handle(PrefillEnded{reserve_.attempt_id, WithLeg(kFull, "decode", reserve_.decode.id)});
  ASSERT_EQ(core_->load().waiting, 1);
  reserve_ = first;
  FailReserve(kWrong);
  EXPECT_THAT(All<FinishCall>(), IsEmpty());
  EXPECT_EQ(core_->load().waiting, 2);
  EXPECT_EQ(core_->load().retries_decode.failure_total, 1);
  Handle(CallSubmitted{3, "r3", 100, 8, now_us_ + kDeadlineUs});
  EXPECT_EQ(Only<FinishCall>().outcome.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(AttemptsTest, AFailureIsToldIfNoneMayWait) {
  JoinTwoPairsWith(/*max_waiting=*/0);
  Reserving(1);
  const Reserve first = reserve_;
  Reserving(2);
  ASSERT_NE(reserve_.decode, first.decode);
  FailReserve(kFull);
  EXPECT_EQ(Only<FinishCall>().outcome.status().code(), absl::StatusCode::kResourceExhausted);
  reserve_ = first;
  FailReserve(kWrong);
  EXPECT_EQ(Only<FinishCall>().outcome.status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(core_->load().retries_decode.failure_total, 0);
}

// The chain has room for 256 tokens, the decode service for 1024.
TEST_F(AttemptsTest, AShortPromptMayHaveALongAnswer) {
  Reset(Patient());
  std::vector<WorkerInfo> workers = {TestStage("c0", 0, 1), TestStage("c1", 0, 1), TestDecode("d0"),
                                     TestDecode("d1")};
  for (WorkerInfo& worker : workers) {
    if (worker.role == Role::kPrefill) worker.page_count = 16;
  }
  Join(workers);
  Handle(CallSubmitted{1, "r1", 100, 500, now_us_ + kDeadlineUs});
  Again();
  FailReserve(kWrong);
  Again();
  FailReserve(kFull);
  if (All<Reserve>().empty()) {  // It waits for room.
    now_us_ += 100'000;
    Handle(Tick{});
  }
  Again();
  Handle(ClientGone{1});
  EXPECT_TRUE(core_->AtRest());
}

// It does not wait for a pair: there is one.
TEST_F(AttemptsTest, WhoseWorkerIsLostWaitsForRoomOnTheOther) {
  Reset(Patient());
  Join({TestStage("c0", 0, 1), TestDecode("d0"), TestDecode("d1")});
  for (const char* id : {"c0-0", "d0"}) Beat({id, 1});
  Handle(CallSubmitted{1, "r1", 100, 4, 100 * kDeadlineUs});
  Again();
  const InstanceRef full = reserve_.decode;
  FailReserve(Overloaded(absl::ResourceExhaustedError("full"), /*retry_after_ms=*/20'000));
  Again();
  now_us_ = kDeadlineUs;
  Beat({"c0-0", 1});
  Beat(full);
  now_us_ = 10 * kDeadlineUs;  // The other one's lease is over.
  Handle(Tick{});
  EXPECT_THAT(All<FinishCall>(), IsEmpty());
  EXPECT_EQ(core_->load().waiting, 1);
}

// ---- Whose ----

TEST_F(AttemptsTest, TheLegThatIsNamedIsTriedElsewhereWhoeverReportsIt) {
  JoinTwoPairs();
  Prefilling(1);
  const std::string stage0 = Only<StartPrefill>().stage0.id;
  Handle(PrefillEnded{reserve_.attempt_id, WithLeg(kBroken, "decode", reserve_.decode.id)});
  EXPECT_EQ(core_->load().retries_decode.failure_total, 1);
  EXPECT_EQ(core_->load().retries_prefill.failure_total, 0);
  EXPECT_TRUE(Suspect(reserve_.decode.id));
  EXPECT_FALSE(Suspect(stage0));
  Again();
  Answer();
  const std::string other = Only<StartPrefill>().stage0.id;
  Handle(DecodeEnded{reserve_.attempt_id, WithLeg(kBroken, "prefill", other)});
  EXPECT_TRUE(Suspect(other));
  EXPECT_FALSE(Suspect(reserve_.decode.id));
}

// Two that can't connect may each serve others.
TEST_F(AttemptsTest, APairThatCannotConnectIsLeftAndNobodyIsBlamed) {
  Reset(Patient());
  std::vector<WorkerInfo> workers = {TestStage("c0", 0, 1), TestStage("c1", 0, 1), TestDecode("d0"),
                                     TestDecode("d1")};
  for (size_t i = 0; i < workers.size(); ++i) workers[i].instance.incarnation = 10 + i;
  Join(workers);
  Prefilling(1);
  const InstanceRef stage0 = Only<StartPrefill>().stage0;
  const InstanceRef decode = reserve_.decode;
  Handle(PrefillEnded{reserve_.attempt_id, WithLeg(kBarred, "decode", decode.id), {}});
  Again();
  EXPECT_EQ(core_->load().retries_decode.failure_total, 1);
  Answer();
  EXPECT_FALSE(reserve_.decode == decode && Only<StartPrefill>().stage0 == stage0);
  for (const Worker& worker : core_->membership().Workers()) {
    SCOPED_TRACE(worker.info.instance.id);
    EXPECT_FALSE(worker.suspect);
    EXPECT_EQ(worker.failures, 0);
    EXPECT_EQ(worker.probation_until_us, 0);
  }
  EXPECT_EQ(core_->membership().CountReadyPairs(), 3u);
}

TEST_F(AttemptsTest, WithoutAnotherPairOneThatCouldNotConnectIsWaitedFor) {
  RouterLimits limits = Patient();
  limits.pairing_timeout_us = limits.membership.pair_grace_us = kDeadlineUs;
  limits.membership.unconnected_us = kDeadlineUs / 2;
  Reset(limits);
  Join({TestStage("c0", 0, 1), TestDecode("d0")});
  now_us_ = 2 * kDeadlineUs;  // Nothing has changed for long.
  Prefilling(1);
  Handle(PrefillEnded{reserve_.attempt_id, WithLeg(kBarred, "decode", "d0"), {}});
  EXPECT_THAT(All<FinishCall>(), IsEmpty());
  ASSERT_EQ(core_->load().waiting, 1);
  EXPECT_EQ(core_->NextDeadlineUs(), now_us_ + kDeadlineUs / 2);
  now_us_ = core_->NextDeadlineUs();
  Handle(Tick{});
  Again();
  EXPECT_EQ(reserve_.call_id, 1u);
}

// Who is named has to be of the leg that is.
TEST_F(AttemptsTest, AStatusThatNamesTheOtherLegsProcessBlamesItsOwnLegsFirst) {
  followers_ = {{"d0-1", 1}};
  const auto join = [this] {
    Reset({});
    Join({TestStage("c0", 0, 2), TestStage("c0", 1, 2), TestDecodeRank(0), TestDecodeRank(1)});
    for (const Worker& member : core_->membership().Workers()) Beat(member.info.instance);
    Prefilling(1);
  };
  join();
  Handle(DecodeEnded{reserve_.attempt_id, WithLeg(kBroken, "decode", "c0-1")});
  EXPECT_TRUE(Suspect("d0-0"));
  EXPECT_FALSE(Suspect("c0-1"));
  join();
  Handle(DecodeEnded{reserve_.attempt_id, WithLeg(kBroken, "prefill", "d0-1")});
  EXPECT_TRUE(Suspect("c0-0"));
  EXPECT_FALSE(Suspect("d0-1"));
}

TEST_F(AttemptsTest, AFirstTokenProvesThatEachStageServes) {
  JoinOnePair();
  Prefilling(1);
  const uint64_t served = reserve_.attempt_id;
  Prefilling(2);
  Handle(DecodeEnded{reserve_.attempt_id, WithLeg(kBroken, "prefill", "c0-1")});
  ASSERT_EQ(core_->membership().Find({"c0-1", 1})->failures, 1);
  Handle(TokenReceived{served, {7, 0, {}}});
  EXPECT_EQ(core_->membership().Find({"c0-1", 1})->failures, 0);
}

// ---- Load counts ----

// A full decode is given one more, which waits for pages; when it is gone, it is another's turn.
TEST_F(AttemptsTest, WhoLeavesBeforeItHasItsPagesWaitsForThemNoMore) {
  WorkerInfo decode = TestDecode("d0");
  decode.max_running_requests = 64;
  Join({TestStage("c0", 0, 2), TestStage("c0", 1, 2), decode});
  for (uint64_t call_id = 1; call_id <= 9; ++call_id) Prefilling(call_id);  // All of its pages.
  Reserving(10);
  Request(11);
  EXPECT_TRUE(IsOverloaded(Only<FinishCall>().outcome.status()));
  Handle(ClientGone{10});
  Reserving(12);
}

TEST_F(AttemptsTest, APromptThatIsThroughWeighsOnItsChainNoMore) {
  for (const bool by_its_first_token : {false, true}) {
    Reset({});
    JoinTwoPairs();
    Handle(CallSubmitted{1, "r1", 200, 4, now_us_ + kDeadlineUs});
    Again();
    Handle(ReserveReplied{reserve_.attempt_id, Ticket{reserve_.decode, 0, 5, 200, 7, {}}});
    const InstanceRef first = Only<StartPrefill>().stage0;
    if (by_its_first_token) {
      Handle(TokenReceived{reserve_.attempt_id, {}});
    } else {
      Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
    }
    Prefilling(2);
    EXPECT_NE(Only<StartPrefill>().stage0, first);
    Prefilling(3);
    EXPECT_EQ(Only<StartPrefill>().stage0, first) << "which has nothing to do";
  }
}

TEST_F(AttemptsTest, WhoWaitsHoldsNobody) {
  Reset(Patient());
  JoinOnePair();
  Prefilling(1);
  Handle(PrefillEnded{reserve_.attempt_id, WithLeg(kFull, "prefill", "c0-0"), {}});
  ASSERT_EQ(core_->load().waiting, 1);
  for (const char* id : {"d0", "c0-1"}) {
    Say({id, 1}, {0, true, {}, /*draining=*/true});
    EXPECT_EQ(Only<AnswerHeartbeat>().needed_requests, 0) << id;
  }
}

// Pages of 16 tokens: 32 of d0's 64 are in use, by others.
TEST_F(AttemptsTest, PagesThatOthersUseAreNoRoom) {
  Join({TestStage("c0", 0, 1), TestDecode("d0"), TestDecode("d1")});
  Beat({"d0", 1}, {.free_pages = 32});
  Beat({"d1", 1}, {.running_requests = 1, .free_pages = 64});
  Handle(CallSubmitted{1, "r1", 100, 500, now_us_ + kDeadlineUs});
  EXPECT_EQ(Only<Reserve>().decode.id, "d1");
  Handle(CallSubmitted{2, "r2", 100, 4, now_us_ + kDeadlineUs});
  EXPECT_EQ(Only<Reserve>().decode.id, "d0") << "for less there is";
}

TEST_F(AttemptsTest, ARequestThatWaitsIsNoRest) {
  Reset(Patient());
  JoinOnePair();
  Reserving(1);
  EXPECT_FALSE(core_->AtRest());
  FailReserve(kFull);
  ASSERT_EQ(core_->load().waiting, 1);
  EXPECT_FALSE(core_->AtRest());
  Handle(ClientGone{1});
  EXPECT_TRUE(core_->AtRest()) << "what was refused is off the books";
}

TEST_F(AttemptsTest, AWorkerThatIsLostHasRefusedNothing) {
  Reset(Patient());
  JoinOnePair();
  Reserving(1);
  FailReserve(kFull);
  ASSERT_EQ(core_->load().waiting, 1);
  const InstanceRef decode = {"d0", 1};
  Say(decode, {0, false, {}, true, /*leaving=*/true});
  EXPECT_THAT(All<FinishCall>(), SizeIs(1)) << "nobody is expected";
  Join({TestDecode("d0")});
  for (const char* stage : {"c0-0", "c0-1"}) Beat({stage, 1});
  Reserving(2);
}

TEST_F(AttemptsTest, WhatFitsNowhereDoesNotWaitBehindWhatDoes) {
  Reset(Patient());
  JoinOnePair();
  Reserving(1);
  FailReserve(kFull);
  ASSERT_EQ(core_->load().waiting, 1);
  Handle(CallSubmitted{2, "r2", 100'000, 4, now_us_ + kDeadlineUs});
  EXPECT_EQ(Only<FinishCall>().outcome.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(IsOverloaded(Only<FinishCall>().outcome.status()));
}

}  // namespace
}  // namespace baton::router
