#include "services/links/core/wiring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "services/links/core/wiring_fixture.h"

namespace baton::links {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(WiringTest, IsUpWhenEveryStageIsReadyWithTheFewestPages) {
  See({StageWorker(1)});
  EXPECT_EQ(wiring_.NextDeadlineUs(), kNeverUs);
  BringUp();
  EXPECT_EQ(All<ReportChainUp>().at(0).page_count, 5);
  EXPECT_EQ(All<ReportChainUp>().at(0).epoch, kWallClockUs);
}

TEST_F(WiringTest, TriesAgainSoonWhenStageZeroIsNotQuiet) {
  SeeAll();
  Handle(WiringTick{wall_clock_us_});
  Handle(OwnEpochTried{absl::UnavailableError("work of the last epoch goes on")});
  EXPECT_THAT(actions_, IsEmpty());
  EXPECT_LT(wiring_.NextDeadlineUs() - now_us_, kSecondUs);
  now_us_ = wiring_.NextDeadlineUs();
  EXPECT_GT(TryToWire(), 0u);
}

TEST_F(WiringTest, WaitsLongerAfterEachFailureWithTheSameStages) {
  SeeAll();
  EXPECT_EQ(FailOften(), 2 * kSecondUs);
  now_us_ += kSecondUs;
  EXPECT_EQ(TryToWire(), 0u);
  // Gone and back as it was: it is the one that has failed.
  See({});
  SeeAll();
  EXPECT_EQ(TryToWire(), 0u);
  now_us_ += kSecondUs;
  EXPECT_GT(TryToWire(), 0u);
}

TEST_F(WiringTest, AChainThatHasWorkedIsWiredAgainAtOnceWhateverFailedBefore) {
  SeeAll();
  now_us_ += FailOften();
  const auto bring_up = [this] {
    const uint64_t epoch = TryToWire();
    Handle(StageReady{1, epoch, 7});
    Handle(StageReady{2, epoch, 5});
    EXPECT_TRUE(wiring_.up());
    return epoch;
  };
  const uint64_t idle = bring_up();
  Handle(ChainFailed{absl::UnavailableError("a test")});
  EXPECT_EQ(wiring_.NextDeadlineUs() - now_us_, 2 * kSecondUs) << "it came up and did nothing";
  now_us_ = wiring_.NextDeadlineUs();
  const uint64_t epoch = bring_up();
  Handle(ReportHeard{2, idle});
  Handle(ReportHeard{2, epoch});
  Handle(ReportHeard{1, epoch});
  Handle(ChainFailed{absl::UnavailableError("a test")});
  EXPECT_LT(wiring_.NextDeadlineUs() - now_us_, kSecondUs / 10);
  now_us_ = wiring_.NextDeadlineUs();
  const uint64_t half = bring_up();
  Handle(ReportHeard{1, half});
  Handle(ChainFailed{absl::UnavailableError("a test")});
  EXPECT_EQ(wiring_.NextDeadlineUs() - now_us_, kSecondUs / 10) << "nothing came through it";
}

TEST_F(WiringTest, AStageThatWasStartedAgainIsWiredAtOnce) {
  SeeAll();
  EXPECT_EQ(FailOften(), 2 * kSecondUs);
  See({});
  SeeAll(/*incarnation=*/2);
  EXPECT_GT(TryToWire(), 0u);
  Handle(ChainFailed{absl::UnavailableError("a test")});
  EXPECT_LT(wiring_.NextDeadlineUs() - now_us_, kSecondUs) << "its first failure counts from there";
}

// Its clock was set back, or it runs on another host now.
// A stage that came back under another name has its place while its former life is still listed.
TEST_F(WiringTest, OfTwoWithOneRankTheOneThatIsToldFirstIsWired) {
  worker::PeerWorker newest = StageWorker(2, 2);
  newest.instance.id = "prefill-z";  // Behind its former life by name.
  See({newest, StageWorker(1), StageWorker(2)});
  ASSERT_GT(TryToWire(), 0u);
  EXPECT_EQ(All<OpenLinks>().at(0).members, (std::vector{StageWorker(1), newest}));
}

TEST_F(WiringTest, GoesPastTheNewestEpochThatAStageKnows) {
  SeeAll();
  const uint64_t newest = kWallClockUs + 3'600'000'000;
  const uint64_t first = TryToWire();
  Handle(StageRefused{1, first, newest});
  EXPECT_THAT(All<CloseLinks>(), SizeIs(1));
  EXPECT_EQ(wiring_.NextDeadlineUs(), now_us_) << "it has not failed";
  const uint64_t second = TryToWire();
  EXPECT_EQ(second, newest + 1);
  // Another one knows a newer one yet; what an older link says does not count.
  Handle(StageRefused{1, first, newest + 500});
  EXPECT_THAT(actions_, IsEmpty());
  Handle(StageRefused{2, second, newest + 7});
  EXPECT_EQ(TryToWire(), newest + 8);
}

TEST_F(WiringTest, TheSameEpochMayBeTheNewestThatAStageKnows) {
  SeeAll();
  const uint64_t epoch = TryToWire();
  Handle(StageRefused{1, epoch, epoch});
  EXPECT_EQ(TryToWire(), epoch + 1) << "at once";
}

TEST_F(WiringTest, AViewThatSaysTheSameBreaksNothing) {
  BringUp();
  SeeAll();
  EXPECT_THAT(actions_, IsEmpty());
  EXPECT_TRUE(wiring_.up());
}

TEST_F(WiringTest, AChainWithoutGroupsHasNoWordsOfThem) {
  SeeAll();
  const uint64_t epoch = TryToWire();
  Handle(GroupJoinHeard{1, epoch});
  Handle(GroupEntryHeard{1, epoch, {"key", "value"}});
  Handle(GroupConnectedHeard{1, epoch});
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(WiringTest, ARefusalThatMakesNoSenseIsAFailure) {
  SeeAll();
  for (const uint64_t newest : {uint64_t{1}, kMaxEpoch, ~uint64_t{0}}) {
    const uint64_t epoch = TryToWire();
    ASSERT_GT(epoch, 0u);
    Handle(StageRefused{1, epoch, newest});
    EXPECT_GT(wiring_.NextDeadlineUs(), now_us_);
    now_us_ = wiring_.NextDeadlineUs();
    EXPECT_LT(TryToWire(), kMaxEpoch);
    Handle(ChainFailed{absl::UnavailableError("a test")});
    now_us_ = wiring_.NextDeadlineUs();
  }
}

TEST_F(WiringTest, ASilentStageBreaksTheChainAndIsBlamed) {
  BringUp();
  const uint64_t epoch = wiring_.epoch();
  for (int i = 0; i < 5; ++i) {
    now_us_ = wiring_.NextDeadlineUs();
    Handle(WiringTick{wall_clock_us_});
    EXPECT_THAT(All<PingStages>(), SizeIs(1));
    Handle(StageHeard{1, epoch});
  }
  now_us_ += 3 * kSecondUs - 1;
  Handle(StageHeard{1, epoch});
  now_us_ = kSecondUs + 6 * kSecondUs;
  Handle(WiringTick{wall_clock_us_});
  const absl::Status reason = All<ReportChainDown>().at(0).status;
  EXPECT_EQ(InstanceOf(reason), "prefill-2");
  EXPECT_THAT(std::string(reason.message()), HasSubstr("no sign of life"));
}

// One that is quick must not miss its pings, nor be taken for silent, because another is slow.
TEST_F(WiringTest, StagesMayBecomeReadyAtVeryDifferentTimes) {
  SeeAll();
  const uint64_t epoch = TryToWire();
  Handle(StageReady{1, epoch, 8});
  int pings = 0;
  for (const int64_t ready_us = now_us_ + 8 * kSecondUs; now_us_ < ready_us;) {
    now_us_ = wiring_.NextDeadlineUs();
    Handle(WiringTick{wall_clock_us_});
    pings += static_cast<int>(All<PingStages>().size());
  }
  EXPECT_GE(pings, 15);
  Handle(StageReady{2, epoch, 8});
  EXPECT_TRUE(wiring_.up());
  Handle(WiringTick{wall_clock_us_});
  EXPECT_TRUE(wiring_.up());
}

TEST_F(WiringTest, AStageThatIsNeverReadyIsBlamedForIt) {
  SeeAll();
  const uint64_t epoch = TryToWire();
  Handle(StageReady{1, epoch, 8});
  now_us_ += 10 * kSecondUs;
  Handle(WiringTick{wall_clock_us_});
  EXPECT_EQ(InstanceOf(All<ReportChainDown>().at(0).status), "prefill-2");
}

// A router that starts anew lists few at first; the links say who lives.
TEST_F(WiringTest, AMemberThatIsNotListedBreaksNoChain) {
  BringUp();
  See({StageWorker(2)});
  EXPECT_THAT(actions_, IsEmpty());
  See({StageWorker(1), StageWorker(2)});
  EXPECT_THAT(actions_, IsEmpty());
  EXPECT_TRUE(wiring_.up());
  See({});
  Handle(StageLinkEnded{1, wiring_.epoch(), absl::UnavailableError("gone")});
  EXPECT_EQ(wiring_.NextDeadlineUs(), kNeverUs) << "wired again when all are listed";
}

TEST_F(WiringTest, AnotherLifeInAMembersPlaceBreaksTheChainAndIsWiredAtOnce) {
  BringUp();
  See({StageWorker(1, 2), StageWorker(2)});
  EXPECT_EQ(InstanceOf(All<ReportChainDown>().at(0).status), "prefill-1");
  EXPECT_THAT(All<CloseLinks>(), SizeIs(1));
  EXPECT_EQ(wiring_.NextDeadlineUs(), now_us_);
}

TEST_F(WiringTest, BlamesWhomTheStageBlames) {
  BringUp();
  const absl::Status cause =
      WithLeg(absl::UnavailableError("to prefill-2: gone"), "prefill", "prefill-2");
  Handle(StageLinkEnded{1, wiring_.epoch(), cause});
  EXPECT_EQ(InstanceOf(All<ReportChainDown>().at(0).status), "prefill-2");
}

TEST_F(WiringTest, ASecondReadyOrOneWithoutPagesBreaksTheChain) {
  BringUp();
  Handle(StageReady{1, wiring_.epoch(), 7});
  EXPECT_THAT(All<ReportChainDown>(), SizeIs(1));
  now_us_ = wiring_.NextDeadlineUs();
  Handle(StageReady{1, TryToWire(), 0});
  EXPECT_THAT(All<ReportChainDown>(), SizeIs(1));
}

TEST_F(WiringTest, EpochsGrowWhateverTheClockDoes) {
  SeeAll();
  const uint64_t first = TryToWire();
  Handle(ChainFailed{absl::UnavailableError("a test")});
  now_us_ = wiring_.NextDeadlineUs();
  wall_clock_us_ = 5;
  EXPECT_EQ(TryToWire(), first + 1);
}

TEST_F(WiringTest, WiresNoMoreOnceItIsStopped) {
  BringUp();
  Handle(WiringStopped{});
  EXPECT_THAT(All<ReportChainDown>(), SizeIs(1));
  SeeAll(/*incarnation=*/2);
  EXPECT_EQ(wiring_.NextDeadlineUs(), kNeverUs);
  now_us_ += 60 * kSecondUs;
  EXPECT_EQ(TryToWire(), 0u);
}

TEST_F(WiringTest, AChainIsWholeWithTheRightStagesAlone) {
  const auto whole_with = [this](const auto& change) {
    worker::PeerWorker other = StageWorker(2);
    change(other);
    See({other, StageWorker(1)});  // In any order.
    return wiring_.NextDeadlineUs() != kNeverUs;
  };
  EXPECT_FALSE(whole_with([](worker::PeerWorker& w) {
    w.role = Role::kDecode;
    w.decode_id = "chain-0";
  }));
  EXPECT_FALSE(whole_with([](worker::PeerWorker& w) { w.chain_id = "chain-1"; }));
  EXPECT_FALSE(whole_with([](worker::PeerWorker& w) { w.pp_size = 4; }));
  EXPECT_FALSE(whole_with([](worker::PeerWorker& w) { w.pp_rank = 3; }));
  EXPECT_FALSE(whole_with([](worker::PeerWorker& w) { w.layers.begin = 5; }));
  EXPECT_FALSE(whole_with([](worker::PeerWorker& w) { w.layers.end = 5; })) << "not the last layer";
  EXPECT_TRUE(whole_with([](worker::PeerWorker&) {}));
}

TEST_F(WiringTest, SaysToEveryStageWhoTheOthersAreAndWhatTheyMaySend) {
  SeeAll();
  Handle(WiringTick{wall_clock_us_});
  EXPECT_EQ(wiring_.NextDeadlineUs(), kNeverUs) << "stage 0 has not answered";
  const Hello hello = All<TryOwnEpoch>().at(0).hello;
  EXPECT_EQ(hello.max_plan_tokens, 64);
  EXPECT_EQ(hello.activation_credits, 2);
  ASSERT_EQ(hello.members.size(), 3u);
  for (int stage = 0; stage < 3; ++stage) {
    const auto& said = hello.members[static_cast<size_t>(stage)];
    EXPECT_EQ(said.instance.id, "prefill-" + std::to_string(stage));
    EXPECT_EQ(said.layers, (LayerRange{2 * stage, 2 * stage + 2}));
  }
  Handle(OwnEpochTried{absl::UnavailableError("not quiet")});
  EXPECT_EQ(wiring_.NextDeadlineUs(), now_us_ + 50'000);
}

TEST_F(WiringTest, PingsInTimeAndEndsAStageThatIsNotReadyExactlyInTime) {
  SeeAll();
  TryToWire();
  const int64_t begin_us = now_us_;
  EXPECT_EQ(wiring_.NextDeadlineUs(), begin_us + kSecondUs / 2);
  int64_t sequence = 0;
  while (wiring_.NextDeadlineUs() < begin_us + 10 * kSecondUs) {
    now_us_ = wiring_.NextDeadlineUs() - 1;
    Handle(WiringTick{wall_clock_us_});
    EXPECT_THAT(actions_, IsEmpty());
    ++now_us_;
    Handle(WiringTick{wall_clock_us_});
    ASSERT_THAT(All<PingStages>(), SizeIs(1));
    EXPECT_EQ(All<PingStages>()[0].sequence, ++sequence);
  }
  EXPECT_EQ(sequence, 19);
  now_us_ = begin_us + 10 * kSecondUs;
  Handle(WiringTick{wall_clock_us_});
  EXPECT_EQ(InstanceOf(All<ReportChainDown>().at(0).status), "prefill-1");
  EXPECT_THAT(All<PingStages>(), IsEmpty());
}

TEST_F(WiringTest, SilenceCountsFromWhatWasHeardLast) {
  BringUp();
  now_us_ += kSecondUs;
  Handle(StageHeard{1, wiring_.epoch()});
  Handle(StageHeard{2, wiring_.epoch()});
  Handle(StageHeard{1, wiring_.epoch() - 1});
  now_us_ += 3 * kSecondUs - 1;
  Handle(StageHeard{1, wiring_.epoch()});
  Handle(StageHeard{2, wiring_.epoch() - 1});  // An older epoch's says nothing.
  Handle(WiringTick{wall_clock_us_});
  EXPECT_TRUE(wiring_.up());
  ++now_us_;
  Handle(WiringTick{wall_clock_us_});
  EXPECT_EQ(InstanceOf(All<ReportChainDown>().at(0).status), "prefill-2");
}

TEST_F(WiringTest, WhatAnOlderEpochsLinksSayIsNothing) {
  SeeAll();
  const uint64_t old_epoch = TryToWire();
  Handle(ChainFailed{absl::UnavailableError("a test")});
  Handle(ChainFailed{absl::UnavailableError("again")});
  EXPECT_THAT(actions_, IsEmpty()) << "it is down already";
  now_us_ = wiring_.NextDeadlineUs();
  const uint64_t epoch = TryToWire();
  Handle(StageReady{1, old_epoch, 7});
  Handle(StageLinkEnded{2, old_epoch, absl::UnavailableError("late")});
  EXPECT_THAT(actions_, IsEmpty());
  Handle(StageReady{2, epoch, 9});
  EXPECT_FALSE(wiring_.up());
  Handle(StageReady{1, epoch, 9});
  EXPECT_EQ(All<ReportChainUp>().at(0).page_count, 8) << "stage 0's own are the fewest";
}

TEST_F(WiringTest, TheWaitDoublesUntilAChainHasBeenUpForLong) {
  SeeAll();
  for (const int64_t wait_ms : {50, 100, 200, 400, 800, 1600, 2000, 2000}) {
    ASSERT_GT(TryToWire(), 0u);
    Handle(ChainFailed{absl::UnavailableError("a test")});
    EXPECT_EQ(wiring_.NextDeadlineUs() - now_us_, wait_ms * 1000);
    now_us_ = wiring_.NextDeadlineUs() - 1;
    EXPECT_EQ(TryToWire(), 0u);
    ++now_us_;
  }
  for (const auto& [up_us, wait_us] : std::vector<std::pair<int64_t, int64_t>>{
           {10 * kSecondUs - 1, 2 * kSecondUs}, {10 * kSecondUs, 50'000}}) {
    const uint64_t epoch = TryToWire();
    Handle(StageReady{1, epoch, 7});
    Handle(StageReady{2, epoch, 7});
    ASSERT_TRUE(wiring_.up());
    now_us_ += up_us;
    Handle(ChainFailed{absl::UnavailableError("a test")});
    EXPECT_EQ(wiring_.NextDeadlineUs() - now_us_, wait_us);
    now_us_ = wiring_.NextDeadlineUs();
  }
}

TEST(WiringOfOneStageTest, IsUpAtOnceWithoutLinks) {
  Wiring wiring({{"chain-0", 0, 1, 2, {{"prefill-0", 1}, {0, 2}}}, 8, 64, 2});
  std::vector<WiringAction> actions;
  wiring.Handle(WiringTick{kWallClockUs}, 0, actions);
  wiring.Handle(OwnEpochTried{absl::OkStatus()}, 0, actions);
  EXPECT_TRUE(wiring.up());
  EXPECT_EQ(std::get<ReportChainUp>(actions.back()).page_count, 8);
  EXPECT_EQ(wiring.NextDeadlineUs(), kNeverUs);
}

}  // namespace
}  // namespace baton::links
