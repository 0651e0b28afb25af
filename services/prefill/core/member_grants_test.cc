#include "services/prefill/core/member_grants.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton::prefill {
namespace {

class FakeInlet : public KvInlet {
 public:
  void Grant(KvGrant grant) override { calls.push_back(absl::StrCat("grant ", grant.generation)); }
  void Revoke(uint32_t slot, uint64_t generation) override {
    calls.push_back(absl::StrCat("revoke ", slot, " ", generation));
  }
  void After(std::function<void()> then) override { then(); }
  std::vector<std::string> calls;
};

class MemberGrantsTest : public testing::Test {
 protected:
  // Rank 1 of two, of a model with two heads and six layers.
  static constexpr MemberGrantLimits kLimits{
      .place = {{0, 6}, {1, 2}}, .kv_heads = 2, .page_count = 8, .slots = 2};
  static KvGrant Some(uint64_t generation, uint32_t slot = 0) {
    return {.slot = slot,
            .generation = generation,
            .pages = {3, 5},
            .writers = {{{"prefill-0", 1}, {0, 6}, {0, 1}}}};
  }
  FakeInlet inlet_;
  MemberGrants grants_{kLimits, &inlet_};
};

TEST_F(MemberGrantsTest, HoldsAGrantUntilItIsDrained) {
  ASSERT_TRUE(grants_.Grant(Some(4)).ok());
  EXPECT_EQ(grants_.held_pages(), 2);
  grants_.Heard(KvCommitted{0, 4, std::nullopt, 0});
  ASSERT_TRUE(grants_.Revoke(0, 4).ok());
  EXPECT_FALSE(grants_.AtRest());
  EXPECT_FALSE(grants_.Grant(Some(5)).ok()) << "its slot is taken";
  EXPECT_FALSE(grants_.Revoke(0, 4).ok());
  grants_.Heard(KvDrained{0, 4});
  EXPECT_TRUE(grants_.AtRest());
  EXPECT_TRUE(grants_.Grant(Some(5)).ok());
  EXPECT_EQ(grants_.newest_generation(), 5u);
  EXPECT_EQ(inlet_.calls, (std::vector<std::string>{"grant 4", "revoke 0 4", "grant 5"}));
}

TEST_F(MemberGrantsTest, AnEpochEndsWithWhatItHasBrought) {
  ASSERT_TRUE(grants_.Grant(Some(4)).ok());
  ASSERT_TRUE(grants_.Grant(Some(5, 1)).ok());
  ASSERT_TRUE(grants_.Revoke(0, 4).ok());
  grants_.EndEpoch();
  grants_.EndEpoch();
  EXPECT_EQ(inlet_.calls.size(), 4u);
  EXPECT_EQ(inlet_.calls.back(), "revoke 1 5");
  grants_.Heard(KvDrained{0, 4});
  grants_.Heard(KvDrained{1, 5});
  EXPECT_TRUE(grants_.AtRest());
  EXPECT_FALSE(grants_.Grant(Some(5)).ok()) << "generations go on";
}

TEST_F(MemberGrantsTest, WhatMakesNoSenseIsRefused) {
  const auto field = [this](const std::function<void(KvGrant&)>& spoil) {
    KvGrant grant = Some(4);
    spoil(grant);
    return FieldOf(grants_.Grant(grant)).value_or("none");
  };
  EXPECT_EQ(field([](KvGrant& g) { g.slot = 2; }), "grant.slot");
  EXPECT_EQ(field([](KvGrant& g) { g.generation = 0; }), "grant.generation");
  EXPECT_EQ(field([](KvGrant& g) { g.pages.clear(); }), "grant.first_page");
  EXPECT_EQ(field([](KvGrant& g) { g.first_page = 2; }), "grant.first_page");
  EXPECT_EQ(field([](KvGrant& g) { g.first_page = -1; }), "grant.first_page");
  EXPECT_EQ(field([](KvGrant& g) { g.pages[1] = 8; }), "grant.pages");
  EXPECT_EQ(field([](KvGrant& g) { g.pages[1] = -1; }), "grant.pages");
  EXPECT_EQ(field([](KvGrant& g) { g.pages[1] = 3; }), "grant.pages");
  EXPECT_EQ(field([](KvGrant& g) { g.writers[0].layers = {2, 2}; }), "grant.writers");
  EXPECT_EQ(field([](KvGrant& g) { g.writers[0].layers = {0, 7}; }), "grant.writers");
  EXPECT_EQ(field([](KvGrant& g) { g.writers[0].tensor_rank = {0, 2}; }), "grant.writers");
  EXPECT_EQ(field([](KvGrant& g) { g.writers[0].tensor_rank = {0, 3}; }), "grant.writers");
  EXPECT_TRUE(inlet_.calls.empty());
  EXPECT_EQ(FieldOf(grants_.Revoke(0, 4)), "revoke");
  EXPECT_EQ(field([](KvGrant&) {}), "none");
}

// A stage takes its own layers alone.
TEST_F(MemberGrantsTest, AWriterHasLayersOfThisStage) {
  MemberGrants stage({.place = {{2, 4}, {1, 2}}, .kv_heads = 2, .page_count = 8, .slots = 2},
                     &inlet_);
  EXPECT_EQ(FieldOf(stage.Grant(Some(4))), "grant.writers");
  KvGrant clipped = Some(4);
  clipped.writers[0].layers = {3, 4};
  EXPECT_TRUE(stage.Grant(clipped).ok());
}

}  // namespace
}  // namespace baton::prefill
