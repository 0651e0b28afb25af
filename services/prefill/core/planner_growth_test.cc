// Pages that a request takes while the chain decodes it, and what gives way to them.
#include <string>
#include <utility>
#include <vector>

#include "services/prefill/core/planner_fixture.h"

namespace baton::prefill {
namespace {

class GrowthTest : public DecodingTest {
 protected:
  static PlannerLimits Growing() {
    PlannerLimits limits = Decoding();
    limits.reserved_decode_tokens = 1;
    return limits;
  }
  GrowthTest() : DecodingTest(Growing()) {}

  // The chain of one stage is done with all plans but those of `before`, and has drawn `token`.
  void DrawAll(int32_t token = 41) {
    while (done_ < plans_.size()) {
      const Plan plan = plans_[done_++];
      Drawn(0, plan, token);
    }
  }
  // One plan further.
  void Step(int32_t token = 41) {
    ASSERT_LT(done_, plans_.size());
    const Plan plan = plans_[done_++];
    Drawn(0, plan, token);
  }
  // Two requests of a page each that need another one for the token after the next; a pool of three
  // pages. Returns when the first has it and the second gives way.
  void UpUntilTheSecondGivesWay() {
    Up(1, 3);
    Generate(1, 15, 30);
    Generate(2, 15, 30);
    while (plans_.empty() || plans_.back().aborts.empty()) {
      ASSERT_LT(plans_.size(), 20u);
      Step();
    }
  }
  uint64_t retractions() const { return planner_->load().retractions_total; }
  static std::vector<int> NewPages(const std::vector<Plan>& plans) {
    std::vector<int> pages;
    for (const Plan& plan : plans) {
      for (const PlanItem& item : plan.items) {
        if (item.new_page >= 0) pages.push_back(item.new_page);
      }
    }
    return pages;
  }

  size_t done_ = 0;  // Plans.
};

TEST_F(GrowthTest, TakesAPageWhenARowNeedsIt) {
  Up(1);
  Generate(1, 15, 34);  // 49 tokens.
  EXPECT_EQ(plans_.at(0).opens.at(0).pages.size(), 1u);
  EXPECT_EQ(planner_->load().owned_pages, 1);
  while (finished_.empty()) Step();
  EXPECT_EQ(NewPages(plans_).size(), 2u);  // For the tokens 17 to 48; the last one is not fed.
  EXPECT_EQ(planner_->load().owned_pages, 3);
  DrawAll();
  Closed(0, 1);
  EXPECT_EQ(planner_->load().owned_pages, 0);
}

TEST_F(GrowthTest, ReservesWhatItIsToldTo) {
  PlannerLimits limits = Growing();
  limits.reserved_decode_tokens = 18;
  Make(limits);
  Up(1);
  Generate(1, 15, 34);
  EXPECT_EQ(planner_->load().owned_pages, 3);
  Generate(2, 15, 2);
  Step();
  EXPECT_EQ(planner_->load().owned_pages, 5) << "no more than it may generate";
}

TEST_F(GrowthTest, WhatNeverFitsIsRefusedAtOnce) {
  Up(1, 3);
  Generate(1, 15, 34);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(finished_[0].status)) << finished_[0].status;
}

TEST_F(GrowthTest, TheYoungestGivesWayAndGoesOnLater) {
  UpUntilTheSecondGivesWay();
  const Plan closing = plans_.back();
  EXPECT_EQ(closing.aborts, std::vector<uint64_t>{2});
  EXPECT_EQ(retractions(), 1u);
  EXPECT_TRUE(finished_.empty());
  DrawAll();  // The first one's rows go on, and wait for nothing.
  EXPECT_EQ(planner_->load().queued, 0) << "its pages are not free before it is closed";
  Closed(0, 2);
  EXPECT_EQ(planner_->load().queued, 1);
  while (finished_.empty()) Step();
  EXPECT_EQ(finished_[0].attempt_id, 1u);
  EXPECT_EQ(retractions(), 1u) << "it came back too early";
  DrawAll();
  Closed(0, 1);
  const Plan& again = plans_.back();
  ASSERT_EQ(again.opens.size(), 1u);
  EXPECT_EQ(again.opens[0].attempt_id, 2u);
  EXPECT_EQ(again.opens[0].prompt_tokens(), 15);
  const std::vector<int32_t> text = again.opens[0].drawn;
  EXPECT_EQ(text, std::vector<int32_t>(2, 41));
  ASSERT_EQ(again.items.size(), 1u);
  EXPECT_EQ(again.items[0].token_begin, 0);
  EXPECT_EQ(again.items[0].token_count, 17);
  EXPECT_TRUE(again.items[0].draws);
  Step(42);
  ASSERT_EQ(All<DeliverToken>().size(), 1u);
  EXPECT_TRUE(All<PromptDone>().empty()) << "told already";
  EXPECT_EQ(plans_.back().items.at(0).token_begin, 17);
  EXPECT_EQ(plans_.back().items[0].token, 42);
  while (finished_.size() < 2) Step();
  EXPECT_TRUE(finished_[1].status.ok()) << finished_[1].status;
}

TEST_F(GrowthTest, ATokenInFlightCountsAndMayBeTheLast) {
  Up(1, 3);
  Generate(1, 15, 30);
  Generate(2, 15, 2);
  while (plans_.back().aborts.empty()) Step();
  ASSERT_EQ(plans_.back().aborts, std::vector<uint64_t>{2}) << "ended, not retracted";
  EXPECT_EQ(retractions(), 0u);
  EXPECT_EQ(finished_.size(), 1u);
}

TEST_F(GrowthTest, NothingIsAdmittedWhileARowWaitsForAPage) {
  UpUntilTheSecondGivesWay();
  Generate(3, 10, 3);
  DrawAll();
  for (const Plan& plan : plans_) {
    for (const PlanOpen& open : plan.opens) EXPECT_NE(open.attempt_id, 3u);
  }
  EXPECT_EQ(planner_->load().queued, 1);
}

TEST_F(GrowthTest, AnAbortMeetsARequestThatGivesWay) {
  UpUntilTheSecondGivesWay();
  Send(AbortRequested{2, absl::CancelledError("client")});
  ASSERT_EQ(finished_.size(), 1u);
  DrawAll();
  Closed(0, 2);
  EXPECT_EQ(planner_->load().queued, 0);
  EXPECT_EQ(planner_->load().open, 1);
  const auto closings = std::count_if(plans_.begin(), plans_.end(), [](const Plan& plan) {
    return plan.aborts == std::vector<uint64_t>{2};
  });
  EXPECT_EQ(closings, 1);
}

TEST_F(GrowthTest, AnAbortMeetsARequestThatWaitsAgain) {
  UpUntilTheSecondGivesWay();
  DrawAll();
  Closed(0, 2);
  Send(AbortRequested{2, absl::CancelledError("client")});
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(planner_->load().queued, 0);
}

TEST_F(GrowthTest, AStageThatDoesNotCloseWhatGivesWayEndsTheEpoch) {
  UpUntilTheSecondGivesWay();
  DrawAll();
  now_us_ += 16'000'000;
  Send(Tick{});
  EXPECT_EQ(All<FailChain>().size(), 1u);
}

// A prompt that is read in several plans gives way before its first token.
TEST_F(GrowthTest, APromptThatGivesWayIsReadAgainWhole) {
  Up(1, 9);
  Generate(1, 15, 30);
  Generate(2, 120, 5, /*prompt_logprobs=*/true);
  while (plans_.back().aborts.empty()) {
    ASSERT_LT(plans_.size(), 20u);
    const Plan plan = plans_[done_++];
    PlanDone done{plan.number, 10, 1, {}, {}};
    for (const PlanItem& item : plan.items) {
      if (item.draws) done.drawn.push_back({item.attempt_id, SampledToken{41}});
      if (item.attempt_id != 2) continue;
      PromptTokens told{2, item.token_begin + 1, {}};
      const int end = item.token_begin + item.token_count + (item.draws ? 0 : 1);
      for (int i = told.first; i < end; ++i) told.tokens.push_back(SampledToken{i});
      done.prompt_tokens.push_back(told);
    }
    Send(StagePlanDone{0, kEpoch, done});
  }
  ASSERT_EQ(plans_.back().aborts, std::vector<uint64_t>{2});
  Send(AbortRequested{1, absl::CancelledError("client")});
  DrawAll();
  Closed(0, 2);
  Closed(0, 1);
  ASSERT_EQ(planner_->load().open, 1);
  const auto again = std::find_if(plans_.rbegin(), plans_.rend(),
                                  [](const Plan& plan) { return !plan.opens.empty(); });
  EXPECT_EQ(again->opens[0].attempt_id, 2u);
  EXPECT_TRUE(again->opens[0].drawn.empty());
  EXPECT_EQ(again->items.at(0).token_begin, 0);
}

// With the cache it finds its own pages again.
TEST_F(GrowthTest, FindsWhatItHadComputed) {
  PlannerLimits limits = Growing();
  limits.caches = true;
  Make(limits);
  Up(1, 5);
  for (uint64_t attempt = 1; attempt <= 2; ++attempt) {
    StartRequested start{attempt, 30};
    start.stop = {.max_tokens = 30};
    start.tokens = std::make_shared<std::vector<int32_t>>(30, static_cast<int32_t>(attempt));
    Send(start);
  }
  while (plans_.back().aborts.empty()) {
    ASSERT_LT(plans_.size(), 30u);
    Step();
  }
  DrawAll();
  Closed(0, 2);
  Send(AbortRequested{1, absl::CancelledError("client")});
  DrawAll();
  Closed(0, 1);
  const PlanOpen& again = plans_.back().opens.at(0);
  EXPECT_EQ(again.attempt_id, 2u);
  EXPECT_GE(again.cached_tokens, 16);
  EXPECT_EQ(plans_.back().items.at(0).token_begin, again.cached_tokens);
}

}  // namespace
}  // namespace baton::prefill
