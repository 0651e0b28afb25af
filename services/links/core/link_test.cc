#include "services/links/core/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"

namespace baton::links {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kSecondUs = 1'000'000;

Hello HelloOf(uint64_t epoch, const std::string& stage0 = "prefill-0") {
  Hello hello;
  hello.epoch = epoch;
  hello.members = {{{stage0, 1}, {0, 2}}, {{"prefill-1", 1}, {2, 4}}};
  hello.max_plan_tokens = 64;
  hello.activation_credits = 2;
  return hello;
}

class LinkTest : public testing::Test {
 protected:
  explicit LinkTest(const ChainPlace& place = {"chain-0", 1, 2, 4, {{"prefill-1", 1}, {2, 4}}})
      : link_(place) {}

  void Handle(const LinkEvent& event) {
    actions_.clear();
    link_.Handle(event, now_us_, actions_);
  }
  template <typename T>
  std::vector<T> All() const {
    std::vector<T> found;
    for (const LinkAction& action : actions_) {
      if (const T* match = std::get_if<T>(&action)) found.push_back(*match);
    }
    return found;
  }
  void Begin(uint64_t number, uint64_t epoch) {
    Handle(HelloArrived{number, HelloOf(epoch)});
    ASSERT_THAT(All<TryEpoch>(), SizeIs(1));
    Handle(EpochTried{absl::OkStatus()});
    ASSERT_THAT(All<SendReady>(), SizeIs(1));
    EXPECT_EQ(All<SendReady>().at(0).link, number);
    ASSERT_TRUE(link_.begun());
  }

  int64_t now_us_ = kSecondUs;
  Link link_;
  std::vector<LinkAction> actions_;
};

TEST_F(LinkTest, APingIsAnsweredAndTellsOfTheNextStageOnceTheEpochHasBegun) {
  Handle(HelloArrived{1, HelloOf(10)});
  Handle(EpochTried{absl::UnavailableError("not yet")});
  Handle(PingHeard{1, 5, 7});
  ASSERT_THAT(actions_, SizeIs(1));
  EXPECT_EQ(All<SendPong>().at(0).link, 1u);
  EXPECT_EQ(All<SendPong>().at(0).sequence, 5);
  now_us_ = link_.NextDeadlineUs();
  Handle(LinkTick{});
  Handle(EpochTried{absl::OkStatus()});
  Handle(PingHeard{1, 6, 8});
  ASSERT_THAT(actions_, SizeIs(2));
  EXPECT_EQ(All<PassNextStageDone>().at(0).epoch, 10u);
  EXPECT_EQ(All<PassNextStageDone>().at(0).number, 8u);
}

TEST_F(LinkTest, APlanOfTheEpochThatHasBegunIsTaken) {
  Begin(1, 10);
  Handle(WorkHeard{1, 10, absl::OkStatus()});
  EXPECT_THAT(All<TakeWork>(), SizeIs(1));
  EXPECT_THAT(actions_, SizeIs(1));
}

TEST_F(LinkTest, AnyOtherPlanEndsTheEpoch) {
  uint64_t number = 0;
  for (const auto& [epoch, status] : std::vector<std::pair<uint64_t, absl::Status>>{
           {9, absl::OkStatus()}, {99, absl::OkStatus()}, {0, absl::InvalidArgumentError("x")}}) {
    const uint64_t begun = 10 * ++number;
    Begin(number, begun);
    Handle(WorkHeard{number, status.ok() ? epoch : begun, status});
    EXPECT_THAT(All<TakeWork>(), IsEmpty());
    ASSERT_THAT(All<DropEpoch>(), SizeIs(1));
    EXPECT_TRUE(absl::IsCancelled(All<DropEpoch>()[0].why)) << "it is nobody's fault here";
    EXPECT_TRUE(absl::IsInvalidArgument(All<EndLink>().at(0).status));
    EXPECT_THAT(All<DropEpoch>()[0].why.message(), HasSubstr(All<EndLink>()[0].status.message()));
  }
}

TEST_F(LinkTest, APlanBeforeTheStageIsReadyEndsTheLink) {
  Handle(HelloArrived{1, HelloOf(10)});
  Handle(EpochTried{absl::UnavailableError("not yet")});
  Handle(WorkHeard{1, 10, absl::OkStatus()});
  EXPECT_THAT(All<TakeWork>(), IsEmpty());
  EXPECT_TRUE(absl::IsFailedPrecondition(All<EndLink>().at(0).status));
}

TEST_F(LinkTest, WhatComesOnALinkThatStandsNoMoreIsForNobody) {
  Begin(1, 10);
  Begin(2, 11);
  Handle(WorkHeard{1, 11, absl::OkStatus()});
  EXPECT_THAT(actions_, IsEmpty());
  Handle(PingHeard{1, 5, 7});
  EXPECT_THAT(actions_, IsEmpty());
  Handle(LinkGone{2});
  Handle(PingHeard{2, 5, 7});
  EXPECT_THAT(actions_, IsEmpty());
  Handle(WorkHeard{2, 11, absl::OkStatus()});
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(LinkTest, WithoutALinkThereIsNothingToTry) {
  Handle(LinkTick{});
  EXPECT_THAT(actions_, IsEmpty());
  EXPECT_EQ(link_.NextDeadlineUs(), kNeverUs);
}

TEST_F(LinkTest, AHelloIsASignOfLife) {
  now_us_ += 60 * kSecondUs;
  Begin(1, 10);
  Handle(LinkTick{});
  EXPECT_THAT(actions_, IsEmpty());
  EXPECT_EQ(link_.NextDeadlineUs(), now_us_ + 3 * kSecondUs);
}

TEST_F(LinkTest, APlanIsASignOfLife) {
  Begin(1, 10);
  for (int i = 0; i < 10; ++i) {
    now_us_ += kSecondUs;
    Handle(WorkHeard{1, 10, absl::OkStatus()});
    Handle(LinkTick{});
    ASSERT_TRUE(link_.begun());
  }
}

TEST_F(LinkTest, ANewerEpochReplacesTheOldOne) {
  Begin(1, 10);
  Handle(HelloArrived{2, HelloOf(11)});
  EXPECT_EQ(All<EndLink>().at(0).link, 1u);
  EXPECT_THAT(All<DropEpoch>(), SizeIs(1));
  EXPECT_FALSE(link_.begun());
  EXPECT_TRUE(link_.Stands(2));
  EXPECT_FALSE(link_.Stands(1));
}

TEST_F(LinkTest, AnOldEpochIsRefusedWithTheNewest) {
  Begin(1, 10);
  Handle(LinkGone{1});
  for (const uint64_t old : {9, 10}) {
    Handle(HelloArrived{2, HelloOf(old)});
    EXPECT_EQ(All<RefuseLink>().at(0).newest_epoch, 10u);
    EXPECT_EQ(All<RefuseLink>().at(0).epoch, old);
    EXPECT_FALSE(link_.Stands(2));
  }
  Begin(3, 11);
}

TEST_F(LinkTest, AnotherStageZeroIsRefusedWhileTheFirstLives) {
  Begin(1, 10);
  Handle(HelloArrived{2, HelloOf(20, "stranger")});
  EXPECT_EQ(All<RefuseLink>().at(0).link, 2u);
  EXPECT_EQ(All<RefuseLink>().at(0).newest_epoch, 0u) << "a newer one would not do either";
  EXPECT_TRUE(link_.begun());
  Handle(LinkGone{1});
  Handle(HelloArrived{3, HelloOf(20, "stranger")});
  EXPECT_TRUE(link_.Stands(3));
}

TEST_F(LinkTest, ASecondHelloOnTheSameLinkEndsIt) {
  Begin(1, 10);
  Handle(HelloArrived{1, HelloOf(11)});
  EXPECT_EQ(All<EndLink>().at(0).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(link_.begun());
}

TEST_F(LinkTest, TriesUntilTheStageCanBeginButNotForEver) {
  Handle(HelloArrived{1, HelloOf(10)});
  const int64_t since_us = now_us_;
  const absl::Status busy = absl::UnavailableError("work of the last epoch goes on");
  Handle(EpochTried{busy});
  EXPECT_THAT(actions_, IsEmpty());
  while (link_.Stands(1)) {
    now_us_ = link_.NextDeadlineUs() - 1;
    Handle(LinkTick{});
    ASSERT_THAT(actions_, IsEmpty()) << "not before it is time";
    ++now_us_;
    Handle(PingHeard{1});
    Handle(LinkTick{});
    ASSERT_THAT(All<TryEpoch>(), SizeIs(1));
    Handle(EpochTried{busy});
  }
  EXPECT_EQ(All<EndLink>().at(0).status, busy);
  EXPECT_THAT(All<DropEpoch>(), IsEmpty());
  EXPECT_GE(now_us_ - since_us, 8 * kSecondUs);
  EXPECT_LT(now_us_ - since_us, 9 * kSecondUs);
  EXPECT_EQ(link_.NextDeadlineUs(), kNeverUs);
}

TEST_F(LinkTest, TheLastTryIsWhenTheTimeIsOver) {
  for (const int64_t more_us : {-1, 0}) {
    const uint64_t number = link_.standing() + 1;
    Handle(HelloArrived{number, HelloOf(10 + number)});
    now_us_ += 8 * kSecondUs + more_us;
    Handle(EpochTried{absl::UnavailableError("not yet")});
    EXPECT_EQ(link_.Stands(number), more_us < 0);
  }
}

TEST_F(LinkTest, ASilentStageZeroEndsTheEpoch) {
  Begin(1, 10);
  now_us_ += 2 * kSecondUs;
  Handle(PingHeard{1});
  EXPECT_EQ(link_.NextDeadlineUs(), now_us_ + 3 * kSecondUs);
  now_us_ += 3 * kSecondUs;
  Handle(LinkTick{});
  EXPECT_THAT(All<DropEpoch>(), SizeIs(1));
  EXPECT_THAT(All<EndLink>(), SizeIs(1));
}

TEST_F(LinkTest, OnlyTheLinkThatStandsCounts) {
  Begin(1, 10);
  Begin(2, 11);
  now_us_ += 3 * kSecondUs - 1;
  Handle(PingHeard{1});
  Handle(LinkGone{1});
  EXPECT_TRUE(link_.begun());
  now_us_ += 1;
  Handle(LinkTick{});
  EXPECT_FALSE(link_.begun());
}

TEST_F(LinkTest, AStageThatFailsEndsItsLink) {
  Begin(1, 10);
  Handle(StageFailed{absl::ResourceExhaustedError("the executor failed")});
  EXPECT_EQ(All<EndLink>().at(0).status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(All<DropEpoch>(), SizeIs(1));
  Handle(StageFailed{absl::UnavailableError("the stage is stopping")});
  EXPECT_THAT(actions_, IsEmpty());
}

// Rank 1 of two of stage 1 of two.
class RankLinkTest : public LinkTest {
 protected:
  RankLinkTest() : LinkTest({"chain-0", 1, 2, 4, {{"prefill-1-1", 1}, {2, 4}, {1, 2}}}) {}
  void BeginForming(uint64_t number, uint64_t epoch) {
    Handle(HelloArrived{number, HelloOf(epoch)});
    Handle(EpochTried{absl::OkStatus()});
    ASSERT_THAT(All<FormGroup>(), SizeIs(1));
    EXPECT_EQ(All<FormGroup>()[0].link, number);
    EXPECT_EQ(All<FormGroup>()[0].hello.epoch, epoch);
    EXPECT_THAT(All<SendReady>(), IsEmpty());
  }
};

TEST_F(RankLinkTest, IsReadyOnceItsGroupHasFormed) {
  BeginForming(1, 10);
  Handle(GroupFormed{9, absl::UnavailableError("of an older epoch")});
  EXPECT_THAT(actions_, IsEmpty());
  Handle(GroupFormed{10, absl::OkStatus()});
  ASSERT_THAT(All<SendReady>(), SizeIs(1));
  EXPECT_EQ(All<SendReady>()[0].epoch, 10u);
  Handle(GroupFormed{10, absl::UnavailableError("said again")});
  EXPECT_THAT(actions_, IsEmpty());
  Handle(WorkHeard{1, 10, absl::OkStatus()});
  EXPECT_THAT(All<TakeWork>(), SizeIs(1));
}

TEST_F(RankLinkTest, AGroupThatDoesNotFormEndsTheLinkWithItsStatus) {
  BeginForming(1, 10);
  Handle(GroupFormed{10, absl::DeadlineExceededError("rank 0 is not there")});
  EXPECT_THAT(All<DropEpoch>(), SizeIs(1));
  ASSERT_THAT(All<EndLink>(), SizeIs(1));
  EXPECT_EQ(All<EndLink>()[0].status, absl::DeadlineExceededError("rank 0 is not there"));
  Handle(GroupFormed{10, absl::OkStatus()});
  EXPECT_THAT(actions_, IsEmpty()) << "nobody waits for it any more";
  BeginForming(2, 11);  // And the next one begins.
}

TEST_F(RankLinkTest, APlanBeforeTheGroupHasFormedEndsTheLink) {
  BeginForming(1, 10);
  Handle(WorkHeard{1, 10, absl::OkStatus()});
  EXPECT_THAT(All<TakeWork>(), IsEmpty());
  EXPECT_THAT(All<EndLink>(), SizeIs(1));
}

TEST_F(RankLinkTest, TheNextEpochsGroupIsNotTheLastOnes) {
  BeginForming(1, 10);
  BeginForming(2, 11);
  Handle(GroupFormed{10, absl::OkStatus()});
  EXPECT_THAT(actions_, IsEmpty());
  Handle(GroupFormed{11, absl::OkStatus()});
  EXPECT_THAT(All<SendReady>(), SizeIs(1));
}

}  // namespace
}  // namespace baton::links
