// Logits and greedy tokens of tiny random models beside what Hugging Face computes for them;
// tests/parity/make_model_fixtures.py makes the fixtures.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/engine/stage_model.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

constexpr char kFixtures[] = "common/engine/testdata/parity/";
constexpr float kTolerance = 1e-4f;  // Relative to the largest logit.

class ParityTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ExecutorOptions options;
    options.model_path = std::string(kFixtures) + GetParam();
    options.page_size = 16;
    options.page_count = 64;
    auto model = LoadStageModel(options);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    pages_.resize(64);
    std::iota(pages_.begin(), pages_.end(), 0);
    std::ifstream(options.model_path + "/expected.json") >> expected_;
    ASSERT_FALSE(expected_["cases"].empty());
  }

  // The logits after `tokens`, whose KV goes behind the `prefix` tokens already there.
  std::vector<float> Logits(std::span<const int32_t> tokens, int prefix) {
    std::vector<float> logits(static_cast<size_t>(model_->config().vocab_size));
    const SequenceSlice slice = {tokens, static_cast<int>(tokens.size()), prefix, pages_, true};
    const absl::Status status = model_->Forward({{slice}}, {}, {}, logits);
    EXPECT_TRUE(status.ok()) << status;
    return logits;
  }

  std::unique_ptr<StageModel> model_;
  std::vector<int32_t> pages_;
  nlohmann::json expected_;
};

TEST_P(ParityTest, LogitsAgree) {
  for (const auto& fixture : expected_["cases"]) {
    const auto prompt = fixture["prompt"].get<std::vector<int32_t>>();
    int prefix = 0;
    // In the order of positions, each continuing from the one before.
    std::vector<int> positions;
    for (const auto& [key, logits] : fixture["logits"].items()) positions.push_back(std::stoi(key));
    std::sort(positions.begin(), positions.end());
    for (const int position : positions) {
      const auto expected = fixture["logits"][std::to_string(position)].get<std::vector<float>>();
      const auto tokens = std::span(prompt).subspan(static_cast<size_t>(prefix),
                                                    static_cast<size_t>(position + 1 - prefix));
      const std::vector<float> actual = Logits(tokens, prefix);
      prefix = position + 1;
      float largest = 0;
      for (const float logit : expected) largest = std::max(largest, std::fabs(logit));
      for (size_t id = 0; id < actual.size(); ++id) {
        ASSERT_NEAR(actual[id], expected[id], kTolerance * largest)
            << "position " << position << ", token " << id;
      }
    }
  }
}

TEST_P(ParityTest, GreedyTokensAreTheSame) {
  for (const auto& fixture : expected_["cases"]) {
    const auto prompt = fixture["prompt"].get<std::vector<int32_t>>();
    const auto expected = fixture["greedy"].get<std::vector<int32_t>>();
    std::vector<int32_t> tokens;
    std::vector<float> logits = Logits(prompt, 0);
    int length = static_cast<int>(prompt.size());
    while (tokens.size() < expected.size()) {
      const auto best = std::max_element(logits.begin(), logits.end());
      tokens.push_back(static_cast<int32_t>(best - logits.begin()));
      logits = Logits(std::span(tokens).last(1), length++);
    }
    EXPECT_EQ(tokens, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ParityTest, testing::Values("llama3", "qwen2", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace baton
