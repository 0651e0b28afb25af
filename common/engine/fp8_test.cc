// Weights that stay FP8 compute the bits of the float32 values that they are worth, however they
// are cut.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/engine/testing/model_chain.h"
#include "common/engine/testing/rank_chain.h"
#include "common/model/testing/model_directory.h"

namespace baton {
namespace {

// Sizes whose blocks are ragged, and which two and four ranks cut inside a block.
RandomModelOptions Shape(const char* architecture) {
  RandomModelOptions model;
  model.architecture = architecture;
  model.hidden_size = 144;
  model.intermediate_size = 296;
  model.moe_intermediate_size = 136;
  model.num_attention_heads = 8;
  model.num_key_value_heads = 4;
  model.head_dim = 32;
  model.num_experts = 4;
  model.mlp_only_layers = {1};
  model.num_hidden_layers = 3;
  return model;
}

using Scales = RandomModelOptions::Scales;

class Fp8Test : public ::testing::TestWithParam<std::tuple<const char*, Scales>> {
 protected:
  static ExecutorOptions Options(bool widened) {
    const auto& [architecture, scales] = GetParam();
    RandomModelOptions model = Shape(architecture);
    model.fp8_scales = scales;
    (widened ? model.fp8_widened : model.fp8) = true;
    return OptionsFor(ModelPath(
        absl::StrCat(architecture, static_cast<int>(scales), widened ? "-wide" : "-fp8"), model));
  }
  static std::vector<float> Logits(const ExecutorOptions& options, const std::vector<int>& cuts,
                                   int ranks) {
    testing::RankChain chain(options, cuts, ranks);
    std::vector<float> logits = chain.Logits(RandomPrompt(230), 0);
    const int32_t token = 7;
    const std::vector<float> next = chain.Logits(std::span(&token, 1), 230);
    logits.insert(logits.end(), next.begin(), next.end());
    return logits;
  }
};

INSTANTIATE_TEST_SUITE_P(
    Families, Fp8Test,
    ::testing::Combine(::testing::Values("Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
                                         "DeepseekV3ForCausalLM", "MiniMaxM2ForCausalLM",
                                         "Phi3ForCausalLM", "Gemma3ForCausalLM"),
                       ::testing::Values(Scales::kBlocks, Scales::kRows, Scales::kTensor)));

TEST_P(Fp8Test, BitsAreThoseOfTheFloat32Values) {
  const std::vector<float> expected = Logits(Options(true), {0}, 1);
  EXPECT_EQ(Logits(Options(false), {0}, 1), expected);
  EXPECT_EQ(Logits(Options(false), {0, 1}, 1), expected);
  for (const int ranks : {2, 4}) {
    EXPECT_EQ(Logits(Options(false), {0, 2}, ranks), Logits(Options(true), {0, 2}, ranks)) << ranks;
  }
}

TEST_P(Fp8Test, LibtorchComputesWithTheFloat32Values) {
  const std::vector<float> expected = Logits(Options(true), {0}, 1);
  ExecutorOptions torch = Options(false);
  torch.backend = Backend::kTorch;
  ExecutorOptions linear = Options(false);
  linear.linear = LinearBackend::kTorch;
  for (const ExecutorOptions& options : {torch, linear}) {
    const std::vector<float> logits = Logits(options, {0}, 1);
    for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 2e-3f) << i;
  }
}

// What is wrong in the data, not in the header.
class BrokenFp8Test : public ::testing::Test {
 protected:
  std::string Refusal(const std::string& name, const std::string& tensor, size_t at,
                      const std::string& bytes) {
    RandomModelOptions model = Shape("Qwen3ForCausalLM");
    model.fp8 = true;
    const model_testing::ModelDirectory directory{ModelPath(name, model)};
    std::string file = model_testing::ReadFile(directory.File("model.safetensors"));
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof(length));
    const auto header = model_testing::Json::parse(file.substr(sizeof(length), length));
    const auto begin = header[tensor]["data_offsets"][0].get<size_t>();
    file.replace(sizeof(length) + length + begin + at, bytes.size(), bytes);
    model_testing::WriteFile(directory.File("model.safetensors"), file);
    const absl::Status status = LoadStageModel(OptionsFor(directory.path)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }
};

TEST_F(BrokenFp8Test, AScaleThatIsNotFiniteIsRefused) {
  const std::string tensor = "model.layers.1.mlp.down_proj.weight_scale_inv";
  EXPECT_THAT(Refusal("scale-nan", tensor, 4, std::string("\0\0\xc0\x7f", 4)),
              ::testing::HasSubstr(tensor + " has a scale that is not finite"));
}

TEST_F(BrokenFp8Test, AnElementThatIsNanIsRefused) {
  const std::string tensor = "model.layers.2.self_attn.o_proj.weight";
  EXPECT_THAT(Refusal("element-nan", tensor, 1000, "\xff"),
              ::testing::HasSubstr(tensor + " has an element that is NaN"));
}

}  // namespace
}  // namespace baton
