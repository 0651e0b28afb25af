#include "common/config/memory_plan.h"

#include <gtest/gtest.h>

#include "common/base/status.h"

namespace baton::config {
namespace {

// Llama-3.1-8B in bfloat16: 8,030,261,248 parameters by its model card's safetensors index.
ModelShape Llama8B() {
  return {.layers = 32,
          .hidden_size = 4096,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .intermediate_size = 14336,
          .vocab_size = 128256};
}

TEST(MemoryPlanTest, CountsAKnownModel) {
  const auto plan = PlanMemory(Llama8B(), DecodeShare(32), 64, 131072);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->weight_bytes, 2 * int64_t{8030261248});
  EXPECT_EQ(plan->kv_bytes_per_token, 131072);  // 2 * 32 * 8 * 128 * 2
  EXPECT_EQ(plan->kv_bytes_per_page, 64 * 131072);
  EXPECT_EQ(plan->pages, 2048);
  EXPECT_EQ(plan->kv_bytes, int64_t{16} << 30);
}

TEST(MemoryPlanTest, StagesSumToTheWhole) {
  const auto whole = PlanMemory(Llama8B(), DecodeShare(32), 64, 65536);
  const auto split = SplitLayers(32, 3, "");
  ASSERT_TRUE(whole.ok() && split.ok());
  int64_t weights = 0;
  int64_t kv = 0;
  for (const ProcessShare& share : ChainShares(*split)) {
    const auto stage = PlanMemory(Llama8B(), share, 64, 65536);
    ASSERT_TRUE(stage.ok());
    weights += stage->weight_bytes;
    kv += stage->kv_bytes;
  }
  EXPECT_EQ(weights, whole->weight_bytes);
  EXPECT_EQ(kv, whole->kv_bytes);
}

TEST(MemoryPlanTest, TiedEmbeddingsAreHeldTwiceByAChainOfSeveralStages) {
  ModelShape tied = Llama8B();
  tied.tie_embeddings = true;
  const int64_t matrix = tied.vocab_size * tied.hidden_size * tied.weight_bytes;
  const auto weight_bytes = [&](const ModelShape& shape, const ProcessShare& share) {
    return PlanMemory(shape, share, 64, 65536)->weight_bytes;
  };
  EXPECT_EQ(weight_bytes(tied, DecodeShare(32)) + matrix, weight_bytes(Llama8B(), DecodeShare(32)));
  const ProcessShare last = {{16, 32}, false, true};
  EXPECT_EQ(weight_bytes(tied, last), weight_bytes(Llama8B(), last));
}

TEST(MemoryPlanTest, FamiliesAddBiasesAndNorms) {
  ModelShape qwen2 = Llama8B();
  qwen2.qkv_bias = true;
  ModelShape qwen3 = Llama8B();
  qwen3.qk_norm = true;
  const ProcessShare one_layer = {{1, 2}, false, false};
  const int64_t plain = PlanMemory(Llama8B(), one_layer, 64, 64)->weight_bytes;
  EXPECT_EQ(PlanMemory(qwen2, one_layer, 64, 64)->weight_bytes - plain, 2 * (32 + 16) * 128);
  EXPECT_EQ(PlanMemory(qwen3, one_layer, 64, 64)->weight_bytes - plain, 2 * 2 * 128);
}

TEST(MemoryPlanTest, PagesRoundDown) {
  const auto plan = PlanMemory(Llama8B(), DecodeShare(32), 64, 1000);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->pages, 15);
  EXPECT_EQ(plan->capacity_tokens, 960);
}

TEST(MemoryPlanTest, LongestPromptIsTheTightestLimit) {
  MemoryPlan small;
  small.capacity_tokens = 960;
  MemoryPlan large;
  large.capacity_tokens = 65536;
  EXPECT_EQ(LongestPrompt({large, small, large}, 8192), 960);
  EXPECT_EQ(LongestPrompt({large}, 8192), 8191);
  EXPECT_EQ(LongestPrompt({large}, 0), 0);
}

TEST(MemoryPlanTest, RefusesWhatIsOutOfRange) {
  struct Row {
    const char* field;
    ModelShape shape;
    ProcessShare share;
    int64_t page_size;
    int64_t kv_cache_tokens;
  };
  const auto with = [](int64_t ModelShape::*member, int64_t value) {
    ModelShape shape = Llama8B();
    shape.*member = value;
    return shape;
  };
  const ProcessShare all = DecodeShare(32);
  ModelShape huge = Llama8B();
  huge.layers = int64_t{1} << 24;
  huge.kv_heads = huge.head_dim = int64_t{1} << 24;
  const Row rows[] = {
      {"layers", with(&ModelShape::layers, 0), all, 64, 64},
      {"hidden_size", with(&ModelShape::hidden_size, -1), all, 64, 64},
      {"vocab_size", with(&ModelShape::vocab_size, int64_t{1} << 40), all, 64, 64},
      {"kv_bytes", with(&ModelShape::kv_bytes, 9), all, 64, 64},
      {"page_size", Llama8B(), all, 0, 64},
      {"layers", Llama8B(), {{30, 33}, false, true}, 64, 64},
      {"layers", Llama8B(), {{0, 0}, false, true}, 64, 64},
      {"layers", Llama8B(), {{-1, 1}, false, true}, 64, 64},
      {"kv_cache_tokens", Llama8B(), all, 64, 63},
      {"layers", huge, DecodeShare(huge.layers), 64, 64},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.field);
    const auto plan = PlanMemory(row.shape, row.share, row.page_size, row.kv_cache_tokens);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(FieldOf(plan.status()), row.field);
  }
}

}  // namespace
}  // namespace baton::config
