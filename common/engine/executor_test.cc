#include "common/engine/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/model/make_model.h"

namespace baton {
namespace {

// Writes a model of these options once per test binary.
std::string ModelPath(const std::string& name, const RandomModelOptions& options) {
  static std::set<std::string> made;
  std::string path = testing::TempDir() + "/" + name;
  if (made.insert(name).second) {
    const absl::Status status = MakeRandomModel(path, options);
    EXPECT_TRUE(status.ok()) << status;
  }
  return path;
}

std::string SmallModel() {
  RandomModelOptions options;
  options.num_hidden_layers = 6;
  return ModelPath("small", options);
}

std::vector<int32_t> RandomPrompt(int length, uint64_t seed = 7) {
  Random random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(length));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(256));
  return tokens;
}

// A chain of executors in one process, with page lists for the sequences that it is given.
class Chain {
 public:
  // `cuts` are the layers where a new stage begins, beginning with 0.
  Chain(ExecutorOptions options, std::vector<int> cuts) {
    for (size_t i = 0; i < cuts.size(); ++i) {
      options.layer_begin = cuts[i];
      options.layer_end = i + 1 < cuts.size() ? cuts[i + 1] : -1;
      auto stage = CreateExecutor(options);
      EXPECT_TRUE(stage.ok()) << stage.status();
      stages_.push_back(*std::move(stage));
    }
  }

  Executor& stage(size_t i) { return *stages_[i]; }
  const ModelConfig& config() const { return stages_[0]->config(); }

  // Appends `tokens` to sequence `id` and returns the logits of the last one.
  std::vector<float> Append(int id, std::span<const int32_t> tokens) {
    return AppendAll({{id, tokens}})[0];
  }

  std::vector<std::vector<float>> AppendAll(
      const std::vector<std::pair<int, std::span<const int32_t>>>& parts) {
    Batch batch;
    for (const auto& [id, tokens] : parts) {
      Sequence& sequence = sequences_[id];
      const int count = static_cast<int>(tokens.size());
      SequenceSlice slice;
      slice.tokens = tokens;
      slice.token_count = count;
      slice.prefix_length = sequence.length;
      slice.wants_logits = true;
      sequence.length += count;
      const int page_size = stages_[0]->kv().page_size;
      // Backwards and interleaved: page ids need no order.
      while (static_cast<int>(sequence.pages.size()) * page_size < sequence.length) {
        sequence.pages.push_back(stages_[0]->kv().page_count - 1 - next_page_++);
      }
      slice.pages = sequence.pages;
      batch.slices.push_back(slice);
    }
    return Forward(batch);
  }

 private:
  struct Sequence {
    int length = 0;
    std::vector<int32_t> pages;
  };

  std::vector<std::vector<float>> Forward(Batch batch) {
    const size_t vocab = static_cast<size_t>(config().vocab_size);
    std::vector<float> activations;
    std::vector<float> logits(batch.slices.size() * vocab);
    for (const auto& stage : stages_) {
      const bool last = stage->last_stage();
      for (SequenceSlice& slice : batch.slices) slice.wants_logits = last;
      std::vector<float> out(last ? 0
                                  : static_cast<size_t>(batch.TokenCount()) *
                                        static_cast<size_t>(config().hidden_size));
      const absl::Status status = stage->Forward(
          batch, activations, out, last ? std::span<float>(logits) : std::span<float>());
      EXPECT_TRUE(status.ok()) << status;
      activations = std::move(out);
    }
    std::vector<std::vector<float>> result;
    for (size_t i = 0; i < batch.slices.size(); ++i) {
      const auto begin = logits.begin() + static_cast<ptrdiff_t>(i * vocab);
      result.emplace_back(begin, begin + static_cast<ptrdiff_t>(vocab));
    }
    return result;
  }

  std::vector<std::unique_ptr<Executor>> stages_;
  std::map<int, Sequence> sequences_;
  int next_page_ = 0;
};

ExecutorOptions OptionsFor(const std::string& model_path) {
  ExecutorOptions options;
  options.model_path = model_path;
  options.page_size = 16;
  options.page_count = 64;
  return options;
}

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

TEST(ExecutorTest, StagesChangeNoBit) {
  const ExecutorOptions options = OptionsFor(SmallModel());
  const auto expected = RunWhole(options);
  EXPECT_EQ(RunCut(options, {0, 3}, 150), expected);
  EXPECT_EQ(RunCut(options, {0, 1, 5}, 150), expected);
  EXPECT_EQ(RunCut(options, {0, 1, 2, 3, 4, 5}, 150), expected);
}

TEST(ExecutorTest, ChunksChangeNoBit) {
  const ExecutorOptions options = OptionsFor(SmallModel());
  const auto expected = RunWhole(options);
  for (const int chunk : {1, 7, 64, 149}) {
    EXPECT_EQ(RunCut(options, {0, 2}, chunk), expected) << chunk;
  }
}

TEST(ExecutorTest, PagesThreadsAndShardsChangeNoBit) {
  const ExecutorOptions options = OptionsFor(SmallModel());
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
  EXPECT_EQ(RunWhole(OptionsFor(ModelPath("sharded", sharded))), expected);
}

TEST(ExecutorTest, CompanyChangesNoBit) {
  const ExecutorOptions options = OptionsFor(SmallModel());
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

TEST(ExecutorTest, BatchLargerThanOneBlockOfRowsEqualsItsParts) {
  ExecutorOptions options = OptionsFor(SmallModel());
  const std::vector<int32_t> prompt = RandomPrompt(700);
  Chain whole(options, {0});
  Chain parts(options, {0});
  const auto expected = whole.Append(0, prompt);
  parts.Append(0, std::span(prompt).first(123));
  EXPECT_EQ(parts.Append(0, std::span(prompt).subspan(123)), expected);
}

TEST(ExecutorTest, EveryFamilyAndVariantIsCloseToTheScalarReference) {
  for (const char* architecture : {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    for (const bool tied : {false, true}) {
      RandomModelOptions model;
      model.architecture = architecture;
      model.tie_word_embeddings = tied;
      model.llama3_rope_scaling = tied;
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
TEST(ExecutorTest, SixteenBitWeightsAreCloseToTheirFloat32) {
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

TEST(ExecutorTest, GreedyTextOfRandomModelsVaries) {
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

TEST(ExecutorTest, LogitsComeForTheSlicesThatWantThem) {
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
TEST(ExecutorTest, AllLogitsOfASliceAreThoseOfEachTokenInTurn) {
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

TEST(ExecutorTest, KvPagesHoldWhatAnotherExecutorContinuesFrom) {
  ExecutorOptions options = OptionsFor(SmallModel());
  Chain prefill(options, {0, 2});
  Chain decode(options, {0});
  Chain reference(options, {0});
  const std::vector<int32_t> prompt = RandomPrompt(40);
  prefill.Append(0, prompt);
  reference.Append(0, prompt);
  decode.Append(0, RandomPrompt(40, 99));  // The same pages, other contents.
  const KvGeometry& whole = decode.stage(0).kv();
  for (int page = 0; page < whole.page_count; ++page) {
    std::byte* to = decode.stage(0).KvPage(page).data();
    for (const size_t stage : {size_t{0}, size_t{1}}) {
      const std::span<const std::byte> from = prefill.stage(stage).KvPage(page);
      std::memcpy(to, from.data(), from.size());
      to += from.size();
    }
  }
  const int32_t token = 9;
  EXPECT_EQ(decode.Append(0, std::span(&token, 1)), reference.Append(0, std::span(&token, 1)));
}

TEST(ExecutorTest, ReportsProgressUpToOne) {
  ExecutorOptions options = OptionsFor(SmallModel());
  std::vector<double> fractions;
  options.on_progress = [&](double fraction) { fractions.push_back(fraction); };
  for (const int layer_end : {2, 6}) {
    fractions.clear();
    options.layer_begin = layer_end - 2;
    options.layer_end = layer_end;
    ASSERT_TRUE(CreateExecutor(options).ok());
    ASSERT_FALSE(fractions.empty());
    EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
    EXPECT_EQ(fractions.back(), 1.0);
  }
}

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
        chain_.stage(stage).Forward({{slice_}}, buffers[0], buffers[1], buffers[2]);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
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
  EXPECT_PRED_FORMAT2(IsSubstring, "`in` has 1 floats", Refusal(1));
  EXPECT_PRED_FORMAT2(IsSubstring, "`out` has 1 floats", Refusal(0, 1));
  EXPECT_PRED_FORMAT2(IsSubstring, "`logits` has 300 floats", Refusal(0, 1280, 300));
  EXPECT_PRED_FORMAT2(IsSubstring, "`in` has 0 floats, must have 1280", Refusal(0, 0, 300, 1));
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

TEST(CreateExecutorTest, RefusesOptionsByName) {
  const auto message = [](auto change) {
    ExecutorOptions options = OptionsFor(SmallModel());
    change(options);
    const auto executor = CreateExecutor(options);
    EXPECT_EQ(executor.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(executor.status().message());
  };
  using testing::IsSubstring;
  EXPECT_PRED_FORMAT2(IsSubstring, "page_size", message([](auto& o) { o.page_size = 24; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "page_count", message([](auto& o) { o.page_count = 0; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "threads", message([](auto& o) { o.threads = 0; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "kernels", message([](auto& o) { o.kernels = "mmx"; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "layers [6, 6)", message([](auto& o) { o.layer_begin = 6; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "layers [0, 7)", message([](auto& o) { o.layer_end = 7; }));
}

TEST(ExecutorTest, AFileThatShrinksDuringTheLoadIsAStatus) {
  const std::string path = testing::TempDir() + "/shrinks";
  ASSERT_TRUE(MakeRandomModel(path, {}).ok());
  const std::string file = path + "/model.safetensors";
  ExecutorOptions options;
  options.model_path = path;
  options.on_progress = [&](double fraction) {
    if (fraction > 0.5) std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  };
  const auto executor = CreateExecutor(options);
  EXPECT_EQ(executor.status().code(), absl::StatusCode::kDataLoss) << executor.status();
  EXPECT_NE(executor.status().message().find(file), std::string_view::npos);
}

TEST(ExecutorTest, ALoadedModelNeedsItsFilesNoMore) {
  const std::string path = testing::TempDir() + "/vanishes";
  ASSERT_TRUE(MakeRandomModel(path, {}).ok());
  ExecutorOptions options;
  options.model_path = path;
  const auto executor = CreateExecutor(options);
  ASSERT_TRUE(executor.ok()) << executor.status();
  std::filesystem::resize_file(path + "/model.safetensors", 0);
  const std::vector<int32_t> tokens = RandomPrompt(20);
  const std::vector<int32_t> pages = {0};
  SequenceSlice slice;
  slice.tokens = tokens;
  slice.token_count = 20;
  slice.pages = pages;
  slice.wants_logits = true;
  std::vector<float> logits(static_cast<size_t>((*executor)->config().vocab_size));
  EXPECT_TRUE((*executor)->Forward({{slice}}, {}, {}, logits).ok());
}

}  // namespace
}  // namespace baton
