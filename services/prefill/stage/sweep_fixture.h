// An executor for tests of sweeps, which takes as long as a cost says.
#ifndef SERVICES_PREFILL_STAGE_SWEEP_FIXTURE_H_
#define SERVICES_PREFILL_STAGE_SWEEP_FIXTURE_H_

#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "common/engine/attention/host_kv_memory.h"
#include "services/prefill/stage/cost_sweep.h"

namespace baton::prefill::sweep_testing {

inline constexpr StageCost kCost = {.overhead_us = 500, .token_us = 50, .attention_us = 0.02};
inline constexpr int kPage = 16;
inline constexpr SweepLimits kLimits = {
    .max_chunk_tokens = 512, .max_context_tokens = 4096, .budget_us = 600'000'000};

// Says of every step that it took what a cost says, at once, and notes what it was asked for.
class FakeExecutor final : public Executor {
 public:
  FakeExecutor(int layer_begin, int layer_end, int pages = 256) {
    config_.num_hidden_layers = 4;
    config_.hidden_size = 8;
    config_.vocab_size = 100;
    kv_.layer_begin = layer_begin;
    kv_.layer_end = layer_end;
    kv_.page_size = kPage;
    kv_.page_count = pages;
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

}  // namespace baton::prefill::sweep_testing

#endif  // SERVICES_PREFILL_STAGE_SWEEP_FIXTURE_H_
