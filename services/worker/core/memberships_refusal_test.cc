// What a worker does when routers refuse it.
#include <gtest/gtest.h>

#include "services/worker/core/memberships_fixture.h"

namespace baton::worker {
namespace {

TEST_F(MembershipsTest, WhatCanNeverBecomeTrueEndsTheWorkerAtOnce) {
  for (const absl::Status& refusal : {absl::OutOfRangeError("speaks 3 to 4, this router 1 to 2"),
                                      absl::InvalidArgumentError("pp_rank must be below")}) {
    Add("a:1", 11).refusal = refusal;
    rejections_ = 0;
    Begin({"a:1"});
    EXPECT_EQ(rejection_, refusal);
    EXPECT_EQ(core_->NextDeadlineUs(now_us_), kNeverUs);
    Pass(10 * kSecond);
    EXPECT_EQ(rejections_, 1) << "nothing follows";
  }
}

TEST_F(MembershipsTest, WhatOthersCanMendIsAskedForAgain) {
  for (const absl::Status& refusal : {absl::FailedPreconditionError("rank 0 is taken"),
                                      absl::ResourceExhaustedError("4096 workers")}) {
    Router& a = Add("a:1", 11);
    a = Router{.incarnation = 11, .refusal = refusal};
    Begin({"a:1"});
    const int64_t began_us = now_us_;
    Pass(60 * kSecond);
    EXPECT_TRUE(rejection_.ok());
    EXPECT_NEAR(a.registrations, 123, 5) << "soon at first, then with each heartbeat's interval";
    EXPECT_EQ(core_->routers_refusing(), 1);
    ASSERT_TRUE(core_->unregistered().has_value());
    EXPECT_EQ(core_->unregistered()->why,
              absl::StrCat("the router at a:1 refuses this worker: ", refusal.message()));
    EXPECT_EQ(core_->unregistered()->since_us, began_us);
    a.refusal = absl::OkStatus();
    Pass(500 * kMs);
    EXPECT_TRUE(core_->registered());
    EXPECT_EQ(core_->routers_refusing(), 0);
    EXPECT_FALSE(core_->unregistered().has_value());
  }
}

TEST_F(MembershipsTest, SaysWhyNoRouterHoldsIt) {
  Begin({});
  EXPECT_EQ(core_->unregistered()->why, "no router is known");
  Add("a:1", 11).up = false;
  Add("b:1", 22).up = false;
  Begin({"a:1", "b:1"});
  Pass(10 * kSecond);
  EXPECT_EQ(core_->unregistered()->why, "no answer from a:1 and other routers");
  EXPECT_EQ(core_->unregistered()->since_us, now_us_ - 10 * kSecond);
}

TEST_F(MembershipsTest, WhoIsHeldByARouterOutlivesAnothersRefusal) {
  Add("a:1", 11).refusal = absl::FailedPreconditionError("rank 0 is taken");
  Add("b:1", 22);
  Begin({"a:1", "b:1"});
  Pass(10 * kSecond);
  EXPECT_TRUE(rejection_.ok());
  EXPECT_GT(routers_["a:1"].registrations, 3) << "it may change its mind";
  routers_["a:1"].refusal = absl::OkStatus();
  Pass(3 * kSecond);
  EXPECT_EQ(core_->routers_joined(), 2);
}

TEST_F(MembershipsTest, ARefusalForGoodWaitsForRoutersThatMayAccept) {
  Add("a:1", 11).refusal = absl::OutOfRangeError("speaks 3 to 4");
  Add("b:1", 22).up = false;
  Begin({"a:1", "b:1"});
  Pass(kSecond);
  EXPECT_TRUE(rejection_.ok());
  Pass(2 * kSecond);
  EXPECT_FALSE(rejection_.ok()) << "nobody else is there";
}

TEST_F(MembershipsTest, ARouterThatIsFoundLaterHasItsTimeToo) {
  Add("a:1", 11).refusal = absl::OutOfRangeError("speaks 3 to 4");
  Add("b:1", 22).up = false;
  Add("c:1", 33).up = false;
  Begin({"a:1", "b:1"});
  Pass(700 * kMs);
  Do(RouterAnnounced{"c:1"});
  const int64_t announced_us = now_us_;
  EXPECT_EQ(TickUntil([this] { return rejections_ > 0; }), announced_us + 2 * kSecond);
}

TEST_F(MembershipsTest, ARouterThatHasFallenSilentRefusesNobody) {
  Router& a = Add("a:1", 11);
  a.refusal = absl::FailedPreconditionError("rank 0 is taken");
  Begin({"a:1"});
  a.up = false;
  TickUntil([this] { return core_->Find(IdOf("a:1"))->failures() > 0; });
  EXPECT_EQ(core_->unregistered()->why, "no answer from a:1");
  EXPECT_EQ(core_->routers_refusing(), 0);
}

TEST_F(MembershipsTest, AListOfARouterThatDoesNotHoldItIsNone) {
  Add("a:1", 11).refusal = absl::FailedPreconditionError("rank 0 is taken");
  Begin({"a:1"});
  routers_["a:1"].silent = true;
  Pass(50 * kMs);
  ASSERT_NE(LeaseAt("a:1"), 0u);
  Do(HeartbeatAnswered{LeaseAt("a:1"), {Stage("s0")}});
  EXPECT_EQ(open_, Names{});
}

TEST_F(MembershipsTest, OneRefusalForNowIsHopeEnough) {
  Add("a:1", 11).refusal = absl::OutOfRangeError("speaks 3 to 4");
  Add("b:1", 22).refusal = absl::FailedPreconditionError("rank 0 is taken");
  Begin({"a:1", "b:1"});
  Pass(10 * kSecond);
  EXPECT_TRUE(rejection_.ok());
  routers_["b:1"].refusal = absl::OkStatus();
  Pass(kSecond);
  EXPECT_EQ(core_->routers_joined(), 1);
}

TEST_F(MembershipsTest, ARestartOfTheRouterThatAcceptsIsNoVerdict) {
  Add("a:1", 11).refusal = absl::OutOfRangeError("speaks 3 to 4");
  Router& b = Add("b:1", 22);
  Begin({"a:1", "b:1"});
  b.incarnation = 23;
  b.knows = false;
  Pass(5 * kSecond);
  EXPECT_TRUE(rejection_.ok());
  EXPECT_EQ(b.registrations, 2);
}

}  // namespace
}  // namespace baton::worker
