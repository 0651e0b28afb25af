// Workers that are full: who waits, who goes elsewhere, who is refused, and how often workers hear
// of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "services/router/core/learned_limit.h"
#include "services/router/core/retry_budget.h"
#include "services/router/core/router_core_fixture.h"

namespace baton::router {
namespace {

using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;

constexpr int64_t kHintUs = 100'000;
const absl::Status kFull =
    Overloaded(absl::ResourceExhaustedError("the queue is full"), kHintUs / 1000);

class OverloadTest : public RouterCoreTest {
 protected:
  OverloadTest() { ResetTo(10, {}); }
  void ResetTo(int max_waiting, RetryBudgetOptions budget) {
    RouterLimits limits;
    limits.max_waiting = max_waiting;
    limits.max_attempts = 1;  // A refusal counts as none.
    limits.retry_budget = budget;
    limits.seed = 7;
    Reset(limits);
  }
  void ReservingOnAPair(int64_t pair_grace_us) {
    RouterLimits limits;
    limits.max_waiting = 10;
    limits.pairing_timeout_us = 300'000;
    limits.membership.pair_grace_us = pair_grace_us;
    Reset(limits);
    JoinOnePair();
    Reserving(1);
  }
  void RefuseReserve(absl::Status status = kFull) {
    Handle(ReserveReplied{reserve_.attempt_id, std::move(status)});
  }
  absl::Status Refusal() const { return Only<FinishCall>().outcome.status(); }
};

TEST_F(OverloadTest, ARefusedRequestGoesToAnotherWorkerWithRoomAtOnce) {
  JoinTwoPairs();
  Reserving(1);
  const std::string full = reserve_.decode.id;
  RefuseReserve();
  EXPECT_NE(Only<Reserve>().decode.id, full);
  EXPECT_EQ(core_->load().retries_decode.overload_total, 1);
  EXPECT_EQ(core_->load().retries_decode.refused_total, 1);
  EXPECT_EQ(core_->load().retries_decode.failure_total, 0);
  // No request is sent to the full one, however much the other one has.
  for (uint64_t call_id = 2; call_id <= 5; ++call_id) {
    Request(call_id);
    EXPECT_NE(Only<Reserve>().decode.id, full);
  }
}

TEST_F(OverloadTest, WithoutRoomAnywhereItWaitsOutTheHint) {
  JoinOnePair();
  Reserving(1);
  RefuseReserve();
  EXPECT_THAT(All<Reserve>(), IsEmpty());
  EXPECT_EQ(core_->load().waiting, 1);
  EXPECT_EQ(core_->outlook(now_us_), Outlook::kServed);
  Request(2);
  EXPECT_THAT(actions_, IsEmpty()) << "behind the one that waits";
  EXPECT_EQ(core_->NextDeadlineUs(), kHintUs);
  now_us_ = kHintUs - 1;
  Handle(Tick{});
  EXPECT_THAT(actions_, IsEmpty());
  now_us_ = kHintUs;
  Handle(Tick{});
  EXPECT_EQ(Only<Reserve>().call_id, 1u) << "one asks for all of them";
  EXPECT_EQ(core_->load().waiting, 1);
}

// A stream's tokens come between all else, and may come when the time is up.
TEST_F(OverloadTest, TheBackoffsEndWakesWhoWaitsWhateverEventItComesWith) {
  JoinOnePair();
  Decoding(1);
  const uint64_t running = reserve_.attempt_id;
  Reserving(2);
  RefuseReserve();
  EXPECT_EQ(core_->load().waiting, 1);
  now_us_ = core_->NextDeadlineUs();
  Handle(TokenReceived{running, {7, 0, {}}});
  EXPECT_EQ(Only<Reserve>().call_id, 2u);
}

// Its pair came apart while it waited to be refused.
TEST_F(OverloadTest, WithoutAPairToComeARefusalIsTheLastWord) {
  JoinOnePair();
  Prefilling(1);
  const InstanceRef decode = reserve_.decode;
  Say(decode, {0, /*ready=*/false, {}});
  Handle(PrefillEnded{reserve_.attempt_id, kFull, {}});
  EXPECT_TRUE(IsOverloaded(Refusal())) << Refusal();
  EXPECT_EQ(LegOf(Refusal()), "prefill");
  EXPECT_EQ(core_->load().retries_prefill.overload_total, 0) << "nothing was begun again";
  EXPECT_EQ(core_->load().retries_prefill.refused_total, 1);
}

TEST_F(OverloadTest, ARefusalOfAPairThatComesBackWaitsForIt) {
  ReservingOnAPair(/*pair_grace_us=*/300'000);
  Dies({"d0", 1});
  RefuseReserve();
  EXPECT_EQ(core_->load().waiting, 1);
}

TEST_F(OverloadTest, TheLegThatRefusesIsTheOneThatIsFull) {
  JoinTwoPairs();
  Prefilling(1);
  const InstanceRef full = Only<StartPrefill>().stage0;
  Handle(PrefillEnded{reserve_.attempt_id, WithLeg(kFull, "prefill", full.id)});
  for (uint64_t call_id = 2; call_id <= 5; ++call_id) {
    Prefilling(call_id);
    EXPECT_NE(Only<StartPrefill>().stage0, full);
  }
}

TEST_F(OverloadTest, WhatEndsOnTheWorkerMakesRoom) {
  JoinOnePair();
  Decoding(1);
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  const uint64_t running = reserve_.attempt_id;
  Reserving(2);
  RefuseReserve();
  Request(3);
  EXPECT_EQ(core_->load().waiting, 2);
  Handle(DecodeEnded{running, FinishReason::kStop});
  EXPECT_THAT(All<FinishCall>(), SizeIs(1));
  EXPECT_EQ(Only<Reserve>().call_id, 2u) << "in the place of the first";
  EXPECT_EQ(core_->load().waiting, 1);
}

TEST_F(OverloadTest, TheChainsRefusalGivesTheReservationBack) {
  JoinOnePair();
  Prefilling(1);
  Handle(PrefillEnded{reserve_.attempt_id, WithLeg(kFull, "prefill", "c0-0")});
  EXPECT_THAT(All<AbortDecode>(), SizeIs(1));
  EXPECT_EQ(core_->load().waiting, 1);
  EXPECT_EQ(core_->load().retries_prefill.overload_total, 1);
  now_us_ = kHintUs;
  Handle(Tick{});
  EXPECT_EQ(Only<Reserve>().call_id, 1u);
}

TEST_F(OverloadTest, BeyondTheQueueTheClientHearsAtOnceWhenToTryAgain) {
  ResetTo(1, {});
  JoinOnePair();
  Reserving(1);
  RefuseReserve();
  Request(2);
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryHintMsOf(Refusal()), kOverloadRetryAfterMs);
  EXPECT_EQ(LegOf(Refusal()), "router");
  ResetTo(0, {});
  JoinOnePair();
  Reserving(3);
  RefuseReserve();
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(IsOverloaded(Refusal()));
  EXPECT_EQ(LegOf(Refusal()), "decode");
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("the queue is full"));
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(OverloadTest, TheDeadlineEndsTheWait) {
  JoinOnePair();
  Reserving(1);
  RefuseReserve();
  now_us_ = kDeadlineUs;
  Handle(Tick{});
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("waited for room"));
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(OverloadTest, WhoWaitsForRoomWaitsForAPairWhenNoneIsLeft) {
  ReservingOnAPair(/*pair_grace_us=*/900'000);
  RefuseReserve();
  EXPECT_EQ(core_->NextDeadlineUs(), kHintUs);
  now_us_ = 10;
  Dies({"d0", 1});
  EXPECT_EQ(core_->NextDeadlineUs(), 10 + 300'000) << "the pairing timeout, from now on";
  Beat({"d0", 1});
  EXPECT_EQ(core_->NextDeadlineUs(), kHintUs) << "and for room again";
  EXPECT_EQ(core_->load().waiting, 1);
}

// ---- The budget ----

TEST_F(OverloadTest, WithoutBudgetARefusalIsTheEnd) {
  ResetTo(100, {.percent = 50, .per_second = 0});
  JoinTwoPairs();
  Reserving(1);
  RefuseReserve();
  EXPECT_TRUE(IsOverloaded(Refusal())) << "half a retry is none";
  EXPECT_EQ(core_->load().budget_exhausted_total, 1);
  Reserving(2);
  RefuseReserve();
  EXPECT_THAT(All<FinishCall>(), IsEmpty());
}

TEST_F(OverloadTest, AFailureNeedsTheBudgetUnlessItsWorkerIsGone) {
  RouterLimits limits;
  limits.retry_budget = {.percent = 0, .per_second = 0};
  Reset(limits);
  JoinTwoPairs();
  Reserving(1);
  RefuseReserve(absl::InternalError("broken kernel"));
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kInternal);
  Reserving(2);
  RefuseReserve(kBroken);
  EXPECT_THAT(All<Reserve>(), SizeIs(1)) << "it is in no pair any more: it must go elsewhere";
}

TEST(RetryBudgetTest, IsAShareOfTheLastTenSecondsAndAFewMore) {
  RetryBudget budget({.percent = 20, .per_second = 1});
  int64_t now_us = 5'000'000;
  for (int i = 0; i < 50; ++i) budget.Begin(now_us);
  const auto take_all = [&budget](int64_t at_us) {
    int taken = 0;
    while (taken < 1000 && budget.Take(at_us)) ++taken;
    return taken;
  };
  EXPECT_EQ(take_all(now_us), 10 + 10);
  EXPECT_EQ(take_all(now_us + 1'000'000), 0);
  EXPECT_EQ(take_all(now_us + 9'000'000), 0);
  EXPECT_EQ(take_all(now_us + 10'000'000), 10) << "only the few are left";
  now_us += 60'000'000;
  budget.Begin(now_us);
  EXPECT_EQ(take_all(now_us), 10);
}

TEST(RetryBudgetTest, OfNoRequestsThereIsNoShare) {
  RetryBudget budget({.percent = 100, .per_second = 0});
  EXPECT_FALSE(budget.Take(0));
  budget.Begin(0);
  EXPECT_TRUE(budget.Take(0));
  EXPECT_FALSE(budget.Take(20'000'000));
}

// ---- The limit ----

TEST(LearnedLimitTest, IsWhatWasThereAndRisesFasterAndFaster) {
  Random random(1);
  LearnedLimit limit;
  EXPECT_TRUE(limit.HasRoom(1'000'000));
  EXPECT_EQ(limit.NextUs(), kNeverUs);
  limit.Refuse(3, 0, 0, random);
  EXPECT_TRUE(limit.HasRoom(2));
  EXPECT_FALSE(limit.HasRoom(3));
  int requests = 3;
  for (const int more : {1, 2, 4}) {
    limit.Advance(requests, limit.NextUs() - 1, random);
    EXPECT_FALSE(limit.HasRoom(requests));
    const int64_t raised_us = limit.NextUs();
    limit.Advance(requests, raised_us, random);
    EXPECT_TRUE(limit.HasRoom(requests + more - 1));
    EXPECT_FALSE(limit.HasRoom(requests + more));
    requests += more;
    // Once for each backoff.
    EXPECT_GE(limit.NextUs(), raised_us + BackoffRange{}.first_us / 2);
    limit.Advance(requests, raised_us, random);
    EXPECT_FALSE(limit.HasRoom(requests));
  }
  // It bounds nothing any more.
  limit.Advance(requests - 1, limit.NextUs(), random);
  EXPECT_TRUE(limit.HasRoom(1'000'000));
  EXPECT_EQ(limit.NextUs(), kNeverUs);
}

TEST(LearnedLimitTest, AfterARefusalItRisesByOneAgain) {
  Random random(1);
  LearnedLimit limit;
  limit.Refuse(3, 0, 0, random);
  limit.Advance(3, limit.NextUs(), random);
  limit.Advance(4, limit.NextUs(), random);
  EXPECT_TRUE(limit.HasRoom(5));
  limit.Refuse(5, 0, limit.NextUs() - 1, random);
  limit.Advance(5, limit.NextUs(), random);
  EXPECT_TRUE(limit.HasRoom(5));
  EXPECT_FALSE(limit.HasRoom(6));
}

TEST(LearnedLimitTest, TheBackoffDoublesWithEveryProbeThatIsRefused) {
  Random random(1);
  LearnedLimit limit;
  int64_t now_us = 0;
  limit.Refuse(1, 0, now_us, random);
  int64_t longest_us = 50'000;
  for (int round = 0; round < 10; ++round) {
    const int64_t wait_us = limit.NextUs() - now_us;
    EXPECT_THAT(wait_us, Gt(longest_us / 2 - 1));
    EXPECT_THAT(wait_us, Le(longest_us));
    longest_us = std::min<int64_t>(2 * longest_us, 2'000'000);
    now_us = limit.NextUs();
    limit.Advance(1, now_us, random);
    EXPECT_TRUE(limit.HasRoom(1));
    limit.Refuse(1, 0, now_us, random);
    EXPECT_FALSE(limit.HasRoom(1));
  }
  // The worker's own wish counts for more.
  now_us = limit.NextUs();
  limit.Advance(1, now_us, random);
  limit.Refuse(1, 5'000'000, now_us, random);
  EXPECT_EQ(limit.NextUs(), now_us + 5'000'000);
}

TEST(LearnedLimitTest, RoutersThatWereRefusedTogetherDoNotComeBackTogether) {
  std::vector<int64_t> waits_us;
  for (const uint64_t seed : {1, 2, 3}) {
    Random random(seed);
    LearnedLimit limit;
    limit.Refuse(1, 0, 0, random);
    waits_us.push_back(limit.NextUs());
  }
  EXPECT_THAT(waits_us, ::testing::Each(::testing::AllOf(::testing::Ge(25'000), Le(50'000))));
  EXPECT_TRUE(waits_us[0] != waits_us[1] || waits_us[1] != waits_us[2]);
}

TEST(LearnedLimitTest, WhatIsRefusedWhenTheBackoffIsOverIsAnotherBurst) {
  Random random(1);
  LearnedLimit limit;
  limit.Refuse(2, 0, 0, random);
  const int64_t over_us = limit.NextUs();
  limit.Refuse(2, 0, over_us, random);
  EXPECT_GE(limit.NextUs(), over_us + 50'000) << "twice as long, less the jitter";
}

TEST(LearnedLimitTest, OneBurstIsOneBackoff) {
  Random random(1);
  LearnedLimit limit;
  limit.Refuse(9, 0, 0, random);
  const int64_t next_us = limit.NextUs();
  for (int requests = 8; requests >= 4; --requests) limit.Refuse(requests, 0, 10, random);
  EXPECT_EQ(limit.NextUs(), next_us);
  EXPECT_TRUE(limit.HasRoom(3));
  EXPECT_FALSE(limit.HasRoom(4));
}

}  // namespace
}  // namespace baton::router
