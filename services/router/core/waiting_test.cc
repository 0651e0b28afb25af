// Requests that wait for a pair, and what readiness says of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "services/router/core/router_core_fixture.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kPairingUs = 100'000;
constexpr int64_t kProbationUs = 10'000;

class WaitingTest : public RouterCoreTest {
 protected:
  WaitingTest() { ResetWaiting(10); }
  void ResetWaiting(int max_waiting) {
    RouterLimits limits;
    limits.max_waiting = max_waiting;
    limits.pairing_timeout_us = kPairingUs;
    limits.membership.pair_grace_us = kPairingUs;
    limits.membership.first_probation_us = kProbationUs;
    Reset(limits);
  }

  // Both are here; neither is ready.
  void JoinUnready() {
    Ask(stage_);
    Ask(decode_);
  }
  std::vector<uint64_t> Served() const {
    std::vector<uint64_t> call_ids;
    for (const Reserve& reserve : All<Reserve>()) call_ids.push_back(reserve.call_id);
    return call_ids;
  }
  absl::Status Refusal() const { return Only<FinishCall>().outcome.status(); }
  Outlook outlook() const { return core_->outlook(now_us_); }

  WorkerInfo stage_ = TestStage("c0", 0, 1);
  WorkerInfo decode_ = TestDecode("d0");
};

TEST_F(WaitingTest, IsServedInOrderAsSoonAsAPairIsReady) {
  JoinUnready();
  EXPECT_EQ(outlook(), Outlook::kWaits);
  for (const uint64_t call_id : {3, 1, 2}) {
    Request(call_id);
    EXPECT_THAT(actions_, IsEmpty());
  }
  EXPECT_EQ(core_->load().waiting, 3);
  Beat(stage_.instance);
  EXPECT_THAT(Served(), IsEmpty());
  Beat(decode_.instance);
  EXPECT_THAT(Served(), ElementsAre(3, 1, 2));
  EXPECT_EQ(core_->load().waiting, 0);
  EXPECT_EQ(outlook(), Outlook::kServed);
}

TEST_F(WaitingTest, APriorityIsAHeadStart) {
  JoinUnready();
  for (const auto& [call_id, priority] :
       std::vector<std::pair<uint64_t, int>>{{1, 0}, {2, -1}, {3, 2}, {4, 0}}) {
    CallSubmitted call{call_id, "r" + std::to_string(call_id), 100, 4, now_us_ + 1'000'000};
    call.priority = priority;
    Handle(call);
  }
  Beat(stage_.instance);
  Beat(decode_.instance);
  EXPECT_THAT(Served(), ElementsAre(3, 1, 4, 2));
}

// Also if prefill had ended before, so that the token makes no room by itself.
TEST_F(WaitingTest, AFirstTokenThatEndsAProbationServesWhoWaits) {
  Join({stage_, decode_});
  Prefilling(1);
  const Reserve first = reserve_;
  Handle(PrefillEnded{first.attempt_id, absl::OkStatus()});
  Prefilling(2);
  Handle(DecodeEnded{reserve_.attempt_id, kBroken});
  Beat(decode_.instance);
  ASSERT_EQ(core_->load().waiting, 1) << "it lives, and its probation goes on";
  Handle(TokenReceived{first.attempt_id, {}});
  EXPECT_THAT(Served(), ElementsAre(2));
}

TEST_F(WaitingTest, NobodyIsWaitedForWhoNeverWasHere) {
  EXPECT_EQ(outlook(), Outlook::kRefused);
  Ask(stage_);
  Ask(TestStage("c1", 0, 2));
  EXPECT_EQ(outlook(), Outlook::kRefused);
  Request(1);
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("no decode service is registered"));
}

TEST_F(WaitingTest, WhoIsNotReadyForAMomentIsWaitedFor) {
  Join({stage_, decode_});
  now_us_ += 10 * kPairingUs;
  Beat(stage_.instance);
  Beat(decode_.instance);
  Say(decode_.instance, {0, /*ready=*/false, {}});
  EXPECT_EQ(outlook(), Outlook::kWaits);
  Request(1);
  EXPECT_THAT(actions_, IsEmpty());
  Beat(decode_.instance);
  EXPECT_THAT(Served(), ElementsAre(1));
  // Once: the time does not begin anew while nothing changes.
  Say(decode_.instance, {0, /*ready=*/false, {}});
  now_us_ += kPairingUs;
  Say(decode_.instance, {0, /*ready=*/false, {}});
  EXPECT_EQ(outlook(), Outlook::kRefused);
}

TEST_F(WaitingTest, TheSuccessorOfADrainedWorkerIsWaitedFor) {
  Join({stage_, decode_});
  Handle(DrainRequested{1, "d0"});
  now_us_ += 10 * kPairingUs;  // It may drain for long: a request waits for as long as always.
  EXPECT_EQ(outlook(), Outlook::kWaits);
  Request(1);
  EXPECT_EQ(core_->load().waiting, 1);
  Say(decode_.instance, {0, false, {}, true, true});
  EXPECT_EQ(core_->load().waiting, 1);
  decode_.instance.incarnation = 2;
  Ask(decode_);
  Beat(stage_.instance);
  Beat(decode_.instance);
  EXPECT_THAT(Served(), ElementsAre(1));
}

TEST_F(WaitingTest, WhoIsHandedBackAndFindsNobodyInTimeHearsWhenToTryAgain) {
  Join({stage_, decode_});
  Request(1);
  const uint64_t attempt_id = Only<Reserve>().attempt_id;
  Say(decode_.instance, {0, false, {}, true});
  Handle(ReserveReplied{attempt_id, EndedByDrain(absl::UnavailableError("d0 drains"))});
  EXPECT_EQ(core_->load().waiting, 1);
  now_us_ += kPairingUs;
  Handle(Tick{});
  EXPECT_TRUE(IsEndedByDrain(Refusal())) << Refusal();
  EXPECT_EQ(LegOf(Refusal()), "router");
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("d0 drains; then no pair"));
}

TEST_F(WaitingTest, TheWaitForADrainedWorkerEnds) {
  Join({stage_, decode_});
  Say(decode_.instance, {0, false, {}, true, true});
  Request(1);
  now_us_ += kPairingUs;
  Handle(Tick{});
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(outlook(), Outlook::kRefused);
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(WaitingTest, EndsWithThePairingTimeout) {
  JoinUnready();
  now_us_ += kPairingUs / 2;
  Request(1);
  // While a decode service changes, a pair is expected for longer than one request may wait.
  now_us_ += kPairingUs / 4;
  Say(decode_.instance, {0, true, {}});
  now_us_ += kPairingUs / 2;
  Request(2);
  EXPECT_EQ(core_->NextDeadlineUs(), kPairingUs / 2 + kPairingUs);
  now_us_ = core_->NextDeadlineUs();
  Handle(Tick{});
  EXPECT_EQ(Only<FinishCall>().call_id, 1);
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(LegOf(Refusal()), "router");
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("--pairing-timeout-ms"));
  EXPECT_EQ(core_->load().waiting, 1);
}

TEST_F(WaitingTest, EndsWhenNoPairIsExpectedAnyMore) {
  JoinUnready();
  now_us_ += kPairingUs / 2;
  Request(1);
  Request(2);
  EXPECT_EQ(core_->NextDeadlineUs(), kPairingUs);
  now_us_ = kPairingUs;
  Handle(Tick{});
  ASSERT_THAT(All<FinishCall>(), SizeIs(2)) << "all at once";
  EXPECT_EQ(All<FinishCall>()[0].call_id, 1);
  const absl::Status refusal = All<FinishCall>()[0].outcome.status();
  EXPECT_THAT(std::string(refusal.message()), HasSubstr("c0-0 is not ready"));
  EXPECT_EQ(outlook(), Outlook::kRefused);
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(WaitingTest, EndsWithTheRequestsOwnDeadline) {
  JoinUnready();
  Handle(CallSubmitted{1, "r1", 100, 4, now_us_ + 1000});
  EXPECT_EQ(core_->NextDeadlineUs(), now_us_ + 1000);
  now_us_ += 1000;
  Handle(Tick{});
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("waited for a pair"));
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(WaitingTest, TheDeadlineHoldsAfterTheWait) {
  JoinUnready();
  Request(1);
  Beat(stage_.instance);
  Beat(decode_.instance);
  ASSERT_THAT(Served(), SizeIs(1));
  EXPECT_EQ(core_->NextDeadlineUs(), kDeadlineUs);
}

TEST_F(WaitingTest, TheQueueIsBounded) {
  ResetWaiting(2);
  JoinUnready();
  Request(1);
  Request(2);
  Request(3);
  EXPECT_EQ(Only<FinishCall>().call_id, 3);
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("--max-queued-requests"));
}

TEST_F(WaitingTest, ClientsMayLeaveAndAbort) {
  JoinUnready();
  Request(1);
  Request(2);
  Request(3);
  Handle(ClientGone{1});
  EXPECT_THAT(actions_, IsEmpty());
  Handle(AbortCalled{7, "r2"});
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kAbort);
  Beat(stage_.instance);
  Beat(decode_.instance);
  EXPECT_THAT(Served(), ElementsAre(3));
}

TEST_F(WaitingTest, WhatFitsNowhereIsRefusedWhenThePairIsThere) {
  JoinUnready();
  Handle(CallSubmitted{1, "r1", 100'000, 4, now_us_ + kDeadlineUs});
  Beat(stage_.instance);
  Beat(decode_.instance);
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LegOf(Refusal()), "router");
}

// ---- After a death ----

TEST_F(WaitingTest, AKilledDecodesRequestsWaitForItsReturn) {
  Join({stage_, decode_});
  Prefilling(1);
  Dies(decode_.instance);
  EXPECT_EQ(outlook(), Outlook::kWaits);
  Request(2);
  EXPECT_THAT(actions_, IsEmpty());
  Handle(DecodeEnded{reserve_.attempt_id, kBroken});
  EXPECT_THAT(All<FinishCall>(), IsEmpty());
  EXPECT_EQ(core_->load().waiting, 2);
  decode_.instance.incarnation = 2;
  Ask(decode_);
  Beat(decode_.instance);
  EXPECT_THAT(Served(), ElementsAre(1, 2));  // By arrival: the first has waited longer.
  reserve_ = All<Reserve>()[0];
  Answer();
  Handle(TokenReceived{reserve_.attempt_id, {7, 0, {}}});
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kStop});
  EXPECT_EQ(Only<FinishCall>().attempts, 2);
}

TEST_F(WaitingTest, ADeathIsWaitedOutOnlyForAWhile) {
  Join({stage_, decode_});
  now_us_ += 9 * kDeadlineUs;  // The last heartbeat is nearly a lease ago.
  Beat(stage_.instance);
  Handle(CallSubmitted{1, "r1", 100, 4, now_us_ + 3 * kDeadlineUs});
  reserve_ = Only<Reserve>();
  Answer();
  now_us_ = 10 * kDeadlineUs;
  Handle(Tick{});  // The decode's lease is over.
  EXPECT_THAT(All<FinishCall>(), IsEmpty());
  EXPECT_EQ(core_->load().waiting, 1);
  EXPECT_EQ(outlook(), Outlook::kWaits);
  now_us_ = core_->NextDeadlineUs();
  EXPECT_EQ(now_us_, 10 * kDeadlineUs + kPairingUs);
  Handle(Tick{});
  // It hears what failed, with leg and instance, and what is missing.
  EXPECT_EQ(LegOf(Refusal()), "decode");
  EXPECT_EQ(InstanceOf(Refusal()), "d0");
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("no heartbeat"));
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("no decode service is registered"));
  EXPECT_EQ(outlook(), Outlook::kRefused);
}

TEST_F(WaitingTest, AWorkerThatOnlySeemedDeadGetsTheRequestAgain) {
  Join({stage_, decode_});
  Reserving(1);
  const uint64_t first = reserve_.attempt_id;
  Handle(ReserveReplied{first, kBroken});
  EXPECT_EQ(Only<AskHeartbeat>().rpc_id, call_of_.at(decode_.instance));  // Asked whether it lives.
  EXPECT_EQ(core_->load().waiting, 1);
  Request(2);
  EXPECT_EQ(core_->load().waiting, 2);
  Beat(decode_.instance);
  EXPECT_EQ(core_->load().waiting, 2) << "it lives; whether it serves is another matter";
  EXPECT_EQ(core_->NextDeadlineUs(), now_us_ + kProbationUs);
  now_us_ += kProbationUs;
  Handle(Tick{});
  EXPECT_THAT(Served(), ElementsAre(1, 2));
  EXPECT_NE(All<Reserve>()[0].attempt_id, first);
  // Its second failure is the last.
  Handle(ReserveReplied{All<Reserve>()[0].attempt_id, kBroken});
  EXPECT_EQ(Only<FinishCall>().attempts, 2);
}

TEST_F(WaitingTest, AFailureThatIsNobodysDeathIsReportedAtOnce) {
  Join({stage_, decode_});
  Prefilling(1);
  Handle(PrefillEnded{reserve_.attempt_id, absl::InternalError("broken kernel")});
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(WaitingTest, ATextWaitsForAPairToGoOn) {
  Join({stage_, decode_});
  Decoding(1);
  Handle(DecodeEnded{reserve_.attempt_id, kBroken});
  EXPECT_THAT(All<FinishCall>(), IsEmpty());
  EXPECT_EQ(core_->load().waiting, 1);
}

TEST_F(WaitingTest, WithoutATimeoutNobodyWaits) {
  RouterLimits limits;
  limits.max_waiting = 10;
  limits.membership.pair_grace_us = kPairingUs;
  Reset(limits);
  JoinUnready();
  EXPECT_EQ(outlook(), Outlook::kRefused);
  Request(1);
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace baton::router
