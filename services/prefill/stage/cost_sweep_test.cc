#include "services/prefill/stage/cost_sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <utility>

#include "common/engine/attention/host_kv_memory.h"

namespace baton::prefill {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr StageCost kCost = {.overhead_us = 500, .token_us = 50, .attention_us = 0.02};
constexpr int kPage = 16;
constexpr SweepLimits kLimits = {
    .max_chunk_tokens = 512, .max_context_tokens = 4096, .budget_us = 600'000'000};

// Says of every step that it took what a cost says, at once, and notes what it was asked for.
class FakeExecutor final : public Executor {
 public:
  FakeExecutor(int layer_begin, int layer_end) {
    config_.num_hidden_layers = 4;
    config_.hidden_size = 8;
    config_.vocab_size = 100;
    kv_.layer_begin = layer_begin;
    kv_.layer_end = layer_end;
    kv_.page_size = kPage;
    kv_.page_count = 256;
  }

  const ModelConfig& config() const override { return config_; }
  const KvGeometry& kv() const override { return kv_; }
  KvMemory& kv_memory() override { return kv_memory_; }
  ElementType activation_type() const override { return ElementType::kFloat32; }
  absl::StatusOr<MemoryBuffer> AllocateActivations(size_t bytes) override {
    return AllocateHost(bytes);
  }
  void Submit(Step step, std::function<void(StepResult)> done) override {
    const SequenceStep& sequence = step.sequences.at(0);
    EXPECT_FALSE(sequence.draw.has_value());
    EXPECT_EQ(sequence.prefix_length, tokens_) << "a prompt, chunk by chunk";
    EXPECT_EQ(sequence.tokens.size(), first_stage() ? size_t(sequence.token_count) : 0u);
    EXPECT_EQ(step.in.rows, first_stage() ? 0 : sequence.token_count);
    EXPECT_EQ(step.out.rows, last_stage() ? 0 : sequence.token_count);
    tokens_ += sequence.token_count;
    EXPECT_GE(sequence.pages.size() * kPage, static_cast<size_t>(tokens_));
    for (const int32_t page : sequence.pages) EXPECT_LT(page, kv_.page_count);
    chunks.push_back(sequence.token_count);
    StepResult result;
    result.status = status;
    const double micros = kCost.Micros(sequence.prefix_length, sequence.token_count);
    result.compute_us = static_cast<int64_t>(micros * (factor ? factor(chunks.size()) : 1));
    done(std::move(result));
  }
  int64_t running_since_us() const override { return 0; }
  void Stop() override {}

  std::function<double(size_t step)> factor;
  absl::Status status;
  std::vector<int> chunks;

 private:
  ModelConfig config_;
  KvGeometry kv_;
  HostKvMemory kv_memory_{kv_, {}};
  int tokens_ = 0;
};

TEST(CostSweepTest, FindsWhatChunksCostOnAnyStage) {
  for (const auto& [begin, end] : {std::pair(0, 2), std::pair(1, 3), std::pair(2, 4)}) {
    FakeExecutor executor(begin, end);
    // The first chunk pays for what is done once.
    executor.factor = [](size_t step) { return step == 1 ? 50 : 1; };
    const SweepResult result = SweepCosts(executor, kLimits);
    ASSERT_TRUE(result.cost.has_value()) << result.missing;
    EXPECT_THAT(executor.chunks, ElementsAre(16, 64, 256, 128, 64, 256, 128, 64, 256, 128));
    EXPECT_EQ(result.samples.size(), 9u);
    EXPECT_LT(result.cost->error, 0.02);
    for (const int tokens : {32, 512}) {
      for (const int prefix : {0, 1500}) {
        const double expected = kCost.Micros(prefix, tokens);
        EXPECT_NEAR(result.cost->cost.Micros(prefix, tokens), expected, 0.1 * expected);
      }
    }
  }
}

TEST(CostSweepTest, OneChunkThatIsHeldUpIsNoReasonToGiveUp) {
  FakeExecutor executor(0, 4);
  executor.factor = [](size_t step) { return step == 5 ? 1.6 : 1; };
  const SweepResult result = SweepCosts(executor, kLimits);
  ASSERT_TRUE(result.cost.has_value()) << result.missing;
  const double expected = kCost.Micros(500, 200);
  EXPECT_NEAR(result.cost->cost.Micros(500, 200), expected, 0.25 * expected);
}

TEST(CostSweepTest, WhatDoesNotFollowFromSizesIsNotUsed) {
  FakeExecutor executor(0, 4);
  executor.factor = [](size_t step) { return step % 2 == 0 ? 12 : 1; };
  const SweepResult result = SweepCosts(executor, kLimits);
  EXPECT_FALSE(result.cost.has_value());
  EXPECT_THAT(result.missing, HasSubstr("other times"));
}

TEST(CostSweepTest, BeginsNoChunkThatIsNotExpectedToEndInTime) {
  FakeExecutor slow(0, 4);
  SweepLimits limits = kLimits;
  limits.budget_us = 10;  // Less than any chunk takes.
  const SweepResult result = SweepCosts(slow, limits);
  EXPECT_EQ(slow.chunks.size(), 1u);
  EXPECT_FALSE(result.cost.has_value());
  EXPECT_THAT(result.missing, HasSubstr("only 0 chunks in the time"));
}

TEST(CostSweepTest, AnExecutorThatFailsIsToldOf) {
  FakeExecutor executor(0, 4);
  executor.status = absl::DataLossError("no such prompt");
  const SweepResult result = SweepCosts(executor, kLimits);
  EXPECT_FALSE(result.cost.has_value());
  EXPECT_EQ(result.missing, "no such prompt");
}

TEST(CostSweepTest, ChunksFitIntoContextAndPages) {
  const auto chunks = [](int pages, int chunk_tokens, int context) {
    return SweepChunks(
        kPage, pages,
        {.max_chunk_tokens = chunk_tokens, .max_context_tokens = context, .budget_us = 1});
  };
  EXPECT_EQ(chunks(256, 512, 4096).size(), 9u);
  EXPECT_EQ(chunks(256, 512, 1000).size(), 7u) << "the context ends";
  EXPECT_EQ(chunks(60, 512, 4096).size(), 6u) << "the pages end";
  EXPECT_THAT(chunks(40, 512, 4096), IsEmpty()) << "too few for four coefficients";
  EXPECT_THAT(chunks(256, 8 * kPage - 1, 4096), IsEmpty()) << "none is smaller than a page";
  for (const int pages : {56, 60, 61, 83, 84, 85, 1000}) {
    const std::vector<int> all = chunks(pages, 512, 4096);
    EXPECT_LE(std::accumulate(all.begin(), all.end(), kPage), pages * kPage);
  }
  FakeExecutor executor(0, 4);
  EXPECT_THAT(SweepCosts(executor, {.max_chunk_tokens = kPage, .max_context_tokens = 4096}).missing,
              HasSubstr("no room"));
}

}  // namespace
}  // namespace baton::prefill
