#include <gtest/gtest.h>

#include "common/base/status.h"

namespace baton {
namespace {

TEST(StatusTextTest, HasNoEmptyOrRepeatedParts) {
  EXPECT_EQ(DescribeStatus(absl::OkStatus()), "OK");
  const absl::Status gone = absl::UnavailableError("the connection broke");
  EXPECT_EQ(DescribeStatus(gone), "UNAVAILABLE: the connection broke");
  EXPECT_EQ(DescribeStatus(WithLeg(gone, "router", "")),
            "UNAVAILABLE: the connection broke (router leg)");
  EXPECT_EQ(DescribeStatus(WithLeg(gone, "decode", "d0")),
            "UNAVAILABLE: the connection broke (decode leg, d0)");
  EXPECT_EQ(DescribeStatus(WithLeg(absl::UnavailableError("decode d0 left"), "decode", "d0")),
            "UNAVAILABLE: decode d0 left");
}

}  // namespace
}  // namespace baton
