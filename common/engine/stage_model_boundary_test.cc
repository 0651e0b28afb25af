// Batches that a model refuses, and files that change while they are read.
#include <gtest/gtest.h>

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/engine/create_executor.h"
#include "common/engine/stage_model.h"
#include "common/engine/testing/model_chain.h"

namespace baton {
namespace {

// Forward's refusals: one broken field each, on the first stage of a two-stage split.
class ForwardRefusesTest : public testing::Test {
 protected:
  ForwardRefusesTest() : chain_(OptionsFor(SmallModel()), {0, 3}) {
    slice_.tokens = tokens_;
    slice_.token_count = 20;
    slice_.pages = pages_;
  }
  std::string Refusal(size_t in = 0, size_t out = size_t{20} * 64, size_t logits = 0,
                      size_t stage = 0) {
    std::vector<float> buffers[] = {std::vector<float>(in), std::vector<float>(out),
                                    std::vector<float>(logits)};
    const absl::Status status =
        chain_.stage(stage).Forward({{slice_}}, Tensor(buffers[0]), Tensor(buffers[1]), buffers[2]);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  // Rows of 64, or one that is too short.
  static TensorView Tensor(std::vector<float>& values) {
    if (values.empty()) return {};
    return HostTensor(values, values.size() < 64 ? static_cast<int64_t>(values.size()) : 64);
  }

  Chain chain_;
  std::vector<int32_t> tokens_ = RandomPrompt(20);
  std::vector<int32_t> pages_ = {0, 1};
  SequenceSlice slice_;
};

TEST_F(ForwardRefusesTest, NamesWhatIsWrong) {
  using testing::IsSubstring;
  pages_[1] = 64;
  EXPECT_PRED_FORMAT2(IsSubstring, "page 64 is not among", Refusal());
  pages_[1] = -1;
  EXPECT_PRED_FORMAT2(IsSubstring, "page -1 is not among", Refusal());
  pages_[1] = 1;
  tokens_[3] = 300;
  EXPECT_PRED_FORMAT2(IsSubstring, "token id 300 is outside the vocabulary", Refusal());
  tokens_[3] = -1;
  EXPECT_PRED_FORMAT2(IsSubstring, "token id -1 is outside", Refusal());
  tokens_[3] = 3;
  EXPECT_PRED_FORMAT2(IsSubstring, "`in` is [1, 1] float32 in host memory", Refusal(1));
  EXPECT_PRED_FORMAT2(IsSubstring,
                      "`out` is [1, 1] float32 in host memory, must be [20, 64] float32",
                      Refusal(0, 1));
  EXPECT_PRED_FORMAT2(IsSubstring, "`logits` has 300 floats", Refusal(0, 1280, 300));
  EXPECT_PRED_FORMAT2(IsSubstring, "`in` is [0, 0] float32 in host memory, must be [20, 64]",
                      Refusal(0, 0, 300, 1));
  slice_.pages = slice_.pages.first(1);
  EXPECT_PRED_FORMAT2(IsSubstring, "1 pages of 16 tokens do not hold 20", Refusal());
  slice_.pages = pages_;
  slice_.prefix_length = 16384;
  EXPECT_PRED_FORMAT2(IsSubstring, "prefix_length 16384", Refusal());
  slice_.prefix_length = -1;
  EXPECT_PRED_FORMAT2(IsSubstring, "prefix_length -1", Refusal());
  slice_.prefix_length = 0;
  slice_.token_count = 0;
  EXPECT_PRED_FORMAT2(IsSubstring, "token_count 0", Refusal());
  slice_.token_count = 19;
  EXPECT_PRED_FORMAT2(IsSubstring, "20 token ids given for token_count 19", Refusal());
  slice_.token_count = 20;
  slice_.wants_logits = true;
  EXPECT_PRED_FORMAT2(IsSubstring, "only the last stage", Refusal());
  slice_.wants_logits = false;
  slice_.on_logits = [](int, std::span<const float>) {};
  EXPECT_PRED_FORMAT2(IsSubstring, "only the last stage", Refusal());
}

TEST(LoadStageModelTest, RefusesOptionsByName) {
  const auto message = [](auto change) {
    ExecutorOptions options = OptionsFor(SmallModel());
    change(options);
    const auto model = LoadStageModel(options);
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(model.status().message());
  };
  using testing::IsSubstring;
  EXPECT_PRED_FORMAT2(IsSubstring, "page_size", message([](auto& o) { o.page_size = 24; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "page_count", message([](auto& o) { o.page_count = 0; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "threads", message([](auto& o) { o.threads = 0; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "kernels", message([](auto& o) { o.kernels = "mmx"; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "layers [6, 6)", message([](auto& o) { o.layer_begin = 6; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "layers [0, 7)", message([](auto& o) { o.layer_end = 7; }));
}

TEST(StageModelTest, AFileThatShrinksDuringTheLoadIsAStatus) {
  const std::string path = testing::TempDir() + "/shrinks";
  ASSERT_TRUE(MakeRandomModel(path, {}).ok());
  const std::string file = path + "/model.safetensors";
  ExecutorOptions options;
  options.model_path = path;
  options.on_progress = [&](double fraction) {
    if (fraction > 0.5) std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  };
  const auto model = LoadStageModel(options);
  EXPECT_EQ(model.status().code(), absl::StatusCode::kDataLoss) << model.status();
  EXPECT_NE(model.status().message().find(file), std::string_view::npos);
}

TEST(StageModelTest, ALoadedModelNeedsItsFilesNoMore) {
  const std::string path = testing::TempDir() + "/vanishes";
  ASSERT_TRUE(MakeRandomModel(path, {}).ok());
  ExecutorOptions options;
  options.model_path = path;
  const auto model = LoadStageModel(options);
  ASSERT_TRUE(model.ok()) << model.status();
  std::filesystem::resize_file(path + "/model.safetensors", 0);
  const std::vector<int32_t> tokens = RandomPrompt(20);
  const std::vector<int32_t> pages = {0};
  SequenceSlice slice;
  slice.tokens = tokens;
  slice.token_count = 20;
  slice.pages = pages;
  slice.wants_logits = true;
  std::vector<float> logits(static_cast<size_t>((*model)->config().vocab_size));
  EXPECT_TRUE((*model)->Forward({{slice}}, {}, {}, logits).ok());
}

}  // namespace
}  // namespace baton
