#include "services/router/core/fair_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "common/base/random.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;

class FairQueueTest : public ::testing::Test {
 protected:
  // A request that comes and waits.
  void Add(const std::string& tenant, int64_t head_start_us = 0) {
    const Turn turn = {-head_start_us, ++calls_};
    queue_.Come(tenant);
    queue_.Add(tenant, turn, calls_);
    requests_[calls_] = {tenant, turn};
  }
  // The first one is served, and stays.
  uint64_t Serve(int64_t work) {
    const uint64_t call = *queue_.Next();
    const auto& [tenant, turn] = requests_.at(call);
    queue_.Remove(tenant, turn);
    queue_.Begin(tenant, work);
    queue_.Through(tenant, work, 0);
    return call;
  }
  void End(uint64_t call) {
    queue_.Go(requests_.at(call).first);
    requests_.erase(call);
  }
  std::string TenantOf(uint64_t call) const { return requests_.at(call).first; }
  std::vector<uint64_t> ServeAll(int64_t work) {
    std::vector<uint64_t> served;
    while (!queue_.empty()) served.push_back(Serve(work));
    return served;
  }

  FairQueue queue_;
  uint64_t calls_ = 0;
  std::map<uint64_t, std::pair<std::string, Turn>> requests_;
};

TEST_F(FairQueueTest, ATenantAloneIsServedInTurn) {
  Add("a");
  Add("a");
  Add("a", /*head_start_us=*/10);
  EXPECT_THAT(queue_.All(), ElementsAre(3, 1, 2));
  EXPECT_THAT(ServeAll(100), ElementsAre(3, 1, 2));
}

TEST_F(FairQueueTest, TenantsTakeTurnsHoweverManyOneSends) {
  for (int i = 0; i < 4; ++i) Add("flood");
  Add("quiet");
  Add("quiet");
  EXPECT_THAT(ServeAll(100), ElementsAre(1, 5, 2, 6, 3, 4));
}

TEST_F(FairQueueTest, SharesAreOfWorkNotOfRequests) {
  for (int i = 0; i < 4; ++i) Add("short");  // 1 to 4.
  Add("long");
  Add("long");
  const std::array<int64_t, 6> work = {300, 100, 100, 100, 300, 100};
  std::vector<uint64_t> served;
  served.reserve(work.size());
  for (const int64_t of : work) served.push_back(Serve(of));
  EXPECT_THAT(served, ElementsAre(5, 1, 2, 3, 6, 4));
}

TEST_F(FairQueueTest, WorkThatWasNotServedIsGivenBack) {
  Add("a");
  Add("b");
  Add("a");
  Add("b");
  EXPECT_EQ(Serve(100), 1u);
  EXPECT_EQ(Serve(50), 2u);
  queue_.Begin("a", 0);
  queue_.Through("a", 0, -90);  // Most of it was cached.
  EXPECT_EQ(Serve(100), 3u);
}

TEST_F(FairQueueTest, ANewTenantHasSavedNothingUp) {
  for (int i = 0; i < 100; ++i) {
    Add("busy");
    End(Serve(1'000));
  }
  for (int i = 0; i < 4; ++i) Add("busy");
  for (int i = 0; i < 4; ++i) Add("new");
  std::string order;
  while (!queue_.empty()) order += TenantOf(Serve(1'000))[0];
  EXPECT_EQ(order, "nbnbnbnb");
}

// Whether or not one of a flood is given up.
TEST_F(FairQueueTest, ANewTenantBeginsBehindAsMuchAsIsComputed) {
  for (const bool dropped : {false, true}) {
    queue_ = FairQueue();
    for (int i = 0; i < 40; ++i) {
      queue_.Come("flood");
      queue_.Begin("flood", 300);
    }
    if (dropped) queue_.Drop("flood");
    for (int i = 0; i < 3; ++i) queue_.Through("flood", 300, 0);
    queue_.Come("new");
    EXPECT_EQ(queue_.Begin("new", 300), 900);
  }
}

TEST_F(FairQueueTest, WhoAskedForLessThanItsShareIsServedAtOnce) {
  constexpr int64_t kWork = 1'024;
  const auto order_after = [this](int served_before) {
    queue_ = FairQueue();
    Add("quiet");
    End(Serve(kWork));
    for (int i = 0; i < served_before; ++i) {
      Add("busy");
      End(Serve(kWork));
    }
    for (int i = 0; i < 4; ++i) Add("busy");
    for (int i = 0; i < 40; ++i) Add("quiet");
    std::string order;
    while (!queue_.empty()) order += TenantOf(Serve(kWork))[0];
    return order.substr(0, order.find('b'));
  };
  EXPECT_EQ(order_after(4), "qqqq");
  const size_t most = order_after(1'000).size();
  EXPECT_GE(most * kWork, FairQueue::kMostSaved);
  EXPECT_LE(most * kWork, FairQueue::kMostSaved + 2 * kWork) << "what is saved up is bounded";
}

// Each new tenant begins at the average, which grows with what they are served.
TEST_F(FairQueueTest, NewTenantsDoNotKeepOneWaitingForEver) {
  Add("old");
  Serve(1'000);
  Add("old");
  int overtaken = 0;
  for (;; ++overtaken) {
    ASSERT_LT(overtaken, 100);
    Add("new" + std::to_string(overtaken));
    const uint64_t call = Serve(100);
    if (TenantOf(call) == "old") break;
    End(call);
  }
  EXPECT_GT(overtaken, 0);
}

TEST_F(FairQueueTest, CountsThoseThatWouldBeServedBefore) {
  for (int i = 0; i < 5; ++i) Add("flood");
  Add("quiet");
  EXPECT_EQ(queue_.CountAhead("flood"), 6u);
  EXPECT_EQ(queue_.CountAhead("quiet"), 1u + 2u);
  EXPECT_EQ(queue_.CountAhead("new"), 1u + 1u);
}

TEST_F(FairQueueTest, TheLongestQueueGivesUpItsLastPlaceToAShorterOne) {
  EXPECT_EQ(queue_.GivesWayTo("a"), std::nullopt);
  Add("a");
  EXPECT_EQ(queue_.GivesWayTo("b"), std::nullopt) << "one for one is no gain";
  Add("a");
  EXPECT_EQ(queue_.GivesWayTo("b"), 2u);
  EXPECT_EQ(queue_.GivesWayTo("a"), std::nullopt);
  Add("b");
  EXPECT_EQ(queue_.GivesWayTo("b"), std::nullopt);
}

TEST_F(FairQueueTest, OfTenantsThatAreGoneABoundedNumberIsRemembered) {
  for (size_t i = 0; i < 2 * FairQueue::kMostTenants; ++i) {
    Add("t" + std::to_string(i));
    End(Serve(1));
  }
  EXPECT_LE(queue_.remembered(), FairQueue::kMostTenants + 1);
}

// Tenants that always wait differ by no more than two requests' work, whatever the others do.
TEST_F(FairQueueTest, BusyTenantsAreServedAlike) {
  constexpr int64_t kMost = 1'000;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    queue_ = FairQueue();
    requests_.clear();
    Random random(seed);
    const auto keep = [&](const std::string& tenant, size_t count) {
      while (queue_.CountOf(tenant) < count) Add(tenant);
    };
    std::map<std::string, int64_t> served;
    for (int i = 0; i < 2'000; ++i) {
      keep("one", 1);
      keep("many", 10);
      if (random.Below(3) == 0) Add("t" + std::to_string(random.Below(5)));
      const int64_t work = 1 + static_cast<int64_t>(random.Below(kMost));
      const uint64_t call = Serve(work);
      served[TenantOf(call)] += work;
      if (random.Below(2) == 0) End(call);
      ASSERT_LE(std::abs(served["one"] - served["many"]), 2 * kMost) << "seed " << seed;
    }
    for (int i = 0; i < 5; ++i) {
      EXPECT_LE(served["t" + std::to_string(i)], served["one"] + 2 * kMost) << "seed " << seed;
    }
  }
}

// ---- FairTurns ----

const InstanceRef kChain = {"c0-0", 1};
const InstanceRef kOther = {"c1-0", 1};

// The head start at 9,000 us of a prompt that goes before one of `from_us`.
int64_t Before(int64_t from_us) { return 9'000 - from_us + FairTurns::kUncertainUs; }

TEST(FairTurnsTest, APromptGoesBeforeThoseOfOthersWhoseTagsAreLarger) {
  FairTurns turns;
  EXPECT_EQ(turns.Give(kChain, 1, "flood", 0, 1'000), 0);
  EXPECT_EQ(turns.Give(kChain, 2, "flood", 100, 2'000), 0);
  EXPECT_EQ(turns.Give(kChain, 3, "flood", 200, 3'000), 0);
  EXPECT_EQ(turns.Give(kOther, 4, "flood", 300, 3'000), 0);
  EXPECT_EQ(turns.Give(kChain, 5, "quiet", 50, 9'000), Before(2'000));
  EXPECT_EQ(turns.Give(kChain, 6, "quiet", 150, 9'000), Before(3'000));
  EXPECT_EQ(turns.Give(kChain, 7, "quiet", 250, 9'000), 0);
}

TEST(FairTurnsTest, OfOneTenantNoneGoesBeforeAnother) {
  FairTurns turns;
  turns.Give(kChain, 1, "a", 100, 1'000);
  EXPECT_EQ(turns.Give(kChain, 2, "a", 50, 2'000), 0) << "what was cached gave it a smaller tag";
}

TEST(FairTurnsTest, WhatIsComputedHasNoPlaceAnyMore) {
  FairTurns turns;
  turns.Give(kChain, 1, "flood", 100, 1'000);
  turns.Give(kChain, 2, "flood", 200, 2'000);
  turns.Through(kChain, 1);
  turns.Through(kChain, 1);
  turns.Through(kOther, 2);
  EXPECT_EQ(turns.Give(kChain, 3, "quiet", 50, 9'000), Before(2'000));
  turns.Through(kChain, 2);
  turns.Through(kChain, 3);
  EXPECT_TRUE(turns.empty());
}

}  // namespace
}  // namespace baton::router
