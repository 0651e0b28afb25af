#include "common/base/status.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(StatusTest, IsDescribedWithoutEmptyOrRepeatedParts) {
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

TEST(StatusTest, KeepsFieldAndLegThroughAnnotation) {
  absl::Status status = InvalidField("temperature", "must be at least 0, got -1");
  status = WithLeg(Annotate(std::move(status), "request 7"), "decode", "decode-0");
  EXPECT_EQ(status.message(), "request 7: temperature: must be at least 0, got -1");
  EXPECT_EQ(FieldOf(status), "temperature");
  EXPECT_EQ(LegOf(status), "decode");
  EXPECT_EQ(InstanceOf(status), "decode-0");
  EXPECT_EQ(FieldOf(absl::InternalError("x")), std::nullopt);
}

}  // namespace
}  // namespace baton
