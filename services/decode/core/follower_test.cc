#include "services/decode/core/follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace baton::decode {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr FollowerLimits kLimits{.rank = {1, 2},
                                 .kv_heads = 2,
                                 .layers = 6,
                                 .page_size = 4,
                                 .page_count = 10,
                                 .slots = 3,
                                 .max_context_tokens = 64,
                                 .vocab_size = 100};

class FollowerTest : public testing::Test {
 protected:
  FollowerTest() { Handle(EpochBegan{}); }

  void Handle(const FollowerEvent& event) { follower_.Handle(event, actions_); }
  template <typename Action>
  std::optional<Action> Take() {
    for (auto it = actions_.begin(); it != actions_.end(); ++it) {
      if (!std::holds_alternative<Action>(*it)) continue;
      Action action = std::get<Action>(*it);
      actions_.erase(it);
      return action;
    }
    return std::nullopt;
  }
  static GrantOrder Order(uint32_t slot, uint64_t generation, std::vector<int> pages) {
    return {slot, generation, 1, std::move(pages), {{{"prefill-0", 1}, {0, 6}, {}}}};
  }
  void Grant(uint32_t slot, uint64_t generation, std::vector<int> pages) {
    Handle(OrderHeard{Order(slot, generation, std::move(pages))});
  }
  void Step(uint64_t step, std::vector<StepOrder::Row> rows) {
    Handle(OrderHeard{StepOrder{step, std::move(rows)}});
  }
  std::string Refusal(const decode::Order& order) {
    Handle(OrderHeard{order});
    const auto failed = Take<FailEpoch>();
    return failed ? std::string(failed->status.message()) : "";
  }

  Follower follower_{kLimits};
  std::vector<FollowerAction> actions_;
};

TEST_F(FollowerTest, GrantsAndSaysSo) {
  Grant(2, 7, {4, 1, 3});
  const auto grant = Take<GrantKv>();
  ASSERT_TRUE(grant.has_value());
  EXPECT_EQ(grant->rank, 1);
  EXPECT_EQ(grant->grant.slot, 2u);
  EXPECT_EQ(grant->grant.generation, 7u);
  EXPECT_THAT(grant->grant.pages, ElementsAre(4)) << "the prompt's alone";
  EXPECT_EQ(grant->grant.deadline_us, kNeverUs);
  EXPECT_EQ(grant->grant.writers.size(), 1u);
  const auto granted = Take<TellGranted>();
  ASSERT_TRUE(granted.has_value());
  EXPECT_EQ(granted->slot, 2u);
  EXPECT_EQ(granted->generation, 7u);
  EXPECT_EQ(follower_.held_pages(), 3);
  EXPECT_EQ(follower_.newest_generation(), 7u);
}

TEST_F(FollowerTest, ComputesOnThePagesOfTheGrant) {
  Grant(0, 1, {4, 1, 3});
  Step(1, {{0, 1, 55, 4}});
  const auto step = Take<RunStep>();
  ASSERT_TRUE(step.has_value());
  ASSERT_EQ(step->sequences.size(), 1u);
  EXPECT_THAT(step->sequences[0].pages, ElementsAre(4, 1));
  EXPECT_EQ(step->sequences[0].position, 4);
  EXPECT_EQ(step->sequences[0].token, 55);
}

// Rank 0 may give a page away when its step is over; here the same step may be a moment behind.
TEST_F(FollowerTest, AGrantStandsWhenTheStepsBeforeItHaveEnded) {
  Grant(0, 1, {4, 1, 3});
  Take<TellGranted>();
  Step(1, {{0, 1, 5, 1}});
  Handle(OrderHeard{RevokeOrder{0, 1}});
  Handle(LeaseHeard{KvDrained{0, 1}});
  ASSERT_TRUE(Take<TellLease>().has_value());
  Grant(1, 2, {4});
  EXPECT_FALSE(Take<TellGranted>().has_value());
  Handle(FollowerStepEnded{1, absl::OkStatus()});
  EXPECT_TRUE(Take<TellGranted>().has_value());
}

TEST_F(FollowerTest, AGrantThatEndsMeanwhileIsNotSaidToStand) {
  Grant(0, 1, {4});
  Take<TellGranted>();
  Step(1, {{0, 1, 5, 1}});
  Grant(1, 2, {5});
  Handle(OrderHeard{RevokeOrder{1, 2}});
  Handle(LeaseHeard{KvDrained{1, 2}});
  Grant(1, 3, {5});
  Handle(FollowerStepEnded{1, absl::OkStatus()});
  EXPECT_EQ(Take<TellGranted>()->generation, 3u);
  EXPECT_FALSE(Take<TellGranted>().has_value());
}

TEST_F(FollowerTest, AnEpochEndsWithAllThatItBrought) {
  Grant(0, 1, {4});
  Grant(1, 2, {5});
  Step(1, {{0, 1, 5, 1}});
  actions_.clear();
  Handle(EpochOver{});
  EXPECT_TRUE(Take<RevokeKv>().has_value() && Take<RevokeKv>().has_value());
  EXPECT_FALSE(follower_.may_begin());
  Handle(OrderHeard{RevokeOrder{0, 1}});  // For the epoch that is over.
  Handle(LeaseHeard{KvDrained{0, 1}});
  Handle(LeaseHeard{KvDrained{1, 2}});
  EXPECT_FALSE(follower_.may_begin());
  Handle(FollowerStepEnded{1, absl::UnavailableError("the group has ended")});
  EXPECT_TRUE(actions_.empty()) << "nobody is to be told";
  EXPECT_TRUE(follower_.may_begin());
  Handle(EpochBegan{});
  EXPECT_THAT(Refusal(Order(0, 2, {4})), HasSubstr("2 follows 2")) << "generations go on";
}

TEST_F(FollowerTest, AFailedStepEndsTheEpoch) {
  Grant(0, 1, {4});
  Step(1, {{0, 1, 5, 1}});
  Handle(FollowerStepEnded{1, absl::InternalError("no memory")});
  EXPECT_EQ(Take<FailEpoch>()->status.message(), "no memory");
}

TEST_F(FollowerTest, TellsWhatItsTableSays) {
  Grant(0, 1, {4});
  Handle(LeaseHeard{KvCommitted{0, 1, {}, 99}});
  EXPECT_TRUE(std::holds_alternative<KvCommitted>(Take<TellLease>()->event));
  Handle(LeaseHeard{KvFailed{0, 1, absl::DataLossError("bytes")}});
  EXPECT_TRUE(std::holds_alternative<KvFailed>(Take<TellLease>()->event));
}

TEST_F(FollowerTest, OrdersThatMakeNoSenseEndTheEpoch) {
  Grant(0, 5, {4, 1});
  const auto grant = [](auto change) {
    GrantOrder order = Order(1, 6, {2});
    change(order);
    return order;
  };
  EXPECT_THAT(Refusal(grant([](auto& o) { o.slot = 0; })), HasSubstr("0 is taken"));
  EXPECT_THAT(Refusal(grant([](auto& o) { o.slot = 3; })), HasSubstr("not one of 3"));
  EXPECT_THAT(Refusal(grant([](auto& o) { o.generation = 5; })), HasSubstr("5 follows 5"));
  EXPECT_THAT(Refusal(grant([](auto& o) { o.pages = {4}; })), HasSubstr("4 is taken"));
  EXPECT_THAT(Refusal(grant([](auto& o) { o.pages = {2, 2}; })), HasSubstr("2 is taken"));
  EXPECT_THAT(Refusal(grant([](auto& o) { o.pages = {10}; })), HasSubstr("not one of 10"));
  EXPECT_THAT(Refusal(grant([](auto& o) { o.pages = {-1}; })), HasSubstr("not one of 10"));
  EXPECT_THAT(Refusal(grant([](auto& o) { o.pages.clear(); })), HasSubstr("prompt_pages"));
  EXPECT_THAT(Refusal(grant([](auto& o) { o.prompt_pages = 2; })), HasSubstr("2 of 1"));
  EXPECT_THAT(Refusal(grant([](auto& o) { o.writers[0].layers = {0, 7}; })), HasSubstr("of 6"));
  EXPECT_THAT(Refusal(grant([](auto& o) { o.prompt_pages = 0; })), HasSubstr("0 of 1"));
  for (const LayerRange& layers : {LayerRange{-1, 2}, {2, 2}, {3, 2}}) {
    EXPECT_THAT(Refusal(grant([&](auto& o) { o.writers[0].layers = layers; })), HasSubstr("of 6"));
  }
  EXPECT_THAT(Refusal(RevokeOrder{0, 4}), HasSubstr("not granted"));
  EXPECT_THAT(Refusal(RevokeOrder{1, 5}), HasSubstr("not granted"));
  EXPECT_THAT(Refusal(StepOrder{1, {}}), HasSubstr("empty"));
  EXPECT_THAT(Refusal(StepOrder{1, {{0, 4, 1, 1}}}), HasSubstr("not granted"));
  EXPECT_THAT(Refusal(StepOrder{1, {{0, 5, 100, 1}}}), HasSubstr("vocabulary"));
  EXPECT_THAT(Refusal(StepOrder{1, {{0, 5, -1, 1}}}), HasSubstr("vocabulary"));
  EXPECT_THAT(Refusal(StepOrder{1, {{0, 5, 1, 8}}}), HasSubstr("position 8"));
  EXPECT_THAT(Refusal(StepOrder{1, {{0, 5, 1, -1}}}), HasSubstr("position -1"));
  EXPECT_THAT(Refusal(StepOrder{1, {{0, 5, 1, 1}, {0, 5, 1, 1}}}), HasSubstr("comes twice"));
  EXPECT_EQ(follower_.held_pages(), 2) << "nothing of it was taken";
}

TEST_F(FollowerTest, TheEdgesAreTaken) {
  GrantOrder order = Order(0, 1, {0, 9});
  order.prompt_pages = 2;
  order.writers = {{{"prefill-0", 1}, {0, 5}, {}}, {{"prefill-1", 2}, {5, 6}, {}}};
  Handle(OrderHeard{order});
  Grant(1, 2, {1});
  Grant(2, 3, {2});
  EXPECT_FALSE(Take<FailEpoch>().has_value());
  EXPECT_EQ(follower_.held_pages(), 4);
  Step(7, {{2, 3, 99, 3}, {0, 1, 0, 7}, {1, 2, 5, 0}});
  const auto step = Take<RunStep>();
  ASSERT_TRUE(step.has_value());
  EXPECT_EQ(step->step, 7u);
  ASSERT_EQ(step->sequences.size(), 3u);
  EXPECT_EQ(step->sequences[1].slot, 0u);
  EXPECT_EQ(step->sequences[1].generation, 1u);
  EXPECT_THAT(step->sequences[1].pages, ElementsAre(0, 9));
}

// A page may reach beyond the longest context.
TEST(FollowerContextTest, EndsBeforeItsLastPage) {
  FollowerLimits limits = kLimits;
  limits.max_context_tokens = 6;
  Follower follower(limits);
  std::vector<FollowerAction> actions;
  const auto refused = [&](const Order& order) {
    actions.clear();
    follower.Handle(OrderHeard{order}, actions);
    return std::holds_alternative<FailEpoch>(actions.at(0));
  };
  follower.Handle(EpochBegan{}, actions);
  EXPECT_FALSE(refused(GrantOrder{0, 1, 1, {4, 5}, {}}));
  EXPECT_TRUE(refused(StepOrder{1, {{0, 1, 5, 6}}}));
  EXPECT_FALSE(refused(StepOrder{1, {{0, 1, 5, 5}}}));
}

TEST_F(FollowerTest, PagesAndSlotsAreTakenUntilTheTableHasDrained) {
  Grant(0, 1, {4});
  Handle(OrderHeard{RevokeOrder{0, 1}});
  const auto revoke = Take<RevokeKv>();
  ASSERT_TRUE(revoke.has_value());
  EXPECT_EQ(revoke->slot, 0u);
  EXPECT_EQ(revoke->generation, 1u);
  EXPECT_EQ(follower_.held_pages(), 1);
  EXPECT_THAT(Refusal(Order(0, 2, {5})), HasSubstr("0 is taken"));
  EXPECT_THAT(Refusal(Order(1, 2, {4})), HasSubstr("4 is taken"));
  Handle(LeaseHeard{KvDrained{0, 1}});
  EXPECT_TRUE(follower_.AtRest());
  EXPECT_EQ(Refusal(Order(0, 2, {4})), "");
}

// Those of the prefix cache are in several grants, and rank 0 knows for how long.
TEST_F(FollowerTest, PagesBeforeTheFirstOneAreShared) {
  const auto sharing = [](uint32_t slot, uint64_t generation, std::vector<int> pages) {
    GrantOrder order = Order(slot, generation, std::move(pages));
    order.prompt_pages = 2;
    order.first_page = 1;
    return order;
  };
  EXPECT_EQ(Refusal(sharing(0, 1, {4, 5})), "");
  const auto grant = Take<GrantKv>();
  ASSERT_TRUE(grant.has_value());
  EXPECT_EQ(grant->grant.first_page, 1);
  EXPECT_THAT(grant->grant.pages, ElementsAre(4, 5));
  EXPECT_EQ(follower_.held_pages(), 1);
  EXPECT_EQ(Refusal(sharing(1, 2, {4, 6})), "");
  EXPECT_THAT(Refusal(sharing(2, 3, {4, 5})), HasSubstr("5 is taken"));
  GrantOrder all = sharing(2, 4, {4, 7});
  all.first_page = 2;
  EXPECT_THAT(Refusal(all), HasSubstr("2 of 2"));
}

TEST_F(FollowerTest, AnEpochEndsWithoutRevokingTwice) {
  Grant(0, 1, {4});
  Grant(2, 5, {6});
  Handle(OrderHeard{RevokeOrder{0, 1}});
  actions_.clear();
  Handle(EpochOver{});
  const auto revoke = Take<RevokeKv>();
  ASSERT_TRUE(revoke.has_value());
  EXPECT_EQ(revoke->slot, 2u);
  EXPECT_EQ(revoke->generation, 5u);
  EXPECT_TRUE(actions_.empty());
  Handle(EpochOver{});
  EXPECT_TRUE(actions_.empty());
  EXPECT_FALSE(follower_.AtRest());
}

TEST_F(FollowerTest, AnEpochsFirstStepMayHaveAnyNumber) {
  Grant(0, 1, {4});
  Step(8, {{0, 1, 5, 1}});
  Handle(FollowerStepEnded{8, absl::OkStatus()});
  Handle(EpochOver{});
  Handle(LeaseHeard{KvDrained{0, 1}});
  Handle(EpochBegan{});
  Grant(0, 2, {4});
  actions_.clear();
  Step(3, {{0, 2, 5, 1}});
  EXPECT_TRUE(Take<RunStep>().has_value());
  EXPECT_THAT(Refusal(StepOrder{3, {{0, 2, 5, 1}}}), HasSubstr("3 follows 3"));
  EXPECT_THAT(Refusal(StepOrder{5, {{0, 2, 5, 1}}}), HasSubstr("5 follows 3"));
}

TEST_F(FollowerTest, StepsComeInOrderAndAreFew) {
  Grant(0, 1, {4});
  for (uint64_t step = 11; step < 11 + kMaxFollowerSteps; ++step) Step(step, {{0, 1, 5, 1}});
  EXPECT_FALSE(Take<FailEpoch>().has_value());
  EXPECT_THAT(Refusal(StepOrder{11 + kMaxFollowerSteps, {{0, 1, 5, 1}}}),
              HasSubstr("have not ended"));
  Handle(FollowerStepEnded{11, absl::OkStatus()});
  EXPECT_THAT(Refusal(StepOrder{13, {{0, 1, 5, 1}}}), HasSubstr("13 follows 14"));
}

TEST_F(FollowerTest, StepsOfARevokedGrantAreRefused) {
  Grant(0, 1, {4});
  Handle(OrderHeard{RevokeOrder{0, 1}});
  EXPECT_THAT(Refusal(StepOrder{1, {{0, 1, 5, 1}}}), HasSubstr("not granted"));
  EXPECT_THAT(Refusal(RevokeOrder{0, 1}), HasSubstr("not granted"));
}

TEST_F(FollowerTest, AStepBringsAPage) {
  Grant(0, 1, {4});
  Step(1, {{0, 1, 55, 3}});
  Take<RunStep>();
  Step(2, {{0, 1, 56, 4, 7}});
  const auto step = Take<RunStep>();
  ASSERT_TRUE(step.has_value());
  EXPECT_THAT(step->sequences[0].pages, ElementsAre(4, 7));
  EXPECT_EQ(follower_.held_pages(), 2);
  Step(3, {{0, 1, 57, 5}});
  EXPECT_THAT(Take<RunStep>()->sequences[0].pages, ElementsAre(4, 7));
  EXPECT_THAT(Refusal(Order(1, 2, {7})), HasSubstr("7 is taken"));
  Handle(OrderHeard{RevokeOrder{0, 1}});
  EXPECT_EQ(follower_.held_pages(), 2);
  Handle(LeaseHeard{KvDrained{0, 1}});
  EXPECT_EQ(follower_.held_pages(), 0);
  Grant(1, 3, {7, 4});
  EXPECT_TRUE(Take<GrantKv>().has_value() && !Take<FailEpoch>().has_value());
}

TEST_F(FollowerTest, APageThatMakesNoSenseEndsTheEpoch) {
  Grant(0, 1, {4});
  Grant(1, 2, {5});
  const auto refusal = [this](std::vector<StepOrder::Row> rows) {
    return Refusal(StepOrder{1, std::move(rows)});
  };
  EXPECT_THAT(refusal({{0, 1, 55, 4, 5}}), HasSubstr("page 5 for position 4 is taken"));
  EXPECT_THAT(refusal({{0, 1, 55, 4, 10}}), HasSubstr("not one of 10"));
  EXPECT_THAT(refusal({{0, 1, 55, 3, 7}}), HasSubstr("not the next behind 1 of 4"));
  EXPECT_THAT(refusal({{0, 1, 55, 5, 7}}), HasSubstr("not the next behind"));
  EXPECT_THAT(refusal({{0, 1, 55, 4}}), HasSubstr("position 4 is outside"));
  EXPECT_THAT(refusal({{0, 1, 55, 4, 7}, {1, 2, 55, 4, 7}}), HasSubstr("new to two"));
  EXPECT_EQ(follower_.held_pages(), 2) << "nothing was taken";
}

}  // namespace
}  // namespace baton::decode
