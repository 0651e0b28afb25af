// Which workers are told of a change of their members, and when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/router/core/router_core_fixture.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const WorkerInfo kStage = TestStage("c0", 0, 1);
const WorkerInfo kRank0 = TestDecodeRank(0);
const WorkerInfo kRank1 = TestDecodeRank(1);
const WorkerInfo kDecode = TestDecode("d0");

class WatchesTest : public RouterCoreTest {
 protected:
  std::vector<uint64_t> Told() const {
    std::vector<uint64_t> rpc_ids;
    for (const NotifyWatch& notice : All<NotifyWatch>()) {
      rpc_ids.push_back(notice.rpc_id);
    }
    return rpc_ids;
  }
};

TEST_F(WatchesTest, AWatchHearsOfEveryChangeOfItsMembersAndOfNoOther) {
  Join({kStage, kRank0});
  Handle(WatchOpened{10, kStage.instance});
  Handle(WatchOpened{20, kRank0.instance});
  Handle(RegisterRequested{1, kRank1});
  EXPECT_THAT(Told(), ElementsAre(20));
  EXPECT_EQ(Only<NotifyWatch>().rpc_id, 20u);
  Handle(HeartbeatReceived{2, kRank1.instance, kIncarnation, 0, true, {}});
  EXPECT_THAT(Told(), IsEmpty());
  WorkerInfo again = kRank1;
  Dies(again.instance);
  again.instance.incarnation = 2;
  Handle(RegisterRequested{3, again});
  EXPECT_THAT(Told(), ElementsAre(20));  // One notice for a loss and a join.
  Handle(HeartbeatReceived{4, again.instance, kIncarnation, 0, false, {}, true, /*leaving=*/true});
  EXPECT_THAT(Told(), ElementsAre(20));
  Handle(RegisterRequested{5, TestDecode("d1")});
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(WatchesTest, AWorkerThatLagsIsToldWhenItOpensItsWatch) {
  Handle(RegisterRequested{1, kStage});
  Handle(WatchOpened{10, kStage.instance});
  EXPECT_THAT(Told(), ElementsAre(10));
  Beat(kStage.instance);
  Handle(WatchOpened{11, kStage.instance});
  EXPECT_THAT(Told(), IsEmpty());
}

// A router that starts anew hears of what is cached while chains form.
TEST_F(WatchesTest, PromptsTakenOfAChainThatIsNotWholeAreWantedAgain) {
  const std::vector<WorkerInfo> stages = {TestStage("c1", 0, 2), TestStage("c1", 1, 2)};
  const auto tell = [&] {
    HeartbeatReceived beat{
        2, stages[0].instance, kIncarnation, VersionFor(stages[0].instance), true, {}};
    beat.linked = LinkedBy(core_->membership(), stages[0].instance);
    beat.taken_prompts = {{5, 6}};
    Handle(beat);
    return Only<ReplyHeartbeat>().tell_prompts_again;
  };
  Handle(RegisterRequested{1, stages[0]});
  EXPECT_TRUE(tell());
  Join({stages[1]});
  EXPECT_FALSE(tell());
}

TEST_F(WatchesTest, AWorkerHasOneWatch) {
  Join({kRank0});
  Handle(WatchOpened{10, kRank0.instance});
  Handle(WatchOpened{11, kRank0.instance});
  EXPECT_EQ(Only<EndWatch>().rpc_id, 10);
  Handle(RegisterRequested{1, kRank1});
  EXPECT_THAT(Told(), ElementsAre(11));
  Handle(WatchBroken{10});  // The end of the old one, late: the worker is heard by the new one.
  EXPECT_TRUE(core_->membership().Find(kRank0.instance) != nullptr);
  EXPECT_FALSE(core_->membership().Find(kRank0.instance)->suspect);
}

TEST_F(WatchesTest, StrangersHaveNone) {
  Handle(WatchOpened{10, {"d9", 1}});
  EXPECT_EQ(Only<EndWatch>().status.code(), absl::StatusCode::kNotFound);
  Handle(RegisterRequested{1, kDecode});
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(WatchesTest, ALostWorkersWatchEnds) {
  Join({kStage});
  Handle(WatchOpened{10, kStage.instance});
  now_us_ += kDeadlineUs * 10;
  Handle(Tick{});
  EXPECT_EQ(Only<EndWatch>().rpc_id, 10);
  EXPECT_THAT(Told(), IsEmpty());
  Handle(WatchBroken{10});
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(WatchesTest, WhoWatchedNothingHasNoWatchToEnd) {
  Join({kStage});
  now_us_ += kDeadlineUs * 10;
  Handle(Tick{});
  EXPECT_THAT(core_->membership().Workers(), IsEmpty());
  EXPECT_THAT(All<EndWatch>(), IsEmpty());
}

TEST_F(WatchesTest, ABrokenWatchTakesAWorkerOutUntilItIsHeard) {
  Join({kStage, kDecode});
  Handle(WatchOpened{20, kDecode.instance});
  ASSERT_THAT(core_->membership().ReadyPairs(), SizeIs(1));
  Handle(WatchBroken{20});
  EXPECT_THAT(core_->membership().ReadyPairs(), IsEmpty());
  EXPECT_EQ(core_->membership().WhatIsMissing(), "d0 does not answer");
  Beat(kDecode.instance);
  EXPECT_THAT(core_->membership().ReadyPairs(), SizeIs(1));
  Handle(DrainRequested{1, kDecode.instance.id});
  EXPECT_THAT(Told(), IsEmpty()) << "nobody watches by that call any more";
}

TEST_F(WatchesTest, TheEndOfALostWorkersWatchSaysNothingOfItsNextOne) {
  Join({kStage});
  Handle(WatchOpened{10, kStage.instance});
  now_us_ += kDeadlineUs * 10;
  Handle(Tick{});
  Join({kStage});
  Handle(WatchOpened{11, kStage.instance});
  Handle(WatchBroken{10});
  EXPECT_FALSE(core_->membership().Find(kStage.instance)->suspect);
}

TEST_F(WatchesTest, AHeartbeatOfAnotherRoutersRegistrationIsRefused) {
  Join({kStage});
  Handle(HeartbeatReceived{2, kStage.instance, kIncarnation + 1, 1, true, {}});
  EXPECT_EQ(Only<ReplyHeartbeat>().status.code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace baton::router
