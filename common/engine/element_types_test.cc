// What --dtype and --kv-cache-dtype mean to the engine: which type is taken, what lies in memory,
// and what numbers come out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/testing/model_chain.h"
#include "common/model/testing/model_directory.h"

namespace baton {
namespace {

constexpr ElementType kWide = ElementType::kFloat32;
constexpr ElementType kNarrow = ElementType::kBFloat16;

std::string ModelOf(DType dtype, bool tied = false) {
  RandomModelOptions model;
  model.dtype = dtype;
  model.tie_word_embeddings = tied;
  return ModelPath(std::string("types-") + DTypeName(dtype) + (tied ? "-tied" : ""), model);
}

ExecutorOptions OptionsOf(const std::string& path, std::optional<ElementType> dtype = {},
                          std::optional<ElementType> kv_dtype = {}) {
  ExecutorOptions options = OptionsFor(path);
  options.dtype = dtype;
  options.kv_dtype = kv_dtype;
  return options;
}

std::vector<float> LogitsOf(const ExecutorOptions& options, std::vector<int> cuts = {0}) {
  return Chain(options, std::move(cuts)).Append(0, RandomPrompt(100));
}

TEST(ElementTypesTest, AutoIsTheCheckpointsTypeAndFloat32ForFloat16) {
  for (const auto& [stored, taken] :
       {std::pair{DType::kF32, kWide}, {DType::kF16, kWide}, {DType::kBF16, kNarrow}}) {
    const std::string path = ModelOf(stored);
    Chain chain(OptionsOf(path), {0});
    EXPECT_EQ(chain.stage(0).activation_type(), taken) << DTypeName(stored);
    EXPECT_EQ(chain.stage(0).kv().element_type, taken) << DTypeName(stored);
    EXPECT_EQ(LogitsOf(OptionsOf(path)), LogitsOf(OptionsOf(path, taken, taken)));
  }
}

TEST(ElementTypesTest, EachTypeIsChosenByItself) {
  const std::string path = ModelOf(DType::kBF16);
  for (const ElementType dtype : kElementTypes) {
    for (const ElementType kv_dtype : kElementTypes) {
      Chain chain(OptionsOf(path, dtype, kv_dtype), {0});
      EXPECT_EQ(chain.stage(0).activation_type(), dtype);
      EXPECT_EQ(chain.stage(0).kv().layout().bytes_per_element,
                static_cast<int>(ElementBytes(kv_dtype)));
      EXPECT_EQ(chain.stage(0).kv().PageBytes(),
                size_t{2} * 4 * 2 * 16 * 16 * ElementBytes(kv_dtype));  // K/V, layers, heads, ...
    }
  }
}

// The weights are the same numbers in either memory, so only activations are rounded.
TEST(ElementTypesTest, Bfloat16IsNearFloat32AndKvAloneNearer) {
  const std::string path = ModelOf(DType::kBF16);
  const auto exact = LogitsOf(OptionsOf(path, kWide, kWide));
  const float both = RelativeDistance(LogitsOf(OptionsOf(path, kNarrow, kNarrow)), exact);
  const float kv = RelativeDistance(LogitsOf(OptionsOf(path, kWide, kNarrow)), exact);
  EXPECT_GT(kv, 0);
  EXPECT_LT(kv, 0.02f);
  EXPECT_GT(both, 0);
  EXPECT_LT(both, 0.03f);
}

// In half the bytes; that they lose nothing is InvarianceTest's (stage_model_test.cc).
TEST(ElementTypesTest, ActivationsOfAnotherTypeAreRefused) {
  Chain chain(OptionsOf(ModelOf(DType::kBF16)), {0, 2});
  const std::vector<int32_t> prompt = RandomPrompt(20);
  const std::vector<int32_t> pages = {0, 1};
  std::vector<float> memory(size_t{20} * 64);
  const Batch batch = {{{prompt, 20, 0, pages, false}}};
  const TensorView wide = HostTensor(memory, 64);
  TensorView narrow = wide;
  narrow.type = kNarrow;
  narrow.memory = wide.memory.Sub(0, narrow.bytes());
  EXPECT_EQ(chain.stage(0).Forward(batch, {}, wide, {}).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(chain.stage(0).Forward(batch, {}, narrow, {}).ok());
  EXPECT_EQ(chain.stage(1).Forward(batch, wide, {}, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(chain.stage(1).Forward(batch, narrow, {}, {}).ok());
}

// One copy in a process that has both ends, the file's rows in one that has the first alone.
TEST(ElementTypesTest, TiedEmbeddingsAreTheSameNumbersFromTheHeadAndFromATable) {
  for (const DType stored : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const ElementType dtype : kElementTypes) {
      const ExecutorOptions options = OptionsOf(ModelOf(stored, /*tied=*/true), dtype);
      EXPECT_EQ(LogitsOf(options, {0, 2}), LogitsOf(options)) << DTypeName(stored);
    }
  }
}

TEST(ElementTypesTest, LibtorchMultipliesTheSameRoundedWeights) {
  ExecutorOptions options = OptionsOf(ModelOf(DType::kF32, /*tied=*/true), kNarrow);
  const auto native = LogitsOf(options);
  options.linear = LinearBackend::kTorch;
  EXPECT_LT(RelativeDistance(LogitsOf(options), native), 0.03f);
}

TEST(ElementTypesTest, CheckpointOfMixedTypesAsksForAWord) {
  const std::string path = ModelPath("types-mixed", {});
  model_testing::ModelDirectory{path}.EditConfig(
      [](auto& config) { config["torch_dtype"] = "bfloat16"; });
  for (const Backend backend : {Backend::kNative, Backend::kTorch}) {
    ExecutorOptions options = OptionsOf(path);
    options.backend = backend;
    const absl::Status status = LoadStageModel(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    for (const char* part : {"model.embed_tokens.weight", "F32", "bfloat16", "--dtype=float32"}) {
      EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status;
    }
    for (const ElementType dtype : kElementTypes) {
      options.dtype = dtype;
      ExecutorOptions reference = options;
      reference.model_path = ModelOf(DType::kF32);
      EXPECT_EQ(LogitsOf(options), LogitsOf(reference));
    }
  }
}

// A stage without the embeddings has to agree with one that has them.
TEST(ElementTypesTest, CheckpointThatSaysNothingIsWhatItsEmbeddingsAre) {
  for (const DType stored : {DType::kF32, DType::kBF16}) {
    RandomModelOptions random;
    random.dtype = stored;
    const std::string path = ModelPath(std::string("types-silent-") + DTypeName(stored), random);
    model_testing::ModelDirectory{path}.EditConfig(
        [](auto& config) { config.erase("torch_dtype"); });
    Chain chain(OptionsOf(path), {0, 2});
    const ElementType expected = stored == DType::kBF16 ? kNarrow : kWide;
    EXPECT_EQ(chain.stage(0).activation_type(), expected);
    EXPECT_EQ(chain.stage(1).activation_type(), expected);
  }
}

}  // namespace
}  // namespace baton
