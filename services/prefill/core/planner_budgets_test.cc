// What bounds a plan and the requests that are open beside one another: budgets of tokens, slots,
// and pages for texts that grow; and the guards between decode steps and prompts.
#include <climits>
#include <cstdint>
#include <vector>

#include "services/prefill/core/planner_fixture.h"

namespace baton::prefill {
namespace {

int TokensOf(const Plan& plan, uint64_t attempt) {
  for (const PlanItem& item : plan.items) {
    if (item.attempt_id == attempt) return item.token_count;
  }
  return 0;
}

class BudgetsTest : public DecodingTest {
 protected:
  // Ends the last plan of a chain of one stage; what draws is given token 41.
  void Next() { Drawn(0, plans_.back(), 41); }
};

// ---- Tokens ----

TEST_F(BudgetsTest, RowsLeaveAPageToPrompts) {
  PlannerLimits limits = Decoding();
  limits.chunk_tokens = kPageSize;
  Make(limits);
  Up(1);
  for (uint64_t attempt = 1; attempt <= 2; ++attempt) Generate(attempt, 16, 30);
  Next();
  Next();
  Start(3, 200);
  Next();
  EXPECT_EQ(Rows(plans_.back()).size(), 2u);
  EXPECT_EQ(TokensOf(plans_.back(), 3), kPageSize);
  EXPECT_LE(plans_.back().TokenCount(), planner_->max_plan_tokens());
}

TEST_F(BudgetsTest, WholePromptsOfAPlanAreBoundedTogether) {
  PlannerLimits limits = Limits();
  limits.chunk_tokens = INT_MAX;
  limits.input_tokens = 400;
  limits.stage0_lead = 1;
  limits.max_open_requests = 8;
  Make(limits);
  Up(2, 200);
  Start(1, 10);
  for (uint64_t attempt = 2; attempt <= 4; ++attempt) Start(attempt, 150);
  Start(5, 700);
  Done(0, 1);
  ASSERT_EQ(plans_.size(), 2u);
  EXPECT_EQ(plans_[1].items.size(), 2u) << "a third one would be cut";
  EXPECT_EQ(plans_[1].TokenCount(), 300);
  Done(0, 2);
  Done(1, 1);
  Done(1, 2);
  ASSERT_EQ(plans_.size(), 3u);
  EXPECT_EQ(plans_[2].TokenCount(), 150);
  Done(0, 3);
  Done(1, 3);
  EXPECT_EQ(plans_.back().TokenCount(), 700) << "one alone is never cut";
  EXPECT_TRUE(plans_.back().items[0].final);
}

// ---- Slots ----

TEST_F(BudgetsTest, ASlotHasAsManyRequestsAsItMay) {
  PlannerLimits limits = Decoding();
  limits.slot_requests = 2;
  Make(limits);
  Up(1);
  for (uint64_t attempt = 1; attempt <= 3; ++attempt) Generate(attempt, 16, 30);
  size_t rows = 0;
  for (int i = 0; i < 8; ++i) {
    Next();
    EXPECT_LE(Rows(plans_.back()).size(), 2u);
    if (i >= 5) rows += plans_.back().items.size();
  }
  EXPECT_EQ(rows, 6u) << "two in each";
}

TEST_F(BudgetsTest, FurtherSlotsShareTheRows) {
  PlannerLimits limits = Decoding();
  limits.extra_slots = 1;
  Make(limits);
  Up(1);
  for (uint64_t attempt = 1; attempt <= 4; ++attempt) Generate(attempt, 16, 30);
  for (uint64_t number = 1; number <= 8; ++number) Drawn(0, plans_.at(number - 1), 41);
  EXPECT_EQ(plans_.size(), 10u) << "two plans that draw are under way";
  EXPECT_EQ(Rows(plans_[8]).size(), 2u);
  EXPECT_EQ(Rows(plans_[9]).size(), 2u);
}

// ---- Pages for texts that grow ----

class ExpectedGrowthTest : public BudgetsTest {
 protected:
  static constexpr int kWhole = 26;  // Pages of a text that is as long as it may be.

  // Texts of up to 400 tokens behind 16, of which 16 have pages from the beginning. 0.7 of them
  // are expected: 19 pages.
  void UpExpecting(double conservativeness, int pages, uint64_t requests = 4) {
    PlannerLimits limits = Decoding();
    limits.reserved_decode_tokens = 16;
    limits.conservativeness = conservativeness;
    Make(limits);
    Up(1, pages);
    for (uint64_t attempt = 1; attempt <= requests; ++attempt) Generate(attempt, 16, 400);
    Next();
  }
  int Open() const { return planner_->load().open; }
};

TEST_F(ExpectedGrowthTest, OthersWaitForWhatTextsAreExpectedToTake) {
  UpExpecting(1, 37);
  EXPECT_EQ(Open(), 1);
  UpExpecting(1, 38);
  EXPECT_EQ(Open(), 2);
  EXPECT_EQ(planner_->load().owned_pages, 4) << "nothing is held for it";
}

TEST_F(ExpectedGrowthTest, ConservativenessScalesIt) {
  UpExpecting(0, kWhole);
  EXPECT_EQ(Open(), 4);
  UpExpecting(0.4, kWhole);  // 16 + 112: 8 pages, and 9 when a token is drawn.
  EXPECT_EQ(Open(), 3);
  UpExpecting(100, 2 * kWhole - 1);  // All of it.
  EXPECT_EQ(Open(), 1);
  UpExpecting(100, 2 * kWhole);
  EXPECT_EQ(Open(), 2);
}

TEST_F(ExpectedGrowthTest, AnEmptyChainTakesWhatFits) {
  UpExpecting(100, kWhole);
  EXPECT_EQ(Open(), 1);
}

TEST_F(ExpectedGrowthTest, TheShareFallsWhileTextsEndEarly) {
  UpExpecting(1, 37, 2);
  int plans = 0;
  while (Open() == 1 && ++plans < 390) Next();
  EXPECT_GT(plans, 1);
  EXPECT_LT(plans, 60) << "a tenth of the way, and some pages are enough";
}

TEST_F(ExpectedGrowthTest, ARetractionRaisesIt) {
  UpExpecting(0.1, kWhole);
  ASSERT_EQ(Open(), 4);
  while (planner_->load().retractions_total == 0) Next();
  Next();
  Closed(0, 4);
  for (const uint64_t attempt : {2, 3}) {
    Send(AbortRequested{attempt, absl::CancelledError("client")});
  }
  Next();
  Next();
  Closed(0, 2);
  Closed(0, 3);
  Generate(5, 16, 400);
  Next();
  // Each had some 85 tokens of 400 when one gave way, so a quarter is expected: 13 pages of the
  // oldest, 12 of the one that comes back, and 8 of a new one.
  EXPECT_EQ(Open(), 2);
  EXPECT_EQ(planner_->load().queued, 1);
}

// ---- Guards ----

// A page costs 1,700 us, a row 200. The prompt of attempt 9 is long.
class GuardsTest : public BudgetsTest {
 protected:
  static constexpr int kLong = 800;

  void UpWithCosts(const PlannerLimits& limits, int stages, double overhead_us = 100) {
    Make(limits);
    const KnownCost cost{{.overhead_us = overhead_us, .token_us = 100}, 0.05};
    const auto of_each = static_cast<size_t>(stages);
    Send(ChainUp{kEpoch, stages, 128, std::vector<int>(of_each, 1),
                 std::vector<KnownCost>(of_each, cost)});
  }
  // As BudgetsTest's; the plan has taken what it costs.
  void Next() {
    const Plan plan = plans_.back();
    PlanDone done{plan.number, 100 + 100 * plan.TokenCount(), 1, {}, {}};
    for (const PlanItem& item : plan.items) {
      if (item.draws) done.drawn.push_back({item.attempt_id, SampledToken{41, -1, {}}});
    }
    Send(StagePlanDone{0, kEpoch, done});
  }
  // Plan `number` on both of two stages.
  void DoneOnBoth(uint64_t number) {
    Done(0, number);
    Drawn(1, plans_.at(number - 1), 41);
  }
};

TEST_F(GuardsTest, PromptsHaveAPageOfEveryPlan) {
  for (const bool by_wait : {false, true}) {
    PlannerLimits limits = Decoding();
    (by_wait ? limits.decode_max_wait_us : limits.target_itl_us) = 1;
    UpWithCosts(limits, 1);
    Generate(1, 16, 100);
    Next();
    Start(9, kLong);
    for (int i = 0; i < 6; ++i) {
      Next();
      EXPECT_EQ(Rows(plans_.back()).size(), 1u) << "a row waits for no prompt";
      EXPECT_EQ(TokensOf(plans_.back(), 9), kPageSize);
    }
  }
}

TEST_F(GuardsTest, PromptsHaveAQuarterMoreThanAPageTakes) {
  PlannerLimits limits = Decoding();
  limits.target_itl_us = 1;
  UpWithCosts(limits, 1, 6'000);
  Generate(1, 16, 100);
  Next();
  Start(9, kLong);
  Next();
  EXPECT_EQ(TokensOf(plans_.back(), 9), 32);  // 6,000 + 33 * 100 us, of 1.25 * (6,000 + 17 * 100).
}

TEST_F(GuardsTest, APlanTakesNoLongerThanATokenMayWait) {
  PlannerLimits limits = Decoding();
  limits.decode_max_wait_us = 3'500;
  UpWithCosts(limits, 1);
  Generate(1, 16, 100);
  Next();
  Start(9, kLong);
  Next();
  EXPECT_EQ(TokensOf(plans_.back(), 9), 32);  // 100 + 33 * 100 us.
}

TEST_F(GuardsTest, TheSmallerOfTwoBoundsCounts) {
  PlannerLimits limits = Decoding();
  limits.decode_max_wait_us = 1'800;
  limits.target_itl_us = 3'500;
  UpWithCosts(limits, 1);
  Generate(1, 16, 100);
  Next();
  Start(9, kLong);
  Next();
  EXPECT_EQ(TokensOf(plans_.back(), 9), 16);
}

TEST_F(GuardsTest, WhatShorterPromptsHaveSavedDoesNotMakeAPlanLonger) {
  PlannerLimits limits = Decoding();
  limits.max_open_requests = 8;
  limits.target_itl_us = 3'000;  // One page.
  UpWithCosts(limits, 1);
  Generate(1, 16, 100);
  Next();
  Start(9, kLong);
  Start(5, 100);
  Next();  // The long one has a page, the other half a one to come.
  StartRequested urgent{7, 200, TicketFor(200)};
  urgent.priority = 100;
  Send(urgent);
  Next();
  EXPECT_EQ(TokensOf(plans_.back(), 7), 16);
  EXPECT_EQ(plans_.back().TokenCount(), 17);
}

TEST_F(GuardsTest, ChunksAloneWaitForStage0WhileRequestsDecode) {
  for (const bool waits : {true, false}) {
    PlannerLimits limits = Decoding();
    if (waits) limits.decode_max_wait_us = 5'000;
    UpWithCosts(limits, 2);
    Generate(1, 16, 100);
    DoneOnBoth(1);
    ASSERT_EQ(Rows(plans_.at(1)).size(), 1u);
    Start(9, kLong);  // Plan 2 has 200 us to go on stage 0.
    ASSERT_EQ(plans_.size(), waits ? 2u : 3u);
    Done(0, 2);
    ASSERT_EQ(plans_.size(), waits ? 3u : 4u);
    EXPECT_EQ(TokensOf(plans_[2], 9), waits ? 48 : 64);
    Drawn(1, plans_[1], 41);
    EXPECT_EQ(Rows(plans_.back()).size(), waits ? 1u : 0u) << "it goes out at once, or later";
  }
}

TEST_F(GuardsTest, ARowThatHasWaitedForLongGoesNext) {
  for (const bool waits : {true, false}) {
    PlannerLimits limits = Decoding();
    limits.max_open_requests = 16;
    limits.plan_window = 4;
    if (waits) limits.decode_max_wait_us = 5'000;
    UpWithCosts(limits, 2);
    Start(10, 64);
    Start(11, 64);
    for (uint64_t attempt = 1; attempt <= 7; ++attempt) Generate(attempt, 1, 100);
    for (uint64_t number = 1; number <= 3; ++number) DoneOnBoth(number);  // All are drawn at once.
    ASSERT_EQ(Rows(plans_.at(3)), (std::vector<uint64_t>{1, 2, 3, 4}));
    ASSERT_EQ(Rows(plans_.at(4)), (std::vector<uint64_t>{5, 6, 7}));
    const auto leave = [&](const std::vector<uint64_t>& attempts) {
      for (const uint64_t attempt : attempts) {
        Send(AbortRequested{attempt, absl::CancelledError("client")});
      }
    };
    leave({5, 6, 7});
    DoneOnBoth(4);
    ASSERT_EQ(Rows(plans_.at(5)), (std::vector<uint64_t>{1, 2})) << "half of them";
    leave({1, 2});
    now_us_ += 5'000;
    DoneOnBoth(5);
    const std::vector<uint64_t> all = {3, 4};
    EXPECT_EQ(Rows(plans_.at(6)), waits ? all : std::vector<uint64_t>{3});
  }
}

}  // namespace
}  // namespace baton::prefill
