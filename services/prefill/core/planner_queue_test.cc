// In which order waiting prompts are admitted.
#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "common/types/turn.h"
#include "services/prefill/core/planner_fixture.h"

namespace baton::prefill {
namespace {

class QueueTest : public PlannerTest {
 protected:
  // One prompt at a time is in the chain.
  void UpWith(QueueOrder order) {
    PlannerLimits limits = Limits();
    limits.max_open_requests = 1;
    limits.shares_plans = false;
    limits.caches = true;
    limits.queue_order = order;
    Make(limits);
    Up(1);
  }
  void Start(uint64_t attempt, int priority = 0, int max_tokens = 10, int32_t first_token = 0) {
    StartRequested start{attempt, 40, TicketFor(40)};
    auto ids = std::make_shared<std::vector<int32_t>>(40);
    std::iota(ids->begin(), ids->end(), first_token + 1000 * static_cast<int32_t>(attempt));
    if (first_token > 0) std::iota(ids->begin(), ids->end(), first_token);
    start.tokens = std::move(ids);
    start.priority = priority;
    start.stop.max_tokens = max_tokens;
    Send(start);
  }
  // Computes everything; returns the order in which prompts were opened from now on.
  std::vector<uint64_t> RunOut() {
    std::vector<uint64_t> opened;
    while (planner_->load().open > 0) {
      const Plan plan = plans_.at(done_);
      if (done_ > 0) opened.push_back(plan.opens.at(0).attempt_id);
      Done(0, ++done_);
      Closed(0, plan.items.at(0).attempt_id);
    }
    return opened;
  }

  size_t done_ = 0;
};

using Order = std::vector<uint64_t>;

TEST_F(QueueTest, FirstComeFirstServed) {
  UpWith(QueueOrder::kArrival);
  for (uint64_t attempt = 1; attempt <= 4; ++attempt) Start(attempt);
  EXPECT_EQ(RunOut(), (Order{2, 3, 4}));
}

TEST_F(QueueTest, APriorityIsAHeadStart) {
  UpWith(QueueOrder::kArrival);
  Start(1);
  Start(2, -1);
  Start(3);
  Start(4, 5);
  EXPECT_EQ(RunOut(), (Order{4, 3, 2}));
}

TEST_F(QueueTest, WhatHasWaitedForTheHeadStartIsNotOvertaken) {
  UpWith(QueueOrder::kArrival);
  Start(1);
  Start(2);
  now_us_ += kPriorityStepUs - 1;
  Start(3, 1);
  now_us_ += 2;
  Start(4, 1);
  EXPECT_EQ(RunOut(), (Order{3, 2, 4}));
}

TEST_F(QueueTest, LongOutputsFirst) {
  UpWith(QueueOrder::kLongestOutput);
  Start(1);
  Start(2, 0, 20);
  Start(3, 0, 50);
  Start(4, 0, 30);
  EXPECT_EQ(RunOut(), (Order{3, 4, 2}));
}

TEST_F(QueueTest, LongPrefixesFirst) {
  UpWith(QueueOrder::kLongestPrefix);
  Start(1, 0, 10, 500);  // Its pages are in the cache from its plan on.
  Start(2);
  Start(3, 0, 10, 500);
  EXPECT_EQ(RunOut(), (Order{3, 2}));
}

TEST_F(QueueTest, ARandomOrderIsAnOrder) {
  UpWith(QueueOrder::kRandom);
  for (uint64_t attempt = 1; attempt <= 8; ++attempt) Start(attempt);
  const Order order = RunOut();
  EXPECT_EQ(std::set<uint64_t>(order.begin(), order.end()).size(), 7u);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
}

}  // namespace
}  // namespace baton::prefill
