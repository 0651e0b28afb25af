// Requests on decode services of several ranks.
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

const InstanceRef kStage{"c0-0", 1};
const InstanceRef kFollower{"d0-1", 1};

class RouterRanksTest : public RouterCoreTest {
 protected:
  RouterRanksTest() { followers_ = {kFollower}; }

  void JoinOneService() {
    Join({TestStage("c0", 0, 1), TestDecodeRank(0), TestDecodeRank(1)});
    BeatAll();
  }
  void BeatAll() {
    for (const Worker& member : core_->membership().Workers()) Beat(member.info.instance);
  }
  AnswerHeartbeat BeatDraining(const InstanceRef& instance, bool leaving = false) {
    Say(instance, {0, false, {}, true, leaving});
    return Only<AnswerHeartbeat>();
  }
  void LoseFollower() { BeatDraining(kFollower, /*leaving=*/true); }
  void StartFollowerAgain() {
    WorkerInfo again = TestDecodeRank(1);
    Dies(again.instance);
    again.instance.incarnation = 2;
    Ask(again);
  }
  absl::Status Failure() const { return Only<FinishCall>().outcome.status(); }
};

TEST_F(RouterRanksTest, Rank0IsCalledAndTheFollowersAreNamedByItsTicket) {
  JoinOneService();
  Decoding(1);
  EXPECT_EQ(reserve_.decode, (InstanceRef{"d0-0", 1}));
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kLength});
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  EXPECT_TRUE(Only<FinishCall>().outcome.ok());
  EXPECT_EQ(Only<FinishCall>().decode_instance, "d0-0");
}

TEST_F(RouterRanksTest, AnAttemptEndsWithAFollowerOfItsDecodeService) {
  for (const bool restart : {false, true}) {
    for (const bool decoding : {false, true}) {
      SCOPED_TRACE(::testing::Message() << restart << decoding);
      Reset({});
      JoinOneService();
      decoding ? Decoding(1) : Prefilling(1);
      restart ? StartFollowerAgain() : LoseFollower();
      const absl::Status status = Failure();
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_EQ(LegOf(status), "decode");
      EXPECT_EQ(InstanceOf(status), "d0-1");
      EXPECT_THAT(std::string(status.message()), HasSubstr("decode d0-1"));
      EXPECT_EQ(Only<AbortDecode>().decode.id, "d0-0");
      EXPECT_EQ(Only<AbortPrefill>().stage0, kStage);
      EXPECT_TRUE(core_->AtRest());
    }
  }
}

TEST_F(RouterRanksTest, AFollowerThatFallsSilentEndsItToo) {
  JoinOneService();
  Decoding(1);
  now_us_ += kDeadlineUs * 5;  // Half a lease; requests have longer here than that.
  for (const InstanceRef& alive : {kStage, InstanceRef{"d0-0", 1}}) Beat(alive);
  actions_.clear();
  now_us_ += kDeadlineUs * 5;
  Handle(Tick{});
  EXPECT_EQ(InstanceOf(Failure()), "d0-1");
}

TEST_F(RouterRanksTest, BeforeItsFirstTokenItGoesOnWithAnotherService) {
  Join({TestStage("c0", 0, 1), TestDecodeRank(0), TestDecodeRank(1), TestDecodeRank(0, 2, "1"),
        TestDecodeRank(1, 2, "1")});
  BeatAll();
  Prefilling(1);
  ASSERT_EQ(reserve_.decode.id, "d0-0");
  StartFollowerAgain();
  EXPECT_EQ(Only<Reserve>().decode.id, "d1-0");
}

TEST_F(RouterRanksTest, ALostFollowerIsNoFaultOfRank0) {
  JoinOneService();
  Decoding(1);
  StartFollowerAgain();
  EXPECT_EQ(InstanceOf(Failure()), "d0-1");
  BeatAll();
  EXPECT_THAT(core_->membership().ReadyPairs(), SizeIs(1)) << core_->membership().WhatIsMissing();
}

TEST_F(RouterRanksTest, AFailureThatNamesAFollowerIsTheFollowersUntilItServes) {
  JoinOneService();
  Prefilling(1);
  Handle(DecodeEnded{reserve_.attempt_id, WithLeg(kBroken, "decode", "d0-1")});
  EXPECT_EQ(InstanceOf(Failure()), "d0-1");
  EXPECT_THAT(core_->membership().ReadyPairs(), IsEmpty());
  EXPECT_EQ(core_->membership().WhatIsMissing(), "d0-1 does not answer")
      << "and rank 0 is left in peace";
}

TEST_F(RouterRanksTest, AFirstTokenShowsThatEveryRankServes) {
  JoinOneService();
  Prefilling(1);
  Prefilling(2);
  const uint64_t second = reserve_.attempt_id;
  Handle(DecodeEnded{second, WithLeg(kBroken, "decode", "d0-1")});
  BeatAll();
  EXPECT_THAT(core_->membership().WhatIsMissing(), HasSubstr("d0-1 has failed"));
  Handle(TokenReceived{second - 1, {7, 0, {}}});
  EXPECT_THAT(core_->membership().ReadyPairs(), SizeIs(1));
}

TEST_F(RouterRanksTest, ADrainingFollowerDrainsTheServiceAndStaysWhileARequestNeedsIt) {
  Join({TestStage("c0", 0, 1), TestDecodeRank(0), TestDecodeRank(1), TestDecodeRank(0, 2, "1"),
        TestDecodeRank(1, 2, "1")});
  BeatAll();
  Prefilling(1);
  ASSERT_EQ(reserve_.decode.id, "d0-0");
  EXPECT_EQ(BeatDraining(kFollower).needed_requests, 1);
  EXPECT_EQ(BeatDraining({"d1-1", 1}).needed_requests, 0) << "of the other service";
  EXPECT_THAT(core_->membership().ReadyPairs(), IsEmpty());
  Handle(TokenReceived{reserve_.attempt_id, {7, 0, {}}});
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kLength});
  EXPECT_EQ(BeatDraining(kFollower).needed_requests, 1) << "the chain waits for its receipts";
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  EXPECT_EQ(BeatDraining(kFollower).needed_requests, 0);
}

TEST_F(RouterRanksTest, WhatADrainingFollowerLeavesIsEndedByItsDrain) {
  JoinOneService();
  Decoding(1);
  LoseFollower();
  EXPECT_TRUE(IsEndedByDrain(Failure())) << Failure();
}

// Pages that only rank 0 has are never given out, and don't count as used.
TEST_F(RouterRanksTest, PagesBeyondTheSmallestRanksAreNoLoad) {
  WorkerInfo large = TestDecodeRank(0);
  large.page_count = 128;
  const WorkerInfo other = TestDecodeRank(0, 2, "1");
  Join({TestStage("c0", 0, 1), large, TestDecodeRank(1), other, TestDecodeRank(1, 2, "1")});
  BeatAll();
  const auto report = [this](const InstanceRef& instance, int running) {
    Beat(instance, {.running_requests = running, .free_pages = 64});
  };
  report(large.instance, 0);
  report(other.instance, 1);
  Reserving(1);
  EXPECT_EQ(reserve_.decode.id, "d0-0");
}

TEST_F(RouterRanksTest, ATicketOfOtherRanksIsNotTaken) {
  JoinOneService();
  const std::vector<std::vector<InstanceRef>> wrong = {{}, {{"d0-1", 2}}, {kFollower, {"d", 1}}};
  for (size_t i = 0; i < wrong.size(); ++i) {
    Reserving(i + 1);
    Handle(ReserveReplied{reserve_.attempt_id, Ticket{reserve_.decode, 0, 5, 100, 7, wrong[i]}});
    EXPECT_THAT(All<StartPrefill>(), IsEmpty());
    EXPECT_THAT(std::string(Failure().message()), HasSubstr("the router knows [d0-1 (incarn"));
  }
}

}  // namespace
}  // namespace baton::router
