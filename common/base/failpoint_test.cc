#include "common/base/failpoint.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(FailpointTest, ActsOnlyOnTheNamedHit) {
  ASSERT_TRUE(ArmFailpoints("a.b=error@2; c=delay:0").ok());
  EXPECT_TRUE(Failpoint("a.b").ok());
  EXPECT_EQ(Failpoint("a.b").code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Failpoint("a.b").ok());
  EXPECT_TRUE(Failpoint("c").ok());
  EXPECT_TRUE(Failpoint("unnamed").ok());
  ASSERT_TRUE(ArmFailpoints("").ok());
  EXPECT_TRUE(Failpoint("a.b").ok());
}

TEST(FailpointTest, ActsOnEveryNthHit) {
  ASSERT_TRUE(ArmFailpoints("a=error%3").ok());
  for (int hit = 1; hit <= 9; ++hit) EXPECT_EQ(Failpoint("a").ok(), hit % 3 != 0) << hit;
  ASSERT_TRUE(ArmFailpoints("").ok());
}

TEST(FailpointTest, RefusesWhatItCannotRead) {
  for (const char* bad :
       {"a", "=kill", "a=explode", "a=delay", "a=delay:x", "a=error@0", "a=error%0", "a=error%x"}) {
    EXPECT_EQ(ArmFailpoints(bad).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace baton
