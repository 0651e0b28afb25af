#include "common/engine/stage_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/engine/create_executor.h"
#include "common/engine/testing/model_chain.h"

namespace baton {
namespace {

int32_t Argmax(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// The logits after a prompt of 150 tokens, fed `chunk` at a time, and of 8 greedy steps.
std::vector<std::vector<float>> RunCut(const ExecutorOptions& options, std::vector<int> cuts,
                                       int chunk) {
  Chain chain(options, std::move(cuts));
  const std::vector<int32_t> prompt = RandomPrompt(150);
  std::vector<std::vector<float>> logits(1);
  for (size_t begin = 0; begin < prompt.size(); begin += static_cast<size_t>(chunk)) {
    const size_t count = std::min(static_cast<size_t>(chunk), prompt.size() - begin);
    logits[0] = chain.Append(0, std::span(prompt).subspan(begin, count));
  }
  for (int step = 0; step < 8; ++step) {
    const int32_t token = Argmax(logits.back());
    logits.push_back(chain.Append(0, std::span(&token, 1)));
  }
  return logits;
}

std::vector<std::vector<float>> RunWhole(const ExecutorOptions& options) {
  return RunCut(options, {0}, 150);
}

void ExpectClose(const std::vector<std::vector<float>>& actual,
                 const std::vector<std::vector<float>>& expected, float tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    float scale = 0;
    for (const float logit : expected[i]) scale = std::max(scale, std::fabs(logit));
    for (size_t j = 0; j < actual[i].size(); ++j) {
      ASSERT_NEAR(actual[i][j], expected[i][j], tolerance * scale) << "step " << i << ", id " << j;
    }
  }
}

// What must not change a bit, whatever the types of weights and activations and of KV.
class InvarianceTest : public testing::TestWithParam<std::tuple<ElementType, ElementType>> {
 protected:
  static ExecutorOptions Options(const std::string& model_path = SmallModel()) {
    ExecutorOptions options = OptionsFor(model_path);
    std::tie(options.dtype, options.kv_dtype) = GetParam();
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Types, InvarianceTest,
                         testing::Combine(testing::ValuesIn(kElementTypes),
                                          testing::ValuesIn(kElementTypes)),
                         [](const auto& info) {
                           return std::string(ElementTypeName(std::get<0>(info.param))) + "_kv_" +
                                  ElementTypeName(std::get<1>(info.param));
                         });

TEST_P(InvarianceTest, StagesChangeNoBit) {
  const ExecutorOptions options = Options();
  const auto expected = RunWhole(options);
  EXPECT_EQ(RunCut(options, {0, 3}, 150), expected);
  EXPECT_EQ(RunCut(options, {0, 1, 5}, 150), expected);
  EXPECT_EQ(RunCut(options, {0, 1, 2, 3, 4, 5}, 150), expected);
}

TEST_P(InvarianceTest, ChunksChangeNoBit) {
  const ExecutorOptions options = Options();
  const auto expected = RunWhole(options);
  for (const int chunk : {1, 7, 64, 149}) {
    EXPECT_EQ(RunCut(options, {0, 2}, chunk), expected) << chunk;
  }
}

TEST_P(InvarianceTest, PagesThreadsAndShardsChangeNoBit) {
  const ExecutorOptions options = Options();
  const auto expected = RunWhole(options);
  for (const int page_size : {32, 48, 64, 256}) {
    ExecutorOptions paged = options;
    paged.page_size = page_size;
    EXPECT_EQ(RunWhole(paged), expected) << page_size;
  }
  ExecutorOptions threaded = options;
  threaded.threads = 3;
  EXPECT_EQ(RunWhole(threaded), expected);

  RandomModelOptions sharded;
  sharded.num_hidden_layers = 6;
  sharded.shards = 5;
  EXPECT_EQ(RunWhole(Options(ModelPath("sharded", sharded))), expected);
}

TEST_P(InvarianceTest, CompanyChangesNoBit) {
  const ExecutorOptions options = Options();
  const std::vector<int32_t> prompts[] = {RandomPrompt(150, 1), RandomPrompt(3, 2),
                                          RandomPrompt(16, 3), RandomPrompt(1, 4)};
  Chain together(options, {0, 3});
  std::vector<std::pair<int, std::span<const int32_t>>> parts = {
      {0, prompts[0]}, {1, prompts[1]}, {2, prompts[2]}, {3, prompts[3]}};
  const auto prefill = together.AppendAll(parts);
  const int32_t tokens[] = {5, 6, 7, 8};
  for (int i = 0; i < 4; ++i) parts[static_cast<size_t>(i)].second = std::span(&tokens[i], 1);
  const auto decode = together.AppendAll(parts);
  for (int i = 0; i < 4; ++i) {
    Chain alone(options, {0, 3});
    EXPECT_EQ(alone.Append(i, prompts[i]), prefill[static_cast<size_t>(i)]);
    EXPECT_EQ(alone.Append(i, std::span(&tokens[i], 1)), decode[static_cast<size_t>(i)]);
  }
}

TEST_P(InvarianceTest, BatchLargerThanOneBlockOfRowsEqualsItsParts) {
  const ExecutorOptions options = Options();
  const std::vector<int32_t> prompt = RandomPrompt(700);
  Chain whole(options, {0});
  Chain parts(options, {0});
  const auto expected = whole.Append(0, prompt);
  parts.Append(0, std::span(prompt).first(123));
  EXPECT_EQ(parts.Append(0, std::span(prompt).subspan(123)), expected);
}

// More rows than an expert's buffers hold, and more than go through a sparse layer together.
TEST_P(InvarianceTest, ExpertsWindowsAndLatentRowsChangeNoBitWhateverTheCut) {
  RandomModelOptions sparse;
  sparse.architecture = "Qwen3MoeForCausalLM";
  sparse.mlp_only_layers = {2};
  RandomModelOptions windowed;
  windowed.architecture = "MixtralForCausalLM";
  windowed.sliding_window = 100;
  RandomModelOptions latent;
  latent.architecture = "DeepseekV3ForCausalLM";
  RandomModelOptions whole_norms;
  whole_norms.architecture = "MiniMaxM2ForCausalLM";
  RandomModelOptions two_kinds = windowed;  // Layers of two kinds.
  two_kinds.architecture = "Gemma2ForCausalLM";
  RandomModelOptions two_ropes = windowed;
  two_ropes.architecture = "Gemma3ForCausalLM";
  for (const auto& [name, model] : {std::pair{"sparse", sparse},
                                    {"windowed", windowed},
                                    {"latent", latent},
                                    {"whole-norms", whole_norms},
                                    {"two-kinds", two_kinds},
                                    {"two-ropes", two_ropes}}) {
    ExecutorOptions options = Options(ModelPath(name, model));
    options.page_count = 192;
    const auto expected = RunWhole(options);
    EXPECT_EQ(RunCut(options, {0, 1, 3}, 150), expected);
    for (const int chunk : {1, 37, 149}) EXPECT_EQ(RunCut(options, {0, 2}, chunk), expected);
    const std::vector<int32_t> prompt = RandomPrompt(2100);
    Chain whole(options, {0});
    Chain parts(options, {0});
    const auto long_text = whole.Append(0, prompt);
    parts.Append(0, std::span(prompt).first(2090));
    EXPECT_EQ(parts.Append(0, std::span(prompt).subspan(2090)), long_text);
    options.threads = 3;
    EXPECT_EQ(RunWhole(options), expected);
  }
}

TEST(StageModelTest, EveryFamilyAndVariantIsCloseToTheScalarReference) {
  for (const char* architecture :
       {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
        "MixtralForCausalLM", "MistralForCausalLM", "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM", "Glm4MoeForCausalLM", "MiniMaxM2ForCausalLM", "Phi3ForCausalLM",
        "GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration"}) {
    for (const bool tied : {false, true}) {
      RandomModelOptions model;
      model.architecture = architecture;
      model.tie_word_embeddings = tied;
      // Phi-3 has ropes of its own.
      model.llama3_rope_scaling = tied && std::string_view(architecture) != "Phi3ForCausalLM";
      model.sliding_window = tied ? 70 : 0;
      model.biases = std::string_view(architecture) == "LlamaForCausalLM";
      model.hidden_size = 72;  // No multiple of a vector.
      model.intermediate_size = 100;
      model.max_position_embeddings = 256;
      ExecutorOptions options =
          OptionsFor(ModelPath(std::string(architecture) + (tied ? "-tied" : ""), model));
      const auto fast = RunWhole(options);
      options.kernels = "scalar";
      ExpectClose(fast, RunWhole(options), 1e-4f);
      options.linear = LinearBackend::kTorch;
      ExpectClose(fast, RunWhole(options), 1e-4f);
    }
  }
}

// Coarse, as rounding every weight moves the logits; weight_conversion_test checks the conversion
// exactly.
TEST(StageModelTest, SixteenBitWeightsAreCloseToTheirFloat32) {
  const std::vector<int32_t> prompt = RandomPrompt(150);
  const auto logits_of = [&](const char* name, DType dtype) {
    RandomModelOptions model;
    model.dtype = dtype;
    return Chain(OptionsFor(ModelPath(name, model)), {0}).Append(0, prompt);
  };
  const auto expected = logits_of("f32", DType::kF32);
  ExpectClose({logits_of("f16", DType::kF16)}, {expected}, 0.03f);
  ExpectClose({logits_of("bf16", DType::kBF16)}, {expected}, 0.2f);
}

TEST(StageModelTest, GreedyTextOfRandomModelsVaries) {
  Chain chain(OptionsFor(SmallModel()), {0});
  std::vector<float> logits = chain.Append(0, RandomPrompt(20));
  std::set<int32_t> tokens;
  for (int step = 0; step < 64; ++step) {
    const int32_t token = Argmax(logits);
    tokens.insert(token);
    logits = chain.Append(0, std::span(&token, 1));
  }
  EXPECT_GE(tokens.size(), 16u);
}

TEST(StageModelTest, LogitsComeForTheSlicesThatWantThem) {
  const ExecutorOptions options = OptionsFor(SmallModel());
  Chain chain(options, {0});
  const std::vector<int32_t> prompt = RandomPrompt(10);
  const auto expected = chain.Append(0, prompt);
  const std::vector<int32_t> pages[] = {{0}, {1}};
  Batch batch;
  for (const auto& list : pages) {
    batch.slices.push_back({prompt, 10, 0, list, false});
  }
  batch.slices[1].wants_logits = true;
  std::vector<float> logits(expected.size());
  ASSERT_TRUE(chain.stage(0).Forward(batch, {}, {}, logits).ok());
  EXPECT_EQ(logits, expected);
  batch.slices[1].wants_logits = false;
  EXPECT_TRUE(chain.stage(0).Forward(batch, {}, {}, {}).ok());
}

// More rows than are told at once, in chunks, beside a slice that wants its last token's alone.
TEST(StageModelTest, AllLogitsOfASliceAreThoseOfEachTokenInTurn) {
  constexpr int kTokens = 70;
  const std::vector<int32_t> prompt = RandomPrompt(kTokens);
  Chain reference(OptionsFor(SmallModel()), {0});
  std::vector<std::vector<float>> expected;
  expected.reserve(prompt.size());
  for (const int32_t token : prompt) expected.push_back(reference.Append(0, std::vector{token}));
  Chain chain(OptionsFor(SmallModel()), {0});
  const std::vector<int32_t> pages[] = {{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}};
  std::vector<std::vector<float>> told;
  size_t most = 0;
  for (const auto& [begin, end] : std::vector<std::pair<int, int>>{{0, 48}, {48, kTokens}}) {
    SequenceSlice slice;
    slice.tokens =
        std::span(prompt).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    slice.token_count = end - begin;
    slice.prefix_length = begin;
    slice.pages = pages[0];
    slice.on_logits = [&, begin = begin](int first, std::span<const float> logits) {
      EXPECT_EQ(static_cast<size_t>(begin + first), told.size());
      const size_t vocab = expected[0].size();
      most = std::max(most, logits.size() / vocab);
      for (auto row = logits.begin(); row < logits.end(); row += static_cast<ptrdiff_t>(vocab)) {
        told.emplace_back(row, row + static_cast<ptrdiff_t>(vocab));
      }
    };
    SequenceSlice other = slice;
    other.pages = pages[1];
    other.on_logits = nullptr;
    other.wants_logits = true;
    const Batch batch = {{other, slice}};
    std::vector<float> logits(expected[0].size());
    ASSERT_TRUE(chain.stage(0).Forward(batch, {}, {}, logits).ok());
    EXPECT_EQ(logits, expected[static_cast<size_t>(end) - 1]);
  }
  EXPECT_EQ(told, expected);
  EXPECT_LT(most, 48u) << "never all at once";
}

TEST_P(InvarianceTest, KvPagesHoldWhatAnotherModelContinuesFrom) {
  const ExecutorOptions options = Options();
  Chain prefill(options, {0, 2});
  Chain decode(options, {0});
  Chain reference(options, {0});
  const std::vector<int32_t> prompt = RandomPrompt(40);
  prefill.Append(0, prompt);
  reference.Append(0, prompt);
  decode.Append(0, RandomPrompt(40, 99));  // The same pages, other contents.
  const KvGeometry& whole = decode.stage(0).kv();
  for (int page = 0; page < whole.page_count; ++page) {
    std::byte* to = PageOf(decode.stage(0), page).data();
    for (const size_t stage : {size_t{0}, size_t{1}}) {
      const std::span<const std::byte> from = PageOf(prefill.stage(stage), page);
      std::memcpy(to, from.data(), from.size());
      to += from.size();
    }
  }
  const int32_t token = 9;
  EXPECT_EQ(decode.Append(0, std::span(&token, 1)), reference.Append(0, std::span(&token, 1)));
}

TEST(StageModelTest, ReportsProgressUpToOne) {
  ExecutorOptions options = OptionsFor(SmallModel());
  std::vector<double> fractions;
  options.on_progress = [&](double fraction) { fractions.push_back(fraction); };
  for (const int layer_end : {2, 6}) {
    fractions.clear();
    options.layer_begin = layer_end - 2;
    options.layer_end = layer_end;
    ASSERT_TRUE(LoadStageModel(options).ok());
    ASSERT_FALSE(fractions.empty());
    EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
    EXPECT_EQ(fractions.back(), 1.0);
  }
}

}  // namespace
}  // namespace baton
