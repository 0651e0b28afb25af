#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "common/base/random.h"
#include "common/engine/attention/host_kv_memory.h"
#include "common/engine/executors/threaded_executor.h"

namespace baton {
namespace {

constexpr int kVocab = 5000;

// Parts of a loop on threads of their own.
class Threads : public StageModel {
 public:
  explicit Threads(int threads) : threads_(threads) { config_.vocab_size = kVocab; }
  const ModelConfig& config() const override { return config_; }
  const KvGeometry& kv() const override { return kv_; }
  KvMemory& kv_memory() override { return kv_memory_; }
  absl::Status Forward(const Batch&, const TensorView&, const TensorView&,
                       std::span<float>) override {
    return absl::UnimplementedError("");
  }
  int threads() const override { return threads_; }
  void ParallelFor(int count, const std::function<void(int, int)>& body) override {
    std::vector<std::thread> parts;
    parts.reserve(static_cast<size_t>(threads_));
    for (int i = 0; i < threads_; ++i) {
      parts.emplace_back([=, this] { body(i * count / threads_, (i + 1) * count / threads_); });
    }
    for (std::thread& part : parts) part.join();
  }

 private:
  const int threads_;
  ModelConfig config_;
  KvGeometry kv_;
  HostKvMemory kv_memory_{kv_, {}};
};

TEST(RowSamplerTest, RowsDoNotDependOnThreadsOrCompany) {
  Random random(3);
  constexpr int kRows = 7;
  std::vector<float> logits(kRows * size_t{kVocab});
  for (float& logit : logits) logit = static_cast<float>(6 * random.Uniform());
  SamplingParams params;
  params.top_p = 0.9;
  std::vector<Sampler::Row> rows;
  rows.reserve(kRows);
  for (int i = 0; i < kRows; ++i) {
    rows.push_back({std::span(logits).subspan(i * size_t{kVocab}, kVocab), &params, 5, i, nullptr});
  }
  logits[3 * size_t{kVocab}] = std::numeric_limits<float>::quiet_NaN();
  for (const int threads : {1, 2, 3, 16}) {
    Threads model(threads);
    RowSampler sampler(&model);
    for (size_t count : {kRows, 1, 4}) {
      const auto tokens = sampler.Draw(std::vector(rows.begin(), rows.begin() + count));
      ASSERT_EQ(tokens.size(), count);
      for (size_t i = 0; i < count; ++i) {
        const auto alone = Sampler(kVocab).Sample(rows[i]);
        ASSERT_EQ(tokens[i].ok(), alone.ok());
        EXPECT_EQ(tokens[i].ok(), i != 3) << "its error is its own";
        if (alone.ok()) {
          EXPECT_EQ(tokens[i]->token, alone->token) << "row " << i;
        }
      }
    }
  }
}

TEST(RowSamplerTest, ReportsEachTokenInItsRow) {
  std::vector<float> logits(3 * size_t{kVocab}, -100);
  for (size_t row = 0; row < 3; ++row) {
    logits[row * kVocab + 10 * row] = std::log(0.75F);
    logits[row * kVocab + 1] = std::log(0.25F);
  }
  Threads model(2);
  RowSampler sampler(&model);
  const auto reports = sampler.Report(logits, std::vector<int32_t>{0, 1, 20}, 1);
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_NEAR(reports[0]->logprob, std::log(0.75), 1e-6);
  EXPECT_NEAR(reports[1]->logprob, std::log(0.25), 1e-6);
  EXPECT_NEAR(reports[2]->logprob, std::log(0.75), 1e-6);
  EXPECT_EQ(reports[1]->token, 1);
  EXPECT_EQ(reports[1]->top[0].token, 10);
}

}  // namespace
}  // namespace baton
