#include "common/base/status.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

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
