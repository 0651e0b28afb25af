// What --cpu-numerics auto computes where the CPU multiplies bfloat16: near the exact numbers, and
// batch invariant as they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "common/engine/kernels/bf16_products.h"
#include "common/engine/testing/model_chain.h"
#include "common/engine/testing/rank_chain.h"

namespace baton {
namespace {

// Sizes that tiles don't divide.
std::string Model(const char* architecture, bool fp8 = false) {
  RandomModelOptions model;
  model.fp8 = fp8;
  model.architecture = architecture;
  model.dtype = DType::kBF16;
  model.hidden_size = 144;
  model.intermediate_size = 296;
  model.num_attention_heads = 8;
  model.num_key_value_heads = 4;
  model.head_dim = 32;
  return ModelPath(std::string(fp8 ? "numerics-fp8-" : "numerics-") + architecture, model);
}

ExecutorOptions OptionsOf(const std::string& path, CpuNumerics numerics) {
  ExecutorOptions options = OptionsFor(path);
  options.numerics = numerics;
  return options;
}

std::vector<float> Logits(const ExecutorOptions& options, std::vector<int> cuts = {0}) {
  return Chain(options, std::move(cuts)).Append(0, RandomPrompt(100));
}

class DenseNumericsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kernels::FastestBf16Products() == nullptr) GTEST_SKIP() << "float32 is the fastest here";
  }
};

class NumericsTest : public DenseNumericsTest, public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Families, NumericsTest,
                         ::testing::Values("Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
                                           "Gemma2ForCausalLM", "DeepseekV3ForCausalLM"));

// In a dense model: in a sparse one rounding has tokens choose other experts.
TEST_F(DenseNumericsTest, AutoIsAsNearToFloat32AsRoundedActivationsAre) {
  const std::string path = Model("Qwen3ForCausalLM");
  ExecutorOptions wide = OptionsOf(path, CpuNumerics::kAuto);
  wide.dtype = ElementType::kFloat32;
  EXPECT_EQ(NumericsOf(wide, ElementType::kFloat32), "") << "float32 weights stay exact";
  const std::vector<float> expected = Logits(wide);
  const std::vector<float> exact = Logits(OptionsOf(path, CpuNumerics::kExact));
  const std::vector<float> fast = Logits(OptionsOf(path, CpuNumerics::kAuto));
  EXPECT_NE(fast, exact);
  EXPECT_LT(RelativeDistance(fast, expected), 0.03f);
  EXPECT_LT(RelativeDistance(fast, exact), 0.03f);
}

void ExpectBitsOfTheTokens(const std::string& path) {
  const ExecutorOptions options = OptionsOf(path, CpuNumerics::kAuto);
  const std::vector<float> expected = Logits(options);
  EXPECT_EQ(Logits(options, {0, 2}), expected) << "stages";
  const std::vector<int32_t> prompt = RandomPrompt(100);
  Chain chunks(options, {0});
  std::vector<float> logits;
  for (int begin = 0; begin < 100;) {
    const int count = std::min(begin == 0 ? 1 : begin, 100 - begin);  // 1, 1, 2, 4, ...
    logits = chunks.Append(
        0, std::vector<int32_t>(prompt.begin() + begin, prompt.begin() + begin + count));
    begin += count;
  }
  EXPECT_EQ(logits, expected) << "chunks";
  ExecutorOptions threads = options;
  threads.threads = 3;
  EXPECT_EQ(Logits(threads), expected);
}

TEST_P(NumericsTest, BitsDependOnTheTokensAlone) {
  ExpectBitsOfTheTokens(Model(GetParam()));
  ExpectBitsOfTheTokens(Model(GetParam(), /*fp8=*/true));
}

TEST_F(DenseNumericsTest, Fp8IsNearItsFloat32Values) {
  const std::string path = Model("Qwen3ForCausalLM", /*fp8=*/true);
  const std::vector<float> exact = Logits(OptionsOf(path, CpuNumerics::kExact));
  const std::vector<float> fast = Logits(OptionsOf(path, CpuNumerics::kAuto));
  EXPECT_LT(RelativeDistance(fast, exact), 0.03f);
}

TEST_F(DenseNumericsTest, RanksComputeNearlyTheSame) {
  const ExecutorOptions options = OptionsOf(Model("Qwen3ForCausalLM"), CpuNumerics::kAuto);
  const std::vector<int32_t> prompt = RandomPrompt(100);
  testing::RankChain alone(options, {0}, 1);
  testing::RankChain two(options, {0}, 2);
  EXPECT_LT(RelativeDistance(two.Logits(prompt, 0), alone.Logits(prompt, 0)), 0.03f);
}

}  // namespace
}  // namespace baton
