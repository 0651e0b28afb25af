#include <gtest/gtest.h>

#include "common/preflight/machine.h"

namespace baton {
namespace {

TEST(ControlGroupsTest, AQuotaIsWorthWholeCoresRoundedUp) {
  EXPECT_EQ(CoresOfCpuMax("200000 100000\n"), 2);
  EXPECT_EQ(CoresOfCpuMax("200001 100000"), 3);
  EXPECT_EQ(CoresOfCpuMax("1000 100000"), 1);
  EXPECT_EQ(CoresOfCpuMax("9223372036854775807 1"), INT64_MAX);
  EXPECT_EQ(CoresOfQuota(250'000, 50'000), 5);
}

TEST(ControlGroupsTest, WhatIsNoQuotaLimitsNothing) {
  for (const char* text : {"", "max 100000\n", "max", "100000", "x y", "1 2 3", "0 100000",
                           "-1 100000", "100000 0", "99999999999999999999 100000"}) {
    EXPECT_EQ(CoresOfCpuMax(text), std::nullopt) << text;
  }
  EXPECT_EQ(CoresOfQuota(-1, 100'000), std::nullopt);
}

}  // namespace
}  // namespace baton
