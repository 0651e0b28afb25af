// The wiring of a chain of two stages of two ranks each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "services/links/core/group_rendezvous.h"
#include "services/links/core/wiring_fixture.h"

namespace baton::links {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

worker::PeerWorker Rank(int stage, int rank, uint64_t incarnation = 1) {
  worker::PeerWorker worker = StageWorker(stage, incarnation);
  worker.instance.id += "-" + std::to_string(rank);
  worker.pp_size = 2;
  worker.layers = {3 * stage, 3 * stage + 3};
  worker.tensor_rank = {rank, 2};
  return worker;
}

class WiringGroupsTest : public WiringTest {
 protected:
  static ChainPlace Place() { return {"chain-0", 0, 2, 6, {{"prefill-0-0", 1}, {0, 3}, {0, 2}}}; }
  WiringGroupsTest() : WiringTest({Place(), 8, 64, 2}) {}

  static std::vector<worker::PeerWorker> Others() { return {Rank(1, 1), Rank(0, 1), Rank(1, 0)}; }
  uint64_t Link() {
    See(Others());
    return TryToWire();
  }
  void Say(int member, const std::string& key) {
    Handle(GroupEntryHeard{member, wiring_.epoch(), {key, "value"}});
  }
  // Members told that their group has formed, or has not.
  std::vector<int> Verdicts(bool ok) const {
    std::vector<int> members;
    for (const TellGroup& word : All<TellGroup>()) {
      if (word.message.verdict && word.message.verdict->ok() == ok) members.push_back(word.member);
    }
    return members;
  }
  void FormGroup(int stage) {
    const uint64_t epoch = wiring_.epoch();
    Handle(GroupJoinHeard{2 * stage, epoch});
    Handle(GroupJoinHeard{2 * stage + 1, epoch});
    EXPECT_THAT(Verdicts(false), IsEmpty()) << "nobody had come before";
    Handle(GroupConnectedHeard{2 * stage, epoch});
    EXPECT_THAT(Verdicts(true), IsEmpty());
    Handle(GroupConnectedHeard{2 * stage + 1, epoch});
    EXPECT_THAT(Verdicts(true), ::testing::ElementsAre(2 * stage, 2 * stage + 1));
  }
};

TEST_F(WiringGroupsTest, MembersAreAllRanksStageByStage) {
  const uint64_t epoch = Link();
  ASSERT_GT(epoch, 0u);
  const Hello hello = All<OpenLinks>().at(0).hello;
  ASSERT_THAT(hello.members, SizeIs(4));
  for (int member = 0; member < 4; ++member) {
    const KvWriter& writer = hello.members[static_cast<size_t>(member)];
    EXPECT_EQ(writer.instance.id, absl::StrCat("prefill-", member / 2, "-", member % 2));
    EXPECT_EQ(writer.tensor_rank, (TensorRank{member % 2, 2}));
    EXPECT_EQ(writer.layers, (LayerRange{member / 2 * 3, member / 2 * 3 + 3}));
  }
  const GroupDescription group = GroupOf(Place(), hello);
  EXPECT_EQ(group.name, "stage 0 of chain-0");
  EXPECT_EQ(group.epoch, epoch);
  EXPECT_EQ(group.rank, 0);
  EXPECT_THAT(group.members, ::testing::ElementsAre("prefill-0-0", "prefill-0-1"));
  ChainPlace last = Place();
  last.stage = 1;
  last.self.tensor_rank = {1, 2};
  const GroupDescription second = GroupOf(last, hello);
  EXPECT_EQ(second.name, "stage 1 of chain-0");
  EXPECT_EQ(second.rank, 1);
  EXPECT_THAT(second.members, ::testing::ElementsAre("prefill-1-0", "prefill-1-1"));
}

TEST_F(WiringGroupsTest, IsNotWiredWithoutEveryRankInItsPlace) {
  for (size_t missing = 0; missing < 3; ++missing) {
    std::vector<worker::PeerWorker> workers = Others();
    workers.erase(workers.begin() + static_cast<int64_t>(missing));
    See(workers);
    EXPECT_EQ(TryToWire(), 0u) << missing;
  }
  std::vector<worker::PeerWorker> workers = Others();
  workers[1].layers = {0, 2};  // In stage 0 as this one, with other layers.
  See(workers);
  EXPECT_EQ(TryToWire(), 0u);
  workers = Others();
  workers[0].tensor_rank = {1, 4};
  See(workers);
  EXPECT_EQ(TryToWire(), 0u);
}

TEST_F(WiringGroupsTest, IsUpWhenAllAreReadyAndItsOwnGroupHasFormed) {
  for (const bool own_last : {false, true}) {
    const uint64_t epoch = Link();
    ASSERT_THAT(All<FormOwnGroup>(), SizeIs(1));
    if (!own_last) Handle(OwnGroupFormed{epoch, absl::OkStatus()});
    for (const int member : {3, 1, 2}) {
      EXPECT_FALSE(wiring_.up());
      Handle(StageReady{member, epoch, 4 + member});
    }
    EXPECT_EQ(wiring_.up(), !own_last);
    if (own_last) Handle(OwnGroupFormed{epoch, absl::OkStatus()});
    ASSERT_TRUE(wiring_.up());
    ASSERT_THAT(All<ReportChainUp>(), SizeIs(1));
    EXPECT_EQ(All<ReportChainUp>()[0].page_count, 5);
    Handle(ChainFailed{absl::UnavailableError("a test")});
    now_us_ = wiring_.NextDeadlineUs();
  }
}

TEST_F(WiringGroupsTest, RanksOfAStageFindOneAnotherHereAndHearNothingOfOthers) {
  const uint64_t epoch = Link();
  Handle(GroupJoinHeard{0, epoch});
  Say(0, "a");
  Handle(GroupJoinHeard{3, epoch});
  Handle(GroupJoinHeard{1, epoch});
  ASSERT_THAT(All<TellGroup>(), SizeIs(1));
  EXPECT_EQ(All<TellGroup>()[0].member, 1);
  EXPECT_EQ(All<TellGroup>()[0].message.entry->key, "a");
  Say(1, "b");
  ASSERT_THAT(All<TellGroup>(), SizeIs(1));
  EXPECT_EQ(All<TellGroup>()[0].member, 0);
  Say(3, "c");
  EXPECT_THAT(All<TellGroup>(), IsEmpty()) << "rank 0 of stage 1 has not joined";
  Handle(GroupConnectedHeard{0, epoch});
  Handle(GroupConnectedHeard{1, epoch});
  EXPECT_THAT(Verdicts(true), ::testing::ElementsAre(0, 1));
  Handle(GroupJoinHeard{2, epoch});
  Handle(GroupConnectedHeard{2, epoch});
  Handle(GroupConnectedHeard{3, epoch});
  EXPECT_THAT(Verdicts(true), ::testing::ElementsAre(2, 3));
}

TEST_F(WiringGroupsTest, WordsOfAnotherEpochAreIgnored) {
  const uint64_t old_epoch = Link();
  Handle(GroupJoinHeard{0, old_epoch});
  Handle(ChainFailed{absl::UnavailableError("a test")});
  now_us_ = wiring_.NextDeadlineUs();
  const uint64_t epoch = TryToWire();
  ASSERT_GT(epoch, old_epoch);
  Handle(GroupJoinHeard{1, old_epoch});
  Handle(GroupConnectedHeard{1, old_epoch});
  Handle(OwnGroupFormed{old_epoch, absl::UnavailableError("an old one")});
  EXPECT_THAT(actions_, IsEmpty());
  FormGroup(0);
  Handle(GroupJoinHeard{2, epoch});
  Handle(GroupJoinHeard{3, epoch});
  Handle(GroupEntryHeard{2, old_epoch, {"key", "value"}});
  EXPECT_THAT(actions_, IsEmpty());
  Handle(GroupConnectedHeard{2, epoch});
  Handle(GroupConnectedHeard{3, old_epoch});
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(WiringGroupsTest, WithoutItsOwnGroupItBreaks) {
  const uint64_t epoch = Link();
  Handle(OwnGroupFormed{epoch, absl::UnavailableError("no route to rank 1")});
  ASSERT_THAT(All<ReportChainDown>(), SizeIs(1));
  EXPECT_EQ(InstanceOf(All<ReportChainDown>()[0].status), "prefill-0-0");
}

TEST_F(WiringGroupsTest, ItsOwnGroupFormsOnce) {
  const uint64_t epoch = Link();
  Handle(OwnGroupFormed{epoch, absl::OkStatus()});
  Handle(OwnGroupFormed{epoch, absl::UnavailableError("said again")});
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(WiringGroupsTest, AGroupThatDoesNotFormBreaksTheChainWithinItsLimit) {
  const uint64_t epoch = Link();
  const int64_t begun_us = now_us_;
  for (const int member : {1, 2, 3}) Handle(StageReady{member, epoch, 8});
  Handle(GroupJoinHeard{0, epoch});
  while (All<ReportChainDown>().empty() && now_us_ < begun_us + 60 * kSecondUs) {
    EXPECT_THAT(Verdicts(false), IsEmpty());
    now_us_ = wiring_.NextDeadlineUs();
    Handle(WiringTick{wall_clock_us_});
  }
  EXPECT_EQ(now_us_ - begun_us, ChainTimes().linking_limit_us);
  EXPECT_THAT(Verdicts(false), ::testing::ElementsAre(0)) << "the one that has come";
  ASSERT_THAT(All<ReportChainDown>(), SizeIs(1));
  EXPECT_THAT(All<CloseLinks>(), SizeIs(1));
}

TEST_F(WiringGroupsTest, WhoIsLostIsNamedWithItsRank) {
  const uint64_t epoch = Link();
  Handle(StageLinkEnded{3, epoch, absl::UnavailableError("broken pipe")});
  ASSERT_THAT(All<ReportChainDown>(), SizeIs(1));
  const absl::Status why = All<ReportChainDown>()[0].status;
  EXPECT_EQ(InstanceOf(why), "prefill-1-1");
  EXPECT_THAT(std::string(why.message()), HasSubstr("rank 1 of prefill stage 1 (prefill-1-1)"));
}

TEST_F(WiringGroupsTest, ReportsSayWhichRankTheyAreOf) {
  const uint64_t epoch = Link();
  Handle(OwnGroupFormed{epoch, absl::OkStatus()});
  for (const int member : {1, 2, 3}) Handle(StageReady{member, epoch, 8});
  ASSERT_TRUE(wiring_.up());
  Handle(ReportHeard{3, epoch});
  ASSERT_THAT(All<PassReport>(), SizeIs(1));
  EXPECT_EQ(All<PassReport>()[0].stage, 1);
  EXPECT_EQ(All<PassReport>()[0].rank, 1);
  EXPECT_THAT(All<TellOwnStage>(), SizeIs(1));
  Handle(ReportHeard{1, epoch});
  ASSERT_THAT(All<PassReport>(), SizeIs(1));
  EXPECT_EQ(All<PassReport>()[0].stage, 0);
  EXPECT_EQ(All<PassReport>()[0].rank, 1);
  EXPECT_THAT(All<TellOwnStage>(), SizeIs(0));
}

// Between two pings.
class OddLimitTest : public WiringTest {
 protected:
  static WiringOptions Options() {
    WiringOptions options{{"chain-0", 0, 3, 6, {{"prefill-0", 1}, {0, 2}}}, 8, 64, 2};
    options.times.linking_limit_us = 1'200'000;
    return options;
  }
  OddLimitTest() : WiringTest(Options()) {}
};

TEST_F(OddLimitTest, ATickIsDueWhenTheTimeToLinkIsOver) {
  SeeAll();
  TryToWire();
  const int64_t begun_us = now_us_;
  for (const int64_t due_us : {500'000, 1'000'000, 1'200'000}) {
    EXPECT_EQ(wiring_.NextDeadlineUs(), begun_us + due_us);
    now_us_ = wiring_.NextDeadlineUs();
    Handle(WiringTick{wall_clock_us_});
  }
  EXPECT_THAT(All<ReportChainDown>(), SizeIs(1));
}

}  // namespace
}  // namespace baton::links
