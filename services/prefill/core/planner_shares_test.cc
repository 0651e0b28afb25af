// Which prompts' tokens plans hold: long and short, older and younger.
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <map>
#include <vector>

#include "common/base/random.h"
#include "services/prefill/core/planner_fixture.h"

namespace baton::prefill {
namespace {

class PlannerSharesTest : public PlannerTest {
 protected:
  static constexpr int kPage = kPageSize;
  static PlannerLimits Limits() {
    PlannerLimits limits = PlannerTest::Limits();
    limits.plan_window = limits.stage0_lead = 1;
    limits.max_open_requests = 40;
    limits.max_queued_requests = 100;
    limits.max_context_tokens = 10'000;
    return limits;
  }
  PlannerSharesTest() { Make(Limits()); }
  void Make(const PlannerLimits& limits, int pages = 2000) {
    PlannerTest::Make(limits);
    Up(1, pages);
  }

  // The stage computes the last plan. What is through is closed, if `close`.
  void Step(bool close = true) {
    const Plan plan = plans_.back();
    for (const PlanItem& item : plan.items) {
      if (item.final && close) Closed(0, item.attempt_id);
    }
    Done(0, plan.number);
  }
  // Tokens by attempt.
  static std::map<uint64_t, int> Shares(const Plan& plan) {
    std::map<uint64_t, int> shares;
    for (const PlanItem& item : plan.items) shares[item.attempt_id] = item.token_count;
    return shares;
  }
  std::map<uint64_t, int> Next() {
    Step();
    return Shares(plans_.back());
  }
  using Tokens = std::map<uint64_t, int>;
  static int InPages(int tokens) { return (tokens + kPage - 1) / kPage * kPage; }
};

TEST_F(PlannerSharesTest, AShortPromptHasHalfOfTheLongOnesPlans) {
  Start(1, 9000);
  Start(2, 72);
  EXPECT_EQ(Shares(plans_.back()), (Tokens{{1, 64}})) << "came after this one";
  EXPECT_EQ(Next(), (Tokens{{1, 32}, {2, 32}}));
  EXPECT_EQ(Next(), (Tokens{{1, 32}, {2, 32}}));
  EXPECT_EQ(Next(), (Tokens{{1, 48}, {2, 8}})) << "whole pages";
  EXPECT_EQ(Next(), (Tokens{{1, 64}}));
}

TEST_F(PlannerSharesTest, NothingIsSharedWhereWhoComesFirstIsServedFirst) {
  PlannerLimits limits = Limits();
  limits.shares_plans = false;
  Make(limits);
  Start(1, 200);
  Start(2, 4);
  for (int plan = 0; plan < 2; ++plan) EXPECT_EQ(Next(), (Tokens{{1, 64}}));
  EXPECT_EQ(Next(), (Tokens{{1, 8}, {2, 4}})) << "what it leaves is the next one's";
}

TEST_F(PlannerSharesTest, TheShortestIsFirst) {
  Start(1, 9000);
  Start(2, 100);
  Start(3, 20);
  EXPECT_EQ(Next(), (Tokens{{1, 32}, {3, 20}})) << "its last tokens take a page";
  EXPECT_EQ(Next(), (Tokens{{1, 32}, {2, 32}}));
}

TEST_F(PlannerSharesTest, EqualPromptsWaitTheirTurn) {
  Start(1, 200);
  Start(2, 200);
  Start(3, 300);
  EXPECT_EQ(Next(), (Tokens{{1, 64}}));
  EXPECT_EQ(Next(), (Tokens{{1, 64}}));
  EXPECT_EQ(Next(), (Tokens{{1, 8}, {2, 48}})) << "what it leaves is the next one's";
  EXPECT_EQ(Next(), (Tokens{{2, 64}}));
}

TEST_F(PlannerSharesTest, PlansOfOnePageAreSharedInTurn) {
  PlannerLimits limits = Limits();
  limits.chunk_tokens = kPage;
  Make(limits);
  Start(1, 9000);
  Start(2, 32);
  int of_short = 0;
  for (int plan = 0; plan < 8; ++plan) of_short += Next().contains(2) ? 1 : 0;
  EXPECT_EQ(of_short, 2);
}

// It would wait for one more plan. A longer one's plans are shared, or others would wait for it
// all.
TEST_F(PlannerSharesTest, AnUrgentPromptsLastPlanIsNotShared) {
  for (const bool tenant : {false, true}) {
    SCOPED_TRACE(tenant ? "head start" : "priority");
    Make(Limits());
    Start(1, 80);
    Start(2, 80);
    Start(3, 40);
    const auto urgent = [&](uint64_t attempt_id, int tokens) {
      StartRequested event{attempt_id, tokens, TicketFor(tokens)};
      event.priority = tenant ? 0 : 1;
      event.head_start_us = tenant ? 1000 : 0;
      Send(event);
    };
    urgent(4, 60);
    EXPECT_EQ(Next(), (Tokens{{4, 60}}));
    urgent(5, 128);
    EXPECT_EQ(Next(), (Tokens{{1, 16}, {3, 16}, {5, 32}}));
  }
}

TEST_F(PlannerSharesTest, WholePromptsAreNotCut) {
  PlannerLimits limits = Limits();
  limits.chunk_tokens = INT_MAX;
  Make(limits);
  Start(1, 100);
  Start(2, 9000);
  Start(3, 10);
  EXPECT_EQ(Next(), (Tokens{{2, 9000}, {3, 10}}));
}

TEST_F(PlannerSharesTest, WhoWantsNoPromptCutHasNoneCutForOthers) {
  for (const ChunkRule rule : {ChunkRule::kFixed, ChunkRule::kSglang, ChunkRule::kOptimal}) {
    PlannerLimits limits = Limits();
    limits.chunk_tokens = INT_MAX;
    limits.chunk_rule = rule;
    Make(limits);
    Start(1, 100);
    Start(2, 9995);
    Start(3, 10);
    EXPECT_EQ(Next(), (Tokens{{2, 9995}})) << "with half a plan for others it would be two chunks";
  }
}

TEST_F(PlannerSharesTest, TheShareIsAllShortPromptsThatFit) {
  Start(1, 9000);
  Start(9, 10);
  Start(2, 10);
  Start(3, 10);
  EXPECT_EQ(Next(), (Tokens{{1, 32}, {9, 10}, {2, 10}, {3, 10}}));
  Start(8, 20);
  Start(4, 20);
  EXPECT_EQ(Next(), (Tokens{{1, 32}, {8, 20}})) << "of equal ones the oldest";
}

TEST_F(PlannerSharesTest, WhoRunsIsNotDelayedByEqualOnes) {
  Start(1, 9000);
  Start(2, 232);
  EXPECT_EQ(Next(), (Tokens{{1, 32}, {2, 32}}));
  Start(3, 200);  // As much as the second one has left.
  EXPECT_EQ(Next(), (Tokens{{1, 32}, {2, 32}}));
}

TEST_F(PlannerSharesTest, OnlyShorterOnesHaveAShare) {
  Start(1, 264);
  Start(2, 200);
  EXPECT_EQ(Next(), (Tokens{{1, 64}})) << "both have 200 left";
  EXPECT_EQ(Next(), (Tokens{{1, 64}}));
}

TEST_F(PlannerSharesTest, WhoIsNotShorterAnyMoreHasNoShare) {
  Start(1, 164);
  Start(2, 90);
  EXPECT_EQ(Next(), (Tokens{{1, 32}, {2, 32}}));
  Start(3, 32);
  EXPECT_EQ(Next(), (Tokens{{1, 32}, {3, 32}}));
  EXPECT_EQ(Next(), (Tokens{{1, 36}, {2, 16}})) << "58 are more than 36";
}

TEST_F(PlannerSharesTest, WhoBeginsToLeadHasThePlanThatOpensIt) {
  PlannerLimits limits = Limits();
  limits.chunk_tokens = kPage;
  Make(limits);
  Start(1, 32);
  Start(2, 9000);
  Start(3, 10);
  EXPECT_EQ(Next(), (Tokens{{1, kPage}})) << "half a page is kept for the third";
  EXPECT_EQ(Next(), (Tokens{{2, kPage}}));
  EXPECT_EQ(Next(), (Tokens{{3, 10}}));
}

TEST_F(PlannerSharesTest, WhoBeginsToLeadSharesItsFirstPlan) {
  Start(1, 64);
  Start(2, 9000);
  Start(3, 20);
  EXPECT_EQ(Next(), (Tokens{{2, 32}, {3, 20}}));
}

TEST_F(PlannerSharesTest, TheLastTokenOfAPromptIsPlanned) {
  Start(1, 65);
  EXPECT_EQ(Next(), (Tokens{{1, 1}}));
}

TEST_F(PlannerSharesTest, ANewEpochOwesNothing) {
  PlannerLimits limits = Limits();
  limits.chunk_tokens = kPage;
  Make(limits);
  for (const uint64_t epoch : {kEpoch + 1, kEpoch + 2}) {
    Send(ChainDown{absl::UnavailableError("a stage is gone")});
    Send(ChainUp{epoch, 1, 2000});
    Start(1, 9000);
    Start(2, 32);
    Send(StagePlanDone{0, epoch, {1, 10, 1}});
    EXPECT_EQ(Shares(plans_.back()), (Tokens{{1, kPage}})) << "half a page is kept for the other";
  }
}

TEST_F(PlannerSharesTest, WhatWasKeptForAnotherIsNotANewEpochsEither) {
  PlannerLimits limits = Limits();
  limits.chunk_tokens = 3 * kPage;
  Make(limits);
  for (const uint64_t epoch : {kEpoch + 1, kEpoch + 2}) {
    Send(ChainDown{absl::UnavailableError("a stage is gone")});
    Send(ChainUp{epoch, 1, 2000});
    Start(3, kPage);
    Start(1, 9000);
    Start(2, 100);
    Send(StageRequestClosed{0, epoch, {3, absl::OkStatus(), 1, 1, 1}});
    Send(StagePlanDone{0, epoch, {1, 10, 1}});
    EXPECT_EQ(Shares(plans_.back()), (Tokens{{1, 2 * kPage}, {2, kPage}}))
        << "half a page is kept for the other";
  }
}

TEST_F(PlannerSharesTest, WhoIsOpenedHasAChunk) {
  PlannerLimits limits = Limits();
  limits.chunk_tokens = kPage;
  Make(limits);
  Start(1, 8000);
  for (uint64_t attempt = 2; attempt < 10; ++attempt) Start(attempt, 20 * (10 - attempt));
  for (int plan = 0; plan < 100; ++plan) {
    const Tokens shares = Next();
    for (const PlanOpen& open : plans_.back().opens) EXPECT_TRUE(shares.contains(open.attempt_id));
  }
}

TEST_F(PlannerSharesTest, TheOldestThatWaitsIsOvertakenWhereItIsLeftRoom) {
  Make(Limits(), 100);
  Start(1, 640);  // 40 pages
  Start(2, 600);  // 38 pages: younger and shorter than the first soon, but it takes its turn
  Start(3, 400);  // 25 pages: would leave it 35
  Start(4, 100);  // 7 pages
  EXPECT_EQ(Next(), (Tokens{{1, 32}, {4, 32}}));
  EXPECT_EQ(planner_->load().free_pages, 53);
  Start(5, 256);  // 16 pages: would leave it 37
  bool begun = false;
  for (int plan = 0; plan < 40 && !begun; ++plan) {
    Step();
    for (const PlanOpen& open : plans_.back().opens) begun = begun || open.attempt_id == 2;
    ASSERT_GE(planner_->load().free_pages, begun ? 0 : 38);
  }
  EXPECT_TRUE(begun);
}

TEST_F(PlannerSharesTest, TheOldestThatWaitsIsLeftNoMoreThanItNeeds) {
  Make(Limits(), 100);
  Start(1, 640);  // 40 pages
  Start(2, 600);  // 38
  Start(3, 352);  // 22
  EXPECT_EQ(Next(), (Tokens{{1, 32}, {3, 32}}));
}

TEST_F(PlannerSharesTest, TheOldestThatWaitsLeavesRoomForNobody) {
  PlannerLimits limits = Limits();
  limits.max_open_requests = 2;
  Make(limits, 50);
  Start(1, 640);  // 40 pages
  Start(2, 160);  // 10
  EXPECT_EQ(Next(), (Tokens{{1, 32}, {2, 32}}));
}

TEST_F(PlannerSharesTest, TheOldestThatWaitsForPagesIsNotOvertaken) {
  Make(Limits(), 50);
  Start(1, 640);
  Start(2, 320);  // 20 pages, 10 are free
  Start(3, 16);
  for (int plan = 0; plan < 8; ++plan) EXPECT_FALSE(Next().contains(3));
}

TEST_F(PlannerSharesTest, TheOldestThatWaitsIsLeftAPlace) {
  PlannerLimits limits = Limits();
  limits.max_open_requests = 3;
  Make(limits);
  Start(1, 9000);
  Start(2, 9000);  // Waits for its turn.
  Start(3, 16);
  Start(4, 16);
  EXPECT_TRUE(Next().contains(3));
  Step(/*close=*/false);
  EXPECT_FALSE(Shares(plans_.back()).contains(4)) << "the third place is the second prompt's";
}

// What the header promises of every prompt, whatever comes behind it.
TEST_F(PlannerSharesTest, NobodyWaitsLongerThanPromised) {
  struct Prompt {
    int tokens = 0;
    int planned = 0;
    int64_t older = 0;    // Tokens left of older ones when it came.
    int64_t shorter = 0;  // Planned since of prompts that were not longer.
    int64_t all = 0;      // Planned since of all.
    int Left() const { return tokens - planned; }
  };
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    PlannerLimits limits = Limits();
    limits.chunk_tokens = kPage * static_cast<int>(random.Between(1, 12));
    Make(limits, 20'000);
    std::map<uint64_t, Prompt> prompts;
    size_t seen = 0;
    const auto look = [&] {
      for (; seen < plans_.size(); ++seen) {
        for (auto& [attempt, prompt] : prompts) {
          if (prompt.Left() == 0) continue;
          for (const PlanItem& item : plans_[seen].items) {
            prompt.all += InPages(item.token_count);
            const bool counts = prompts.at(item.attempt_id).Left() <= prompt.Left();
            if (counts) prompt.shorter += InPages(item.token_count);
          }
        }
        for (const PlanItem& item : plans_[seen].items) {
          Prompt& prompt = prompts.at(item.attempt_id);
          prompt.planned += item.token_count;
          if (prompt.Left() > 0) continue;
          const int64_t slack = int64_t{2} * limits.chunk_tokens;
          EXPECT_LE(prompt.all, 2 * (InPages(prompt.tokens) + prompt.older) + slack)
              << "seed " << seed << ", attempt " << item.attempt_id;
          EXPECT_LE(prompt.all, 2 * prompt.shorter + slack)
              << "seed " << seed << ", attempt " << item.attempt_id;
        }
      }
    };
    uint64_t attempt = 0;
    for (int step = 0; step < 200; ++step) {
      if (random.Between(0, 3) == 0 && planner_->load().queued < 30) {
        Prompt prompt;
        const bool is_long = random.Between(0, 5) == 0;
        prompt.tokens = static_cast<int>(random.Between(1, is_long ? 5000 : 150));
        for (const auto& [other_id, other] : prompts) prompt.older += InPages(other.Left());
        prompts[++attempt] = prompt;
        Start(attempt, prompt.tokens);
        look();
      }
      if (!planner_->AtRest()) Step();
      look();
    }
    while (!planner_->AtRest() && !HasFailure()) Step(), look();
    if (HasFailure()) return;
    for (const auto& [id, prompt] : prompts) EXPECT_EQ(prompt.Left(), 0) << id;
  }
}

}  // namespace
}  // namespace baton::prefill
