// Prompts that begin alike share KV.
#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "services/prefill/core/planner_fixture.h"

namespace baton::prefill {
namespace {

using Ids = std::vector<int32_t>;

class CacheTest : public PlannerTest {
 protected:
  static PlannerLimits Caching() {
    PlannerLimits limits = Limits();
    limits.caches = true;
    limits.decodes = true;
    return limits;
  }
  CacheTest() : PlannerTest(Caching()) {}

  static Ids Prompt(int tokens, int first = 0) {
    Ids ids(static_cast<size_t>(tokens));
    std::iota(ids.begin(), ids.end(), first);
    return ids;
  }
  void Start(uint64_t attempt, const Ids& ids, const std::string& salt = "",
             bool prompt_logprobs = false) {
    StartRequested start{attempt, static_cast<int>(ids.size()),
                         TicketFor(static_cast<int>(ids.size()))};
    start.tokens = std::make_shared<const Ids>(ids);
    start.cache_salt = salt;
    start.prompt_logprobs = prompt_logprobs;
    Send(start);
  }
  // What is under way is computed and handed over.
  void RunOut(uint64_t attempt) {
    for (; done_ < plans_.size(); ++done_) Done(0, done_ + 1);
    Closed(0, attempt);
  }
  const PlanOpen& LastOpen() const {
    const auto plan = std::find_if(plans_.rbegin(), plans_.rend(),
                                   [](const Plan& p) { return !p.opens.empty(); });
    return plan->opens.back();
  }

  size_t done_ = 0;
};

TEST_F(CacheTest, APromptBeginsBehindWhatIsCached) {
  Up(1);
  Start(1, Prompt(50));
  RunOut(1);
  EXPECT_EQ(planner_->load().cached_pages, 3);
  EXPECT_EQ(planner_->load().owned_pages, 0);
  const std::vector<int> first_pages = plans_[0].opens[0].pages;

  Start(2, Prompt(60));
  EXPECT_EQ(LastOpen().cached_tokens, 48);
  EXPECT_EQ(std::vector<int>(LastOpen().pages.begin(), LastOpen().pages.begin() + 3),
            std::vector<int>(first_pages.begin(), first_pages.begin() + 3));
  EXPECT_EQ(plans_.back().items.at(0).token_begin, 48);
  EXPECT_EQ(plans_.back().items[0].token_count, 12);
  EXPECT_TRUE(plans_.back().items[0].final);
  RunOut(2);
  EXPECT_EQ(finished_.at(1).outcome.cached_tokens, 48);
}

TEST_F(CacheTest, TheLastTokenIsAlwaysComputed) {
  Up(1);
  Start(1, Prompt(48));
  RunOut(1);
  Start(2, Prompt(48));
  EXPECT_EQ(LastOpen().cached_tokens, 32);
}

TEST_F(CacheTest, PromptsThatArriveTogetherShareFromTheNextPlanOn) {
  Up(1);
  Start(1, Prompt(64));
  Start(2, Prompt(64));  // In the second plan, before the first is done.
  ASSERT_EQ(plans_.size(), 2u);
  EXPECT_EQ(LastOpen().attempt_id, 2u);
  EXPECT_EQ(LastOpen().cached_tokens, 48);
}

TEST_F(CacheTest, SaltsAndPromptsThatAreToldWholeDoNotShare) {
  Up(1);
  Start(1, Prompt(40));
  RunOut(1);
  Start(2, Prompt(40), "salt");
  EXPECT_EQ(LastOpen().cached_tokens, 0);
  RunOut(2);
  Start(3, Prompt(40), "salt");
  EXPECT_EQ(LastOpen().cached_tokens, 32);
  RunOut(3);
  Start(4, Prompt(40), "", /*prompt_logprobs=*/true);
  EXPECT_EQ(LastOpen().cached_tokens, 0);
}

TEST_F(CacheTest, GivesUpWhatWasUnusedTheLongest) {
  Up(1, 8);
  Start(1, Prompt(48));  // 3 pages.
  RunOut(1);
  Start(2, Prompt(48, 1000));  // 3 others.
  RunOut(2);
  EXPECT_EQ(planner_->load().cached_pages, 6);
  Start(3, Prompt(64, 2000));  // 4: two are free.
  EXPECT_EQ(planner_->load().evicted_pages_total, 2u);
  RunOut(3);
  Start(4, Prompt(48, 1000));
  EXPECT_EQ(LastOpen().cached_tokens, 32) << "the younger one stays";
}

TEST_F(CacheTest, WhatIsInUseStays) {
  Up(1, 8);
  Start(1, Prompt(64));
  Start(2, Prompt(80, 1000));  // 5 pages of 4 free ones.
  EXPECT_EQ(planner_->load().queued, 1);
  RunOut(1);
  EXPECT_EQ(planner_->load().queued, 0);
  EXPECT_EQ(planner_->load().evicted_pages_total, 1u);
}

TEST_F(CacheTest, AMatchMakesRoom) {
  Up(1, 8);
  Start(1, Prompt(96));      // 6 pages.
  Start(2, Prompt(100, 0));  // 7 pages, 6 of them shared.
  ASSERT_EQ(plans_.size(), 2u) << "the rest of the first prompt";
  Done(0, 1);
  done_ = 1;
  ASSERT_EQ(plans_.size(), 3u);
  EXPECT_EQ(LastOpen().attempt_id, 2u);
  EXPECT_EQ(LastOpen().cached_tokens, 96);
}

TEST_F(CacheTest, AFlushKeepsWhatIsInUse) {
  Up(1);
  Start(1, Prompt(48));
  RunOut(1);
  Start(2, Prompt(48, 1000));
  Send(FlushCache{});
  EXPECT_EQ(planner_->load().cached_pages, 3);
  RunOut(2);
  Send(FlushCache{});
  EXPECT_EQ(planner_->load().cached_pages, 0);
  Start(3, Prompt(48));
  EXPECT_EQ(LastOpen().cached_tokens, 0);
}

TEST_F(CacheTest, WhatTheChainHasDecodedIsKept) {
  Up(1);
  StartRequested start{1, 20};
  start.tokens = std::make_shared<const Ids>(Prompt(20));
  start.stop.max_tokens = 20;
  Send(start);
  for (; finished_.empty(); ++done_) {
    const Plan plan = plans_.at(done_);
    Send(StagePlanDone{0, kEpoch, {plan.number, 10, 1, {}, {{1, SampledToken{7}}}}});
  }
  RunOut(1);
  EXPECT_EQ(planner_->load().cached_pages, 2);  // 20 + 19 tokens were fed.
  Ids next = Prompt(20);
  next.resize(40, 7);
  Start(2, next);
  EXPECT_EQ(LastOpen().cached_tokens, 32);
  EXPECT_TRUE(planner_->CheckInvariants().ok());
}

TEST_F(CacheTest, AnAbortedPromptLeavesWhatWasComputed) {
  Up(1);
  Start(1, Prompt(200));
  Send(AbortRequested{1, absl::CancelledError("client")});
  Done(0, 1);
  done_ = 1;
  RunOut(1);
  EXPECT_EQ(planner_->load().owned_pages, 0);
  Start(2, Prompt(200));
  EXPECT_EQ(LastOpen().cached_tokens, 128) << "two plans of it were issued";
}

TEST_F(CacheTest, TheCacheEndsWithTheEpoch) {
  Up(1);
  Start(1, Prompt(48));
  RunOut(1);
  Send(ChainDown{absl::UnavailableError("gone")});
  Send(ChainUp{kEpoch + 1, 1, 64});
  Start(2, Prompt(48));
  EXPECT_EQ(LastOpen().cached_tokens, 0);
}

TEST_F(CacheTest, IsOffByDefault) {
  Make(Limits());
  Up(1);
  Start(1, Prompt(48));
  RunOut(1);
  EXPECT_EQ(planner_->load().cached_pages, 0);
  Start(2, Prompt(48));
  EXPECT_EQ(LastOpen().cached_tokens, 0);
}

// Behind a cached prefix a page costs more than one of the plan's budget, and a shorter prompt has
// taken its share: the oldest is opened with a page all the same.
TEST_F(CacheTest, WhatIsOpenedHasAChunkWhateverItsPrefixCosts) {
  PlannerLimits limits = Caching();
  limits.chunk_rule = ChunkRule::kOptimal;
  limits.chunk_tokens = 32;
  Make(limits);
  ChainUp up{kEpoch, 1, 64};
  const StageCost cost = {.overhead_us = 1, .prefix_us = 100, .token_us = 1};
  up.known_costs = {{cost, 0.1}};
  Send(up);
  const auto run = [&] {
    const Plan plan = plans_.at(done_++);
    PlanWork work;
    for (const PlanItem& item : plan.items) work.Add(item.token_begin, item.token_count);
    Send(StagePlanDone{0, kEpoch, {plan.number, static_cast<int64_t>(cost.Micros(work)), 1}});
  };
  Start(1, Prompt(160));
  while (done_ < plans_.size()) run();
  Closed(0, 1);
  Start(2, Prompt(16, 1000));
  Start(3, Prompt(16, 2000));
  Start(4, Prompt(400));
  Ids shorter = Prompt(64);
  shorter.resize(90, 5000);
  Start(5, shorter);
  const size_t before = plans_.size();
  while (plans_.size() == before) run();
  const Plan& plan = plans_.at(before);
  ASSERT_FALSE(plan.opens.empty());
  for (const PlanOpen& open : plan.opens) {
    EXPECT_TRUE(std::any_of(plan.items.begin(), plan.items.end(), [&](const PlanItem& item) {
      return item.attempt_id == open.attempt_id;
    })) << open.attempt_id;
  }
}

}  // namespace
}  // namespace baton::prefill
