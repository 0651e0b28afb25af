// Leases of workers: whose call holds one, who is asked for a heartbeat, and when.
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

class LeasesTest : public RouterCoreTest {
 protected:
  // The calls that are asked for a heartbeat.
  std::vector<uint64_t> Asked() const {
    std::vector<uint64_t> calls;
    for (const AskHeartbeat& ask : All<AskHeartbeat>()) calls.push_back(ask.rpc_id);
    return calls;
  }
  uint64_t CallOf(const WorkerInfo& worker) const { return call_of_.at(worker.instance); }
  // By a call of that number.
  void AskBy(uint64_t call, const WorkerInfo& worker, std::vector<uint64_t> held_by = {}) {
    Handle(LeaseAsked{call, worker, std::move(held_by), call});
  }
};

TEST_F(LeasesTest, AMemberIsAskedForAHeartbeatWhenItsOwnMembersChange) {
  Join({kStage, kRank0});
  Ask(kRank1);
  EXPECT_THAT(Asked(), ElementsAre(CallOf(kRank0)));
  Say(kRank1.instance, {0, true, {}});
  EXPECT_THAT(Only<AnswerHeartbeat>().workers, SizeIs(2));
  EXPECT_THAT(Asked(), IsEmpty());
  Beat(kRank0.instance);
  EXPECT_THAT(Only<AnswerHeartbeat>().workers, SizeIs(2));
  Beat(kRank0.instance);
  EXPECT_THAT(Only<AnswerHeartbeat>().workers, IsEmpty()) << "it has been told";
  WorkerInfo again = kRank1;
  Dies(kRank1.instance);
  again.instance.incarnation = 2;
  Ask(again);
  EXPECT_THAT(Asked(), ElementsAre(CallOf(kRank0))) << "once for a loss and a join";
  Say(again.instance, {0, false, {}, true, /*leaving=*/true});
  EXPECT_THAT(Asked(), IsEmpty()) << "it was asked, and has not answered yet";
  Beat(kRank0.instance);
  EXPECT_THAT(Only<AnswerHeartbeat>().workers, ElementsAre(kRank0));
  Ask(TestDecode("d1"));
  EXPECT_THAT(Asked(), IsEmpty());
}

// A router that starts anew hears of what is cached while chains form.
TEST_F(LeasesTest, PromptsTakenOfAChainThatIsNotWholeAreWantedAgain) {
  const std::vector<WorkerInfo> stages = {TestStage("c1", 0, 2), TestStage("c1", 1, 2)};
  const auto tell = [&] {
    HeartbeatReceived beat{0, true, {}};
    beat.linked = LinkedBy(core_->membership(), stages[0].instance);
    beat.taken_prompts = {{5, 6}};
    Say(stages[0].instance, beat);
    return Only<AnswerHeartbeat>().tell_prompts_again;
  };
  Ask(stages[0]);
  EXPECT_TRUE(tell());
  Join({stages[1]});
  EXPECT_FALSE(tell());
}

TEST_F(LeasesTest, TheLaterOfTwoCallsHoldsTheLease) {
  Join({kRank0});
  const uint64_t before = CallOf(kRank0);
  Ask(kRank0);
  EXPECT_EQ(Only<AnswerLease>().status, absl::OkStatus());
  EXPECT_EQ(Only<EndLease>().rpc_id, before);
  EXPECT_TRUE(absl::IsAlreadyExists(Only<EndLease>().status));
  Handle(LeaseBroken{before});  // Its end, late: the worker is heard by the new one.
  EXPECT_FALSE(core_->membership().Find(kRank0.instance)->suspect);
  Handle(HeartbeatReceived{before, false, {}, true, /*leaving=*/true});
  EXPECT_THAT(actions_, IsEmpty());
  EXPECT_THAT(core_->membership().Workers(), SizeIs(1));
}

TEST_F(LeasesTest, AWorkerThatIsHeldAlreadyHasFoundAnotherAddress) {
  Join({kStage});
  AskBy(90, kStage, {kIncarnation + 1, kIncarnation});
  EXPECT_TRUE(absl::IsAlreadyExists(Only<AnswerLease>().status));
  EXPECT_THAT(All<EndLease>(), IsEmpty());
  Beat(kStage.instance);
  EXPECT_THAT(All<AnswerHeartbeat>(), SizeIs(1)) << "by the call that stands";
  // It does not know yet that the call has broken.
  Dies(kStage.instance);
  AskBy(91, kStage, {kIncarnation});
  EXPECT_EQ(Only<AnswerLease>().status, absl::OkStatus());
}

// The worker has given it up, and its message was late.
TEST_F(LeasesTest, AnEarlierCallTakesNoLeaseFromALaterOne) {
  AskBy(90, kStage);
  Handle(LeaseAsked{91, kStage, {}, 89});
  EXPECT_TRUE(absl::IsAlreadyExists(Only<AnswerLease>().status));
  EXPECT_THAT(All<EndLease>(), IsEmpty());
  Handle(LeaseBroken{91});
  EXPECT_FALSE(core_->membership().Find(kStage.instance)->suspect);
  Handle(HeartbeatReceived{90, true, {}});
  EXPECT_THAT(All<AnswerHeartbeat>(), SizeIs(1));
}

TEST_F(LeasesTest, ALostWorkersCallEnds) {
  Join({kStage});
  const uint64_t call = CallOf(kStage);
  now_us_ += kDeadlineUs * 10;
  Handle(Tick{});
  EXPECT_EQ(Only<EndLease>().rpc_id, call);
  EXPECT_TRUE(absl::IsNotFound(Only<EndLease>().status));
  EXPECT_THAT(Asked(), IsEmpty());
  Handle(LeaseBroken{call});
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(LeasesTest, WhoIsLostAfterItsCallBrokeHasNoneToEnd) {
  Join({kStage});
  Dies(kStage.instance);
  now_us_ += kDeadlineUs * 10;
  Handle(Tick{});
  EXPECT_THAT(core_->membership().Workers(), IsEmpty());
  EXPECT_THAT(All<EndLease>(), IsEmpty());
}

TEST_F(LeasesTest, ABrokenCallTakesAWorkerOut) {
  Join({kStage, kDecode});
  ASSERT_THAT(core_->membership().ReadyPairs(), SizeIs(1));
  Dies(kDecode.instance);
  EXPECT_THAT(core_->membership().ReadyPairs(), IsEmpty());
  EXPECT_EQ(core_->membership().WhatIsMissing(), "d0 does not answer");
  Handle(DrainRequested{1, kDecode.instance.id});
  EXPECT_THAT(Asked(), IsEmpty()) << "there is no call to ask by";
  EXPECT_EQ(core_->membership().Workers().size(), 2u);
}

// This router was late, and the worker has asked again meanwhile.
TEST_F(LeasesTest, ACallThatBreaksBeforeItsFirstHeartbeatSaysNothing) {
  Join({kStage, kDecode});
  AskBy(90, kDecode);
  EXPECT_THAT(All<EndLease>(), SizeIs(1));
  Handle(LeaseBroken{90});
  EXPECT_THAT(core_->membership().ReadyPairs(), SizeIs(1));
  AskBy(91, kDecode);
  Handle(HeartbeatReceived{91, true, {}});
  Handle(LeaseBroken{91});
  EXPECT_THAT(core_->membership().ReadyPairs(), IsEmpty());
}

TEST_F(LeasesTest, AWorkerThatAsksAnewServesFromItsNextHeartbeatOn) {
  Join({kStage, kDecode});
  Dies(kDecode.instance);
  Ask(kDecode);
  EXPECT_THAT(core_->membership().ReadyPairs(), IsEmpty());
  Beat(kDecode.instance);
  EXPECT_THAT(core_->membership().ReadyPairs(), SizeIs(1));
}

TEST_F(LeasesTest, WhoLeavesIsAnsweredBeforeItsCallEnds) {
  Join({kStage});
  const uint64_t call = CallOf(kStage);
  Say(kStage.instance, {0, false, {}, true, /*leaving=*/true});
  ASSERT_THAT(actions_, SizeIs(2));
  EXPECT_EQ(std::get<AnswerHeartbeat>(actions_[0]).rpc_id, call);
  EXPECT_EQ(std::get<EndLease>(actions_[1]).rpc_id, call);
  EXPECT_THAT(core_->membership().Workers(), IsEmpty());
}

TEST_F(LeasesTest, WhoIsRefusedHoldsNothing) {
  Join({kStage});
  WorkerInfo twin = kStage;
  twin.instance.incarnation = 9;
  AskBy(90, twin);
  EXPECT_TRUE(absl::IsFailedPrecondition(Only<AnswerLease>().status));
  Handle(HeartbeatReceived{90, true, {}});
  EXPECT_THAT(actions_, IsEmpty());
  Handle(LeaseBroken{90});
  EXPECT_FALSE(core_->membership().Find(kStage.instance)->suspect);
}

}  // namespace
}  // namespace baton::router
