#include "common/http/connection_table.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "common/base/random.h"

namespace baton {
namespace {

using Verdict = ConnectionTable::Verdict;

TEST(ConnectionTableTest, TheOldestIdleConnectionGivesWay) {
  ConnectionTable table({.total = 3});
  for (const uint64_t id : {1, 2, 3}) EXPECT_EQ(table.Add(id, "a").verdict, Verdict::kAdmitted);
  table.Waiting(1);  // It was used since, so 2 is the oldest.
  const auto fourth = table.Add(4, "a");
  EXPECT_EQ(fourth.verdict, Verdict::kAdmitted);
  EXPECT_EQ(fourth.evicted, 2u);
  EXPECT_EQ(table.size(), 3u);
  EXPECT_FALSE(table.BeginServing(2)) << "an evicted connection's request must not be served";
  EXPECT_TRUE(table.BeginServing(3));
}

TEST(ConnectionTableTest, AFloodTakesRoomFromItsOwnAddress) {
  ConnectionTable table({.total = 100});
  EXPECT_FALSE(table.Add(1, "good").evicted.has_value());  // The oldest of all.
  for (uint64_t id = 2; id < 10'000; ++id) {
    const auto admission = table.Add(id, "flood");
    EXPECT_EQ(admission.verdict, Verdict::kAdmitted);
    ASSERT_NE(admission.evicted, 1u);
  }
  EXPECT_TRUE(table.BeginServing(1));
  EXPECT_EQ(table.size(), 100u);
}

TEST(ConnectionTableTest, WhatIsServedIsNeverEvicted) {
  ConnectionTable table({.total = 2});
  table.Add(1, "a");
  table.Add(2, "a");
  EXPECT_TRUE(table.BeginServing(1));
  EXPECT_EQ(table.Add(3, "b").evicted, 2u);
  EXPECT_TRUE(table.BeginServing(3));
  const auto fourth = table.Add(4, "a");
  EXPECT_EQ(fourth.verdict, Verdict::kRefused);
  EXPECT_FALSE(fourth.evicted.has_value());
  table.Waiting(1);
  EXPECT_EQ(table.Add(5, "c").evicted, 1u);
}

TEST(ConnectionTableTest, AnAddressHasItsOwnLimit) {
  ConnectionTable table({.total = 100, .per_address = 2});
  table.Add(1, "a");
  table.Add(2, "a");
  EXPECT_EQ(table.Add(3, "a").evicted, 1u);
  EXPECT_TRUE(table.BeginServing(2));
  EXPECT_TRUE(table.BeginServing(3));
  EXPECT_EQ(table.Add(4, "a").verdict, Verdict::kRefused);
  EXPECT_EQ(table.Add(5, "b").verdict, Verdict::kAdmitted);
  table.Remove(2);
  EXPECT_EQ(table.Add(6, "a").verdict, Verdict::kAdmitted);
}

TEST(ConnectionTableTest, ProbesHaveAReserveWhenEverythingServes) {
  ConnectionTable table({.total = 1, .reserved = 2});
  table.Add(1, "a");
  EXPECT_TRUE(table.BeginServing(1));
  EXPECT_EQ(table.Add(2, "a").verdict, Verdict::kReserved);
  EXPECT_EQ(table.Add(3, "b").verdict, Verdict::kReserved);
  const auto fourth = table.Add(4, "b");  // The reserve's own oldest gives way.
  EXPECT_EQ(fourth.verdict, Verdict::kReserved);
  EXPECT_EQ(fourth.evicted, 2u);
  EXPECT_TRUE(table.BeginServing(3));
  EXPECT_TRUE(table.BeginServing(4));
  EXPECT_EQ(table.Add(5, "b").verdict, Verdict::kRefused);
  table.Remove(3);
  EXPECT_EQ(table.Add(6, "b").verdict, Verdict::kReserved);
  // A reserved connection is no room for others.
  table.Remove(1);
  EXPECT_EQ(table.Add(7, "c").verdict, Verdict::kAdmitted);
}

// Random lives against a model that is too simple to be wrong.
TEST(ConnectionTableTest, LimitsHoldInAnyOrder) {
  Random random(7);
  const ConnectionTable::Limits limits{.total = 20, .per_address = 9, .reserved = 3};
  ConnectionTable table(limits);
  struct Live {
    std::string address;
    bool serving = false;
    bool reserved = false;
  };
  std::map<uint64_t, Live> live;
  uint64_t next = 1;
  for (int step = 0; step < 5'000; ++step) {
    if (live.empty() || random.Chance(0.5)) {
      const std::string address(1, static_cast<char>('a' + random.Below(4)));
      const auto admission = table.Add(next, address);
      if (admission.evicted.has_value()) {
        ASSERT_FALSE(live.at(*admission.evicted).serving);
        live.erase(*admission.evicted);
      }
      if (admission.verdict != Verdict::kRefused) {
        live[next] = {address, false, admission.verdict == Verdict::kReserved};
      }
      ++next;
    } else {
      const auto chosen = std::next(live.begin(), static_cast<int64_t>(random.Below(live.size())));
      const uint64_t what = random.Below(3);
      if (what == 0) {
        ASSERT_TRUE(table.BeginServing(chosen->first));
        chosen->second.serving = true;
      } else if (what == 1) {
        table.Waiting(chosen->first);
        chosen->second.serving = false;
      } else {
        table.Remove(chosen->first);
        live.erase(chosen);
      }
    }
    std::map<std::string, size_t> open;
    size_t reserved = 0;
    for (const auto& [id, one] : live) ++(one.reserved ? reserved : open[one.address]);
    ASSERT_EQ(table.size(), live.size());
    ASSERT_LE(reserved, limits.reserved);
    ASSERT_LE(live.size() - reserved, limits.total);
    for (const auto& [address, count] : open) ASSERT_LE(count, limits.per_address);
  }
}

}  // namespace
}  // namespace baton
