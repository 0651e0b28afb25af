#include "services/prefill/chain/messages.h"

#include <gtest/gtest.h>

#include <limits>

namespace baton::prefill {
namespace {

constexpr KnownCost kKnown = {
    {.overhead_us = 900, .prefix_us = 0.05, .token_us = 12, .attention_us = 0.0004}, 0.1};

TEST(MessagesTest, AMeasuredCostArrivesAsItWasSent) {
  const auto known = FromProto(ToProto(kKnown));
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(known->cost, kKnown.cost);
  EXPECT_EQ(known->error, kKnown.error);
}

TEST(MessagesTest, AMeasuredCostThatMakesNoSenseIsRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {-1.0, 1e300, nan, infinity}) {
    v1::MeasuredCost proto = ToProto(kKnown);
    proto.set_overhead_us(bad);
    EXPECT_EQ(FromProto(proto).status().code(), absl::StatusCode::kInvalidArgument) << bad;
    proto = ToProto(kKnown);
    proto.set_error_ratio(bad);
    EXPECT_EQ(FromProto(proto).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_FALSE(FromProto(v1::MeasuredCost()).ok()) << "tokens that cost nothing";
  v1::MeasuredCost untrusted = ToProto(kKnown);
  untrusted.set_error_ratio(0.31);
  EXPECT_FALSE(FromProto(untrusted).ok());
}

}  // namespace
}  // namespace baton::prefill
