// libtorch's layers beside Baton's own: close in every logit, whatever the batch and the cuts, and
// the KV of one is the KV of the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/engine/testing/model_chain.h"
#include "common/engine/testing/rank_chain.h"
#include "common/engine/torch/torch_backend.h"

namespace baton {
namespace {

using testing::RankChain;

ExecutorOptions Torch(ExecutorOptions options) {
  options.backend = Backend::kTorch;
  return options;
}

void ExpectClose(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  float largest = 0;
  for (const float logit : expected) largest = std::max(largest, std::fabs(logit));
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], 1e-4F * largest) << i;
  }
}

TEST(TorchStageModelTest, ChunksAndDecodeRowsOfOneBatchAreCloseToTheNativeOnes) {
  Chain native(OptionsFor(SmallModel()), {0});
  Chain torch(Torch(OptionsFor(SmallModel())), {0, 1, 4});
  const auto first = RandomPrompt(70, 1);
  const auto second = RandomPrompt(33, 2);
  ExpectClose(torch.Append(0, std::span(first).first(20)),
              native.Append(0, std::span(first).first(20)));
  // A chunk that continues, a whole prompt, then rows of both together.
  for (int round = 0; round < 2; ++round) {
    const std::vector<std::pair<int, std::span<const int32_t>>> parts =
        round == 0
            ? std::vector<std::pair<int, std::span<const int32_t>>>{{0, std::span(first).subspan(
                                                                            20, 40)},
                                                                    {1, second}}
            : std::vector<std::pair<int, std::span<const int32_t>>>{
                  {1, std::span(first).first(1)}, {0, std::span(first).subspan(60)}};
    const auto actual = torch.AppendAll(parts);
    const auto expected = native.AppendAll(parts);
    for (size_t i = 0; i < parts.size(); ++i) ExpectClose(actual[i], expected[i]);
  }
}

TEST(TorchStageModelTest, NativeDecodeContinuesFromItsPages) {
  ExecutorOptions options = OptionsFor(SmallModel());
  Chain torch(Torch(options), {0});
  Chain native(options, {0});
  Chain reference(options, {0});
  const auto prompt = RandomPrompt(40);
  torch.Append(0, prompt);
  reference.Append(0, prompt);
  native.Append(0, RandomPrompt(40, 99));  // The same pages, other contents.
  for (int page = 0; page < options.page_count; ++page) {
    const auto from = PageOf(torch.stage(0), page);
    std::copy(from.begin(), from.end(), PageOf(native.stage(0), page).begin());
  }
  const int32_t token = 9;
  ExpectClose(native.Append(0, std::span(&token, 1)), reference.Append(0, std::span(&token, 1)));
}

TEST(TorchStageModelTest, AllLogitsOfASliceComeInOrder) {
  ExecutorOptions options = OptionsFor(SmallModel());
  const auto native = LoadStageModel(options);
  const auto torch = LoadStageModel(Torch(options));
  ASSERT_TRUE(native.ok() && torch.ok()) << native.status() << torch.status();
  const auto tokens = RandomPrompt(50);
  const std::vector<int32_t> pages = {3, 1, 2, 0};
  const auto all = [&](StageModel& model) {
    std::vector<float> told;
    SequenceSlice slice{tokens, 50, 0, pages, false};
    slice.on_logits = [&](int first, std::span<const float> logits) {
      EXPECT_EQ(told.size(), static_cast<size_t>(first * model.config().vocab_size));
      told.insert(told.end(), logits.begin(), logits.end());
    };
    EXPECT_TRUE(model.Forward({{slice}}, {}, {}, {}).ok());
    return told;
  };
  ExpectClose(all(**torch), all(**native));
}

// Ranks: sums whole or in chunks, activations whole or in slices, beside one native process.
TEST(TorchStageModelTest, RanksAreCloseToOneNativeProcessHoweverTheirSumsAreCut) {
  constexpr int kLayers = 6;
  const auto prompt = RandomPrompt(150);
  const int32_t token = 9;
  const auto run = [&](RankChain& chain) {
    chain.Logits(std::span(prompt).first(64), 0);
    return std::vector<std::vector<float>>{chain.Logits(std::span(prompt).subspan(64), 64),
                                           chain.Logits(std::span(&token, 1), 150)};
  };
  RankChain native(OptionsFor(SmallModel()), {0}, 1);
  const auto expected = run(native);
  for (const int tp_size : {2, 4}) {
    for (const int chunks : {1, 4, 0}) {  // 0: as measured.
      SCOPED_TRACE(absl::StrCat(tp_size, " ranks, ", chunks, " chunks"));
      ExecutorOptions options = Torch(OptionsFor(SmallModel()));
      options.row_parallel = {chunks, 16};
      options.slice_activations = chunks != 1;
      RankChain torch(options, {0, 4}, tp_size);
      EXPECT_EQ(torch.stage(1).rank(0).activation_columns(), chunks == 1 ? 64 : 64 / tp_size);
      const auto actual = run(torch);
      for (size_t i = 0; i < expected.size(); ++i) ExpectClose(actual[i], expected[i]);
      if (chunks == 0) continue;
      // Two sums a layer, of which a token's are not cut.
      EXPECT_EQ(torch.stage(1).all_reduces(), tp_size * (kLayers - 4) * 2 * (2 * chunks + 1));
    }
  }
}

TEST(TorchStageModelTest, Bf16RanksAreNearTheirOneProcess) {
  ExecutorOptions options = Torch(OptionsFor(SmallModel()));
  options.dtype = ElementType::kBFloat16;
  const auto prompt = RandomPrompt(40);
  RankChain whole(options, {0, 3}, 1);
  const std::vector<float> expected = whole.Logits(prompt, 0);
  options.slice_activations = true;
  options.row_parallel = {2, 1};
  RankChain ranks(options, {0, 3}, 2);
  const std::vector<float> actual = ranks.Logits(prompt, 0);
  float largest = 0;
  for (const float logit : expected) largest = std::max(largest, std::fabs(logit));
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], 0.05F * largest) << i;
  }
}

TEST(TorchStageModelTest, RefusesWhatTheOthersRefuse) {
  ExecutorOptions options = Torch(OptionsFor(SmallModel()));
  auto model = LoadStageModel(options);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<int32_t> tokens = {1, 300};
  const std::vector<int32_t> pages = {0};
  const absl::Status bad =
      (*model)->Forward({{SequenceSlice{tokens, 2, 0, pages, false}}}, {}, {}, {});
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  options.page_count = 0;
  EXPECT_EQ(LoadStageModel(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.page_count = 16;
  options.model_path += "-absent";
  EXPECT_EQ(LoadStageModel(options).status().code(), absl::StatusCode::kNotFound);
}

TEST(TorchStageModelTest, ADeviceThatIsNotThereIsNamedBesideWhatIs) {
  const auto plugin = LoadTorchPlugin();
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  ExecutorOptions options = Torch(OptionsFor(SmallModel()));
  options.device = "cuda:64";
  const absl::Status refused = LoadStageModel(options).status();
  EXPECT_EQ(refused.code(), (*plugin)->has_cuda() ? absl::StatusCode::kFailedPrecondition
                                                  : absl::StatusCode::kUnimplemented);
  const std::string expected = absl::StrCat(
      "asked for device cuda:64; libtorch ", (*plugin)->libtorch,
      (*plugin)->has_cuda() ? " with CUDA finds " : " of this build computes on the CPU");
  EXPECT_EQ(refused.message().substr(0, expected.size()), expected);
  options.device = "abacus";
  EXPECT_FALSE(LoadStageModel(options).ok());
  options.backend = Backend::kNative;
  options.device = "cuda";
  EXPECT_EQ(LoadStageModel(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
