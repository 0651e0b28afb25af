// A router that stood still, or is always late.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "common/base/status.h"
#include "services/router/core/router_core_fixture.h"

namespace baton::router {
namespace {

constexpr int64_t kLeaseUs = 10 * kDeadlineUs;  // The fixture's.
constexpr int64_t kBeatUs = kLeaseUs / 4;

class PauseTest : public RouterCoreTest {
 protected:
  PauseTest() {
    limits_.max_waiting = 10;
    limits_.beat_us = kBeatUs;
    limits_.pairing_timeout_us = kLeaseUs;
    limits_.membership.pair_grace_us = kLeaseUs;
    Reset(limits_);
  }
  void TickAt(int64_t now_us) {
    now_us_ = now_us;
    Handle(Tick{});
  }
  // A router that is in time.
  void TickUntil(int64_t until_us) {
    while (core_->NextDeadlineUs() <= until_us) TickAt(core_->NextDeadlineUs());
    now_us_ = until_us;
  }
  size_t workers() const { return core_->membership().Workers().size(); }

  RouterLimits limits_;
};

TEST_F(PauseTest, ARouterInTimeTicksEveryBeatAndExcusesNobody) {
  JoinOnePair();
  EXPECT_EQ(core_->NextDeadlineUs(), kBeatUs);
  TickUntil(kLeaseUs - 1);
  EXPECT_EQ(workers(), 3u);
  TickUntil(kLeaseUs);
  EXPECT_EQ(workers(), 0u);
  EXPECT_EQ(core_->load().pauses_total, 0);
}

TEST_F(PauseTest, APauseGivesWorkersALeasesGraceOnce) {
  JoinOnePair();
  const int64_t resumed_us = 3 * kLeaseUs;
  TickAt(resumed_us);
  EXPECT_EQ(workers(), 3u) << "their heartbeats are still in the sockets";
  EXPECT_EQ(core_->load().pauses_total, 1);
  now_us_ += 10;
  Beat({"d0", 1});
  TickUntil(resumed_us + kLeaseUs);
  EXPECT_EQ(workers(), 1u) << "who was heard from since";
  // A second pause excuses the worker that was heard from, but not without end.
  TickAt(resumed_us + 3 * kLeaseUs);
  EXPECT_EQ(workers(), 1u);
  TickAt(resumed_us + 6 * kLeaseUs);
  EXPECT_EQ(workers(), 0u);
}

TEST_F(PauseTest, ARouterThatIsAlwaysLateKeepsWhoSpeaksAndLosesWhoDoesNot) {
  JoinOnePair();
  const int64_t late_us = kLeaseUs + kLeaseUs / 2;
  for (int64_t i = 1; i <= 20; ++i) {
    TickAt(i * late_us);
    // What they sent meanwhile is behind the tick in its mailbox.
    Beat({"c0-0", 1});
    Beat({"c0-1", 1});
    ASSERT_EQ(workers(), i < 2 ? 3u : 2u) << i;
  }
  EXPECT_EQ(core_->load().leases_expired_total, 1);
}

TEST_F(PauseTest, ClientsDeadlinesAreNeverPutOff) {
  JoinOnePair();
  Decoding(1);
  TickAt(kLeaseUs);
  EXPECT_EQ(core_->load().pauses_total, 1);
  EXPECT_EQ(Only<FinishCall>().outcome.status().code(), absl::StatusCode::kDeadlineExceeded);
  for (int64_t i = 2; i < 6; ++i) {
    Request(static_cast<uint64_t>(i));
    TickAt(i * kLeaseUs);
    for (const FinishCall& finish : All<FinishCall>()) {
      EXPECT_EQ(finish.call_id, static_cast<uint64_t>(i));
    }
  }
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(PauseTest, AWaitForAPairIsExcusedOnce) {
  JoinOnePair();
  Dies({"d0", 1});
  Handle(CallSubmitted{1, "r1", 100, 4, 100 * kLeaseUs});
  EXPECT_EQ(core_->load().waiting, 1);
  TickAt(2 * kLeaseUs);
  EXPECT_EQ(core_->load().waiting, 1) << "the decode may have said long ago that it lives";
  TickAt(3 * kLeaseUs + 1);
  EXPECT_EQ(core_->load().waiting, 0);
  EXPECT_EQ(Only<FinishCall>().outcome.status().code(), absl::StatusCode::kUnavailable);
}

// This wait ends by the router's own timer: no heartbeat brings a report.
TEST_F(PauseTest, NothingButAWaitForAPairIsExcused) {
  limits_.settle_us = kBeatUs;
  Reset(limits_);
  JoinOnePair();
  Handle(CallSubmitted{1, "r1", 100, 4, 100 * kLeaseUs});
  reserve_ = Only<Reserve>();
  Answer();
  Handle(TokenReceived{reserve_.attempt_id, {7, 0, {}}});
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kStop});
  TickAt(3 * kBeatUs);
  EXPECT_EQ(core_->load().pauses_total, 1);
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kStop);
}

TEST_F(PauseTest, EachWaitIsExcusedByItself) {
  limits_.membership.pair_grace_us = 10 * kLeaseUs;
  Reset(limits_);
  JoinOnePair();
  Dies({"d0", 1});
  Handle(CallSubmitted{1, "r1", 100, 4, 100 * kLeaseUs});
  const auto wait_out_a_pause = [this] {
    ASSERT_EQ(core_->load().waiting, 1);
    TickAt(now_us_ + kLeaseUs + 10);
    EXPECT_EQ(core_->load().waiting, 1);
  };
  wait_out_a_pause();
  for (const char* id : {"c0-0", "c0-1", "d0"}) Beat({id, 1});
  Handle(ReserveReplied{Only<Reserve>().attempt_id, kBroken});
  wait_out_a_pause();
}

// Workers that are not ready for the router's silence are in no pair until they are again.
class LatePairTest : public PauseTest {
 protected:
  // They did so too long ago for a pair to be expected.
  LatePairTest() {
    JoinOnePair();
    BeInTime(now_us_ + kLeaseUs + kBeatUs);
    EXPECT_EQ(core_->outlook(now_us_), Outlook::kRefused);
  }
  void BeInTime(int64_t until_us) {
    while (now_us_ < until_us) {
      TickUntil(std::min(until_us, now_us_ + kBeatUs));
      for (const char* id : {"c0-0", "c0-1", "d0"}) {
        Say({id, 1}, {0, /*ready=*/false, {}});
      }
    }
  }
  void StandStill() { now_us_ += 2 * kBeatUs + 1; }
  void Submit(uint64_t call_id) {
    Handle(CallSubmitted{call_id, "r" + std::to_string(call_id), 100, 4, 100 * kLeaseUs});
  }
};

TEST_F(LatePairTest, ARequestThatIsHeardBeforeTheLateTickWaitsForWhatIsBehindIt) {
  StandStill();
  Beat({"d0", 1});
  Submit(1);
  EXPECT_THAT(All<FinishCall>(), ::testing::IsEmpty());
  EXPECT_EQ(core_->load().waiting, 1);
  EXPECT_EQ(core_->outlook(now_us_), Outlook::kWaits);
  Beat({"c0-0", 1});
  Beat({"c0-1", 1});
  EXPECT_EQ(Only<Reserve>().call_id, 1u);
}

TEST_F(LatePairTest, WhenTheGraceOfThePauseIsOverRequestsAreRefused) {
  StandStill();
  const int64_t until_us = now_us_ + kLeaseUs;
  Submit(1);
  BeInTime(until_us - 1);
  EXPECT_EQ(core_->load().waiting, 1);
  BeInTime(until_us);
  EXPECT_EQ(core_->load().waiting, 0);
  EXPECT_EQ(core_->outlook(now_us_), Outlook::kRefused);
  Submit(2);
  EXPECT_EQ(Only<FinishCall>().outcome.status().code(), absl::StatusCode::kUnavailable);
}

// Else a router that is always late would never refuse anybody.
TEST_F(LatePairTest, TheHopeOfAPauseLastsHalfOfTheTime) {
  const auto pause = [this](int64_t at_us) {
    BeInTime(at_us - 2 * kBeatUs - 1);
    StandStill();
    Say({"d0", 1}, {0, /*ready=*/false, {}});
    return core_->outlook(now_us_);
  };
  const int64_t began_us = now_us_ + 3 * kLeaseUs;
  EXPECT_EQ(pause(began_us), Outlook::kWaits);
  EXPECT_EQ(pause(began_us + 2 * kLeaseUs - 1), Outlook::kRefused);
  EXPECT_EQ(core_->outlook(now_us_ + 1), Outlook::kRefused);
  EXPECT_EQ(pause(began_us + 3 * kLeaseUs), Outlook::kWaits);
}

TEST_F(LatePairTest, OnePauseIsNoticedOnce) {
  EXPECT_EQ(core_->load().pauses_total, 0);
  StandStill();
  Beat({"d0", 1});
  EXPECT_EQ(core_->load().pauses_total, 1);
  Beat({"c0-0", 1});
  Handle(Tick{});
  now_us_ += 2 * kBeatUs;
  Beat({"d0", 1});
  EXPECT_EQ(core_->load().pauses_total, 1);
}

}  // namespace
}  // namespace baton::router
