// Ranks that share a model's layers beside Hugging Face's numbers, in both element types;
// tests/parity/make_model_fixtures.py makes the fixtures.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "common/engine/testing/rank_chain.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using Json = nlohmann::json;
using testing::RankChain;

constexpr float kTolerance = 1e-4f;  // Relative to the largest logit, as parity_test's.
constexpr float kBf16Tie = 0.05f;

float Largest(const std::vector<float>& logits) {
  float largest = 0;
  for (const float logit : logits) largest = std::max(largest, std::fabs(logit));
  return largest;
}

int32_t Argmax(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

ExecutorOptions FixtureOptions(const std::string& family, ElementType dtype,
                               Backend backend = Backend::kNative) {
  ExecutorOptions options;
  options.backend = backend;
  options.model_path = "common/engine/testdata/parity/" + family;
  options.page_size = 16;
  options.page_count = 64;
  options.dtype = dtype;
  return options;
}

Json Cases(const std::string& family) {
  Json expected;
  std::ifstream("common/engine/testdata/parity/" + family + "/expected.json") >> expected;
  EXPECT_FALSE(expected["cases"].empty());
  return expected["cases"];
}

// Where stages begin, and the ranks of each.
struct Grid {
  std::string name;
  std::vector<int> cuts;
  int tp_size;
  Backend backend = Backend::kNative;
  friend void PrintTo(const Grid& grid, std::ostream* out) { *out << grid.name; }
};
const Grid kGrids[] = {{"pp1_tp2", {0}, 2},  // parity_test has one rank.
                       {"pp1_tp4", {0}, 4},
                       {"pp2_tp2", {0, 3}, 2},  // Uneven, like the next.
                       {"pp3_tp2", {0, 1, 3}, 2},
                       {"torch_pp1_tp4", {0}, 4, Backend::kTorch}};
constexpr const char* kFamilies[] = {"llama3", "qwen2", "qwen3"};

class TensorParallelParityTest : public ::testing::TestWithParam<std::tuple<const char*, Grid>> {
 protected:
  std::string family() const { return std::get<0>(GetParam()); }
  RankChain Chain(ElementType dtype) const {
    const Grid& grid = std::get<1>(GetParam());
    return RankChain(FixtureOptions(family(), dtype, grid.backend), grid.cuts, grid.tp_size);
  }
};

INSTANTIATE_TEST_SUITE_P(Grids, TensorParallelParityTest,
                         ::testing::Combine(::testing::ValuesIn(kFamilies),
                                            ::testing::ValuesIn(kGrids)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });

TEST_P(TensorParallelParityTest, LogitsAndGreedyTokensAreHuggingFaces) {
  RankChain chain = Chain(ElementType::kFloat32);
  for (const auto& fixture : Cases(family())) {
    const auto prompt = fixture["prompt"].get<std::vector<int32_t>>();
    const auto expected = fixture["greedy"].get<std::vector<int32_t>>();
    std::map<int, std::vector<float>> by_position;
    for (const auto& [key, logits] : fixture["logits"].items()) {
      by_position[std::stoi(key)] = logits.get<std::vector<float>>();
    }
    int prefix = 0;
    std::vector<float> logits;
    for (const auto& [position, wanted] : by_position) {
      const auto count = static_cast<size_t>(position + 1 - prefix);
      logits = chain.Logits(std::span(prompt).subspan(static_cast<size_t>(prefix), count), prefix);
      for (size_t id = 0; id < wanted.size(); ++id) {
        ASSERT_NEAR(logits[id], wanted[id], kTolerance * Largest(wanted))
            << "position " << position << ", token " << id;
      }
      prefix = position + 1;
    }
    ASSERT_EQ(static_cast<size_t>(prefix), prompt.size());
    std::vector<int32_t> tokens;
    while (tokens.size() < expected.size()) {
      tokens.push_back(Argmax(logits));
      logits = chain.Logits(std::span(tokens).last(1), prefix++);
    }
    EXPECT_EQ(tokens, expected);
  }
}

// Along Hugging Face's own tokens; parity_test.cc says why, and what a near tie is.
TEST_P(TensorParallelParityTest, Bf16TokensAreHuggingFacesButForNearTies) {
  RankChain chain = Chain(ElementType::kBFloat16);
  int ties = 0;
  for (const auto& fixture : Cases(family())) {
    const auto prompt = fixture["prompt"].get<std::vector<int32_t>>();
    const auto expected = fixture["bfloat16"]["greedy"].get<std::vector<int32_t>>();
    std::vector<float> logits = chain.Logits(prompt, 0);
    int length = static_cast<int>(prompt.size());
    for (const int32_t& token : expected) {
      const int32_t best = Argmax(logits);
      if (best != token) {
        ++ties;
        const float lead = logits[static_cast<size_t>(best)] - logits[static_cast<size_t>(token)];
        EXPECT_LT(lead, kBf16Tie * Largest(logits)) << "step " << length - prompt.size();
      }
      logits = chain.Logits(std::span(&token, 1), length++);
    }
  }
  RecordProperty("near_ties", ties);
  // libtorch rounds what is summed as well.
  EXPECT_LE(ties, std::get<1>(GetParam()).backend == Backend::kNative ? 6 : 10);
}

}  // namespace
}  // namespace baton
