// What Memberships does exactly when it is due, and no sooner.
#include <gtest/gtest.h>

#include "services/worker/core/memberships_fixture.h"

namespace baton::worker {
namespace {

constexpr int64_t kGraceUs = 5 * kSecond;
// No heartbeat falls together with anything else that is due.
constexpr int64_t kOddIntervalUs = 300 * kMs;

TEST_F(MembershipsTest, AnAnswerHasASecondOrTwoHeartbeats) {
  for (const auto& [heartbeat_us, timeout_us] :
       std::vector<std::pair<int64_t, int64_t>>{{100 * kMs, kSecond}, {2 * kSecond, 4 * kSecond}}) {
    MembershipOptions options;
    options.router_addresses = {"a:1"};
    options.times.heartbeat_us = heartbeat_us;
    Memberships core(options, 0);
    std::vector<MembershipAction> actions;
    core.Handle(MembershipTick{}, 0, actions);
    const uint64_t lease = std::get<OpenLease>(actions.at(0)).lease;
    actions.clear();
    core.Handle(MembershipTick{}, timeout_us - 1, actions);
    EXPECT_TRUE(actions.empty());
    core.Handle(MembershipTick{}, timeout_us, actions);
    EXPECT_EQ(std::get<CloseLease>(actions.at(0)).lease, lease);
  }
}

TEST_F(MembershipsTest, WhatIsSaidOnACallThatIsOverIsNothing) {
  Add("a:1", 11, {Stage("s0")});
  Begin({"a:1"});
  const int beats = routers_["a:1"].heartbeats;
  Do(LeaseGranted{99, 11, 0});
  Do(HeartbeatAnswered{99, {Stage("s1")}});
  Do(HeartbeatWanted{99});
  Do(LeaseEnded{99, absl::NotFoundError("who?")});
  EXPECT_EQ(routers_["a:1"].heartbeats, beats);
  EXPECT_EQ(open_, (Names{"s0/1"}));
  EXPECT_EQ(core_->Find(99), nullptr);
}

TEST_F(MembershipsTest, ARouterThatIsDownAtFirstIsJoinedWhenItIsUp) {
  Add("a:1", 11).up = false;
  Begin({"a:1"});
  Pass(kSecond);
  routers_["a:1"].up = true;
  Pass(2 * kSecond);
  EXPECT_TRUE(core_->registered());
}

TEST_F(MembershipsTest, ARoutersFirstFailureIsAReasonToResolveAndTheNextOnesAreNone) {
  Add("10.0.0.1:1", 11);
  dns_ = std::vector<std::string>{"10.0.0.1:1"};
  Begin({}, {"router:1"});
  Pass(2 * kSecond + 20 * kMs);
  const int before = resolutions_;
  routers_["10.0.0.1:1"].up = false;
  Do(StatusChanged{});
  EXPECT_EQ(resolutions_, before + 1) << "at once";
  Pass(60 * kSecond);
  EXPECT_NEAR(resolutions_, before + 1 + 12, 2) << "as often as always";
}

TEST_F(MembershipsTest, ARouterThatNobodyNamesIsForgottenAGraceAfterItsLastWord) {
  Add("10.0.0.1:1", 11).interval_us = kOddIntervalUs;
  dns_ = std::vector<std::string>{"10.0.0.1:1"};
  Begin({}, {"router:1"});
  Pass(kSecond);
  dns_ = std::vector<std::string>{};
  Do(RouterNameResolved{"router:1", dns_});
  routers_["10.0.0.1:1"].up = false;
  const int64_t heard_us = core_->Find(IdOf("10.0.0.1:1"))->heard_us();
  EXPECT_EQ(TickUntil([this] { return !forgotten_.empty(); }), heard_us + kGraceUs);
}

TEST_F(MembershipsTest, APeerIsTriedAgainAHeartbeatsTimeLater) {
  Add("a:1", 11, {Stage("s0")}).interval_us = kOddIntervalUs;
  unreachable_ = {"s0"};
  Begin({"a:1"});
  const int64_t tried_us = now_us_;
  ASSERT_EQ(connects_, 1);
  EXPECT_EQ(TickUntil([this] { return connects_ == 2; }), tried_us + 500 * kMs);
}

TEST_F(MembershipsTest, AnAddressThatIsLeftOutIsToldOfOnceEachTime) {
  std::vector<std::string> addresses;
  for (int i = 0; i < kMaxRouters; ++i) {
    addresses.push_back(absl::StrCat("10.0.0.", 100 + i, ":1"));
    Add(addresses.back(), 100 + static_cast<uint64_t>(i));
  }
  std::vector<std::string> more = addresses;
  more.emplace_back("10.0.0.999:1");  // The last one in order.
  dns_ = more;
  Begin({}, {"router:1"});
  ASSERT_EQ(core_->routers_joined(), kMaxRouters);
  EXPECT_EQ(left_outs_, 1);
  const auto resolve = [this](const std::vector<std::string>& to) {
    Do(RouterNameResolved{"router:1", to});
  };
  resolve(more);
  EXPECT_EQ(left_outs_, 1);
  resolve(addresses);
  resolve(more);
  EXPECT_EQ(left_outs_, 2) << "it was not named for a while";
}

}  // namespace
}  // namespace baton::worker
