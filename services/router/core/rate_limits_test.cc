#include "services/router/core/rate_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "services/router/core/router_core_fixture.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSecondUs = 1'000'000;

TEST(RateLimitsTest, WithoutLimitsNobodyIsRemembered) {
  RateLimits limits({});
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(limits.Take("a", 1'000'000, 0).ok());
  limits.GiveBack("a", 5, 0);
  EXPECT_EQ(limits.tenants(), 0u);
}

TEST(RateLimitsTest, RequestsComeBackOneByOne) {
  RateLimits limits({.requests_per_minute = 6});
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(limits.Take("a", 10, 0).ok());
  const absl::Status refused = limits.Take("a", 10, 0);
  EXPECT_TRUE(IsOverloaded(refused) && IsRateLimited(refused)) << refused;
  EXPECT_FALSE(IsRateLimited(Overloaded(absl::ResourceExhaustedError("full"))));
  EXPECT_EQ(RetryHintMsOf(refused), 10'000);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--tenant-requests-per-minute"));
  EXPECT_TRUE(limits.Take("b", 10, 0).ok()) << "another tenant's";
  EXPECT_FALSE(limits.Take("a", 10, 9 * kSecondUs).ok());
  EXPECT_TRUE(limits.Take("a", 10, 10 * kSecondUs).ok());
  EXPECT_FALSE(limits.Take("a", 10, 10 * kSecondUs).ok());
  EXPECT_EQ(limits.refused().requests_total, 3);
  EXPECT_EQ(limits.refused().tokens_total, 0);
}

TEST(RateLimitsTest, ARestedTenantHasNoMoreThanAMinutes) {
  RateLimits limits({.requests_per_minute = 2});
  ASSERT_TRUE(limits.Take("a", 1, 0).ok());
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(limits.Take("a", 1, 3600 * kSecondUs).ok());
  EXPECT_FALSE(limits.Take("a", 1, 3600 * kSecondUs).ok());
}

TEST(RateLimitsTest, TokensThatWereNotUsedComeBackAtOnce) {
  RateLimits limits({.tokens_per_minute = 600});
  ASSERT_TRUE(limits.Take("a", 500, 0).ok());
  EXPECT_EQ(RetryHintMsOf(limits.Take("a", 200, 0)), 10'000);
  limits.GiveBack("a", 400, 0);
  EXPECT_TRUE(limits.Take("a", 500, 0).ok());
  EXPECT_FALSE(limits.Take("a", 1, 0).ok());
  EXPECT_EQ(limits.refused().tokens_total, 2);
}

TEST(RateLimitsTest, WhatIsOwedIsPaidFirst) {
  RateLimits limits({.tokens_per_minute = 600});
  ASSERT_TRUE(limits.Take("a", 100, 0).ok());
  limits.GiveBack("a", -800, 0);
  EXPECT_EQ(RetryHintMsOf(limits.Take("a", 1, 0)), 30'100);
  EXPECT_TRUE(limits.Take("a", 1, 31 * kSecondUs).ok());
}

TEST(RateLimitsTest, WhatNoMinuteHasIsRefusedForGood) {
  RateLimits limits({.tokens_per_minute = 600});
  const absl::Status refused = limits.Take("a", 601, 0);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(limits.tenants(), 0u);
}

TEST(RateLimitsTest, TenantsAreBounded) {
  RateLimits limits({.requests_per_minute = 1});
  for (size_t i = 0; i < RateLimits::kMostTenants + 1000; ++i) {
    ASSERT_TRUE(limits.Take(std::to_string(i), 1, static_cast<int64_t>(i)).ok());
    ASSERT_LE(limits.tenants(), RateLimits::kMostTenants);
  }
  const auto now_us = static_cast<int64_t>(RateLimits::kMostTenants + 1000);
  EXPECT_FALSE(limits.Take(std::to_string(RateLimits::kMostTenants), 1, now_us).ok())
      << "those that came last are known";
}

// ---- In the router ----

class RouterRateTest : public RouterCoreTest {
 protected:
  RouterRateTest() {
    RouterLimits limits;
    limits.rate_limits = {.requests_per_minute = 3, .tokens_per_minute = 1000};
    Reset(limits);
    JoinOnePair();
  }
  void Ask(uint64_t call_id, const std::string& tenant, int max_tokens, bool clip = false) {
    CallSubmitted call{call_id, "r" + std::to_string(call_id), 100, max_tokens,
                       now_us_ + kDeadlineUs};
    call.tenant = tenant;
    call.clip = clip;
    Handle(call);
  }
  bool Taken() const { return All<FinishCall>().empty(); }
};

TEST_F(RouterRateTest, ATenantsLimitIsItsOwn) {
  for (uint64_t call_id = 1; call_id <= 3; ++call_id) {
    Ask(call_id, "a", 4);
    EXPECT_TRUE(Taken());
  }
  Ask(4, "a", 4);
  const absl::Status refused = Only<FinishCall>().outcome.status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused) && IsOverloaded(refused)) << refused;
  EXPECT_EQ(LegOf(refused), "router");
  EXPECT_EQ(core_->load().limited.requests_total, 1);
  Ask(5, "b", 4);
  EXPECT_TRUE(Taken());
}

TEST_F(RouterRateTest, WhatWasNotUsedIsGivenBack) {
  Ask(1, "a", 900);
  EXPECT_TRUE(Taken());
  Ask(2, "a", 4);
  EXPECT_FALSE(Taken());
  Handle(ClientGone{1});
  Ask(3, "a", 900);
  EXPECT_TRUE(Taken()) << "it had told nothing";
}

TEST_F(RouterRateTest, WhoAskedForNoLengthOwesWhatItGot) {
  Ask(1, "a", 880, /*clip=*/true);
  const Reserve begun = Only<Reserve>();
  Handle(ReserveReplied{begun.attempt_id, Ticket{begun.decode, 0, 5, 100, 7, {}}});
  for (int i = 0; i < 850; ++i) Handle(TokenReceived{begun.attempt_id, {7, 0, {}}});
  Handle(ClientGone{1});
  Ask(2, "a", 4);
  EXPECT_FALSE(Taken()) << "50 are left";
  EXPECT_EQ(core_->load().limited.tokens_total, 1);
}

TEST_F(RouterRateTest, WhatIsRefusedForAnotherReasonCostsNothing) {
  for (uint64_t call_id = 1; call_id <= 9; ++call_id) Ask(call_id, "a", 2'000'000);
  EXPECT_EQ(core_->load().limited.tokens_total, 0) << "no pair fits them";
  Ask(10, "a", 4);
  EXPECT_TRUE(Taken());
}

}  // namespace
}  // namespace baton::router
