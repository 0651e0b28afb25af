// Steps in bfloat16 on a device beside float32: as close as a CPU's bfloat16, whichever operators,
// kernels or graphs compute them. tools/gpu/session runs it on a GPU (BATON_TEST_DEVICE); elsewhere
// it compares a CPU with itself, and its bfloat16 with float32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/sampling/sampler.h"
#include "common/engine/testing/model_chain.h"
#include "common/engine/torch/torch_backend.h"

namespace baton {
namespace {

struct Shape {
  const char* name;
  const char* architecture;
  int head_dim;
  int heads;
  int kv_heads;
  bool biases = false;
  int window = 0;
  bool experts = false;
};

void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

RandomModelOptions ModelOf(const Shape& shape) {
  RandomModelOptions model;
  model.architecture = shape.architecture;
  model.hidden_size = 256;
  model.intermediate_size = 512;
  model.num_hidden_layers = 3;
  model.head_dim = shape.head_dim;
  model.num_attention_heads = shape.heads;
  model.num_key_value_heads = shape.kv_heads;
  model.biases = shape.biases;
  model.sliding_window = shape.window;
  model.dtype = DType::kBF16;
  // All of them are active: else rounding would send tokens to other experts.
  if (shape.experts) model.num_experts_per_tok = model.num_experts;
  return model;
}

ExecutorOptions OptionsOf(const Shape& shape) {
  ExecutorOptions options = OptionsFor(ModelPath(shape.name, ModelOf(shape)));
  options.page_count = 512;
  options.dtype = ElementType::kFloat32;
  return options;
}

ExecutorOptions Bfloat16(ExecutorOptions options, const std::string& device) {
  options.backend = Backend::kTorch;
  options.dtype = ElementType::kBFloat16;
  options.device = device;
  return options;
}

std::string Device() {
  const char* const device = std::getenv("BATON_TEST_DEVICE");
  return device != nullptr ? device : "cpu";
}

double Distance(const std::vector<float>& actual, const std::vector<float>& expected) {
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(double{actual[i]} - expected[i], 2);
    size += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(difference / size);
}

using Parts = std::vector<std::pair<int, std::span<const int32_t>>>;

// Long chunks with and without a prefix, a chunk beside a single token, and single tokens of
// sequences of all lengths.
class Steps {
 public:
  Steps() {
    for (int id = 0; id < 6; ++id) {
      prompts_.push_back(RandomPrompt(4000, static_cast<uint64_t>(id)));
    }
    // A CPU's operators see no difference between long and longer.
    const size_t thousand = Device() == "cpu" ? 100 : 1000;
    Add({{0, 5 * thousand / 2}});
    Add({{0, thousand + 100}});
    Add({{1, 300}, {0, 1}});
    Add({{2, 7}, {3, 64}, {4, 65}, {5, 2}});
    Add({{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}});
    Add({{3, 1}});
    Add({{5, 1}, {0, 1}});
  }
  const std::vector<Parts>& all() const { return steps_; }

 private:
  void Add(const std::vector<std::pair<int, size_t>>& counts) {
    Parts parts;
    for (const auto& [id, count] : counts) {
      size_t& begin = begins_[id];
      parts.emplace_back(id, std::span(prompts_[static_cast<size_t>(id)]).subspan(begin, count));
      begin += count;
    }
    steps_.push_back(std::move(parts));
  }

  std::vector<std::vector<int32_t>> prompts_;
  std::map<int, size_t> begins_;
  std::vector<Parts> steps_;
};

class TorchDeviceTest : public ::testing::TestWithParam<Shape> {};

TEST_P(TorchDeviceTest, StepsAreAsCloseToFloat32AsACpus) {
  const ExecutorOptions options = OptionsOf(GetParam());
  Chain exact(options, {0});
  Chain cpu(Bfloat16(options, "cpu"), {0});
  Chain device(Bfloat16(options, Device()), {0, 1});
  ExecutorOptions stepwise = Bfloat16(options, Device());
  stepwise.cuda_graph_max_rows = 0;
  Chain without_graphs(stepwise, {0});
  const Steps steps;
  for (size_t step = 0; step < steps.all().size(); ++step) {
    const Parts& parts = steps.all()[step];
    const auto expected = exact.AppendAll(parts);
    const auto rounded = cpu.AppendAll(parts);
    const auto actual = device.AppendAll(parts);
    const auto eager = without_graphs.AppendAll(parts);
    for (size_t row = 0; row < parts.size(); ++row) {
      SCOPED_TRACE(testing::Message() << "step " << step << ", row " << row);
      const double usual = Distance(rounded[row], expected[row]);
      EXPECT_LT(usual, 0.1);
      EXPECT_LT(Distance(actual[row], expected[row]), 1.5 * usual + 0.02);
      EXPECT_LT(Distance(eager[row], expected[row]), 1.5 * usual + 0.02);
    }
  }
}

// Four sequences, by a graph and by a step with a chunk. One of them tells its logits; a CPU draws
// another greedily, a GPU all others.
TEST_P(TorchDeviceTest, TheDeviceDrawsAsTheHostDoes) {
  ExecutorOptions options = Bfloat16(OptionsOf(GetParam()), Device());
  auto loaded = LoadStageModel(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  StageModel& model = **loaded;
  SamplingParams greedy;
  greedy.temperature = 0;
  SamplingParams warm;
  warm.temperature = 0.7;
  warm.top_k = 5;
  SamplingParams narrow;
  narrow.top_p = 0.8;
  const std::vector<SamplingParams> all = {greedy, greedy, warm, narrow};
  Sampler sampler(model.config().vocab_size);
  constexpr uint64_t kSeed = 11;
  const auto prompt = RandomPrompt(100);
  constexpr int32_t kPages = 8;
  std::vector<std::vector<int32_t>> pages;
  for (int32_t first = 0; first < 4 * kPages; first += kPages) {
    std::vector<int32_t>& own = pages.emplace_back(kPages);
    std::iota(own.begin(), own.end(), first);
  }
  const auto run = [&](const std::vector<int>& counts, int prefix, bool draws) {
    Batch batch;
    std::vector<int32_t> drawn(counts.size(), -2);
    for (size_t i = 0; i < counts.size(); ++i) {
      SequenceSlice slice;
      slice.token_count = counts[i];
      slice.prefix_length = prefix;
      slice.tokens = std::span(prompt).subspan(static_cast<size_t>(prefix) + i,
                                               static_cast<size_t>(counts[i]));
      slice.pages = pages[i];
      slice.draw = *Sampler::RowDrawOf(all[i], kSeed, prefix);
      slice.wants_logits = !draws || i == 1 || !model.Draws(slice.draw);
      if (!slice.wants_logits) slice.drawn = &drawn[i];
      batch.slices.push_back(slice);
    }
    const auto vocab = static_cast<size_t>(model.config().vocab_size);
    std::vector<float> logits(static_cast<size_t>(batch.LogitsCount()) * vocab);
    const absl::Status status = model.Forward(batch, {}, {}, logits);
    EXPECT_TRUE(status.ok()) << status;
    size_t row = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      if (!batch.slices[i].wants_logits) continue;
      const auto token =
          sampler.Sample({std::span(logits).subspan(vocab * row++, vocab), &all[i], kSeed, prefix});
      EXPECT_TRUE(token.ok()) << token.status();
      if (token.ok()) drawn[i] = token->token;
    }
    return drawn;
  };
  EXPECT_EQ(run({40, 41, 42, 43}, 0, true), run({40, 41, 42, 43}, 0, false));
  EXPECT_EQ(run({1, 1, 1, 1}, 40, true), run({1, 1, 1, 1}, 40, false));
  EXPECT_EQ(run({2, 1, 1, 1}, 40, true), run({2, 1, 1, 1}, 40, false));
}

// Steps that are begun before the tokens that they feed are on the host, as ThreadedExecutor begins
// them, beside steps that wait. A CPU begins none.
TEST_P(TorchDeviceTest, BegunStepsDrawWhatStepsThatWaitDraw) {
  ExecutorOptions options = Bfloat16(OptionsOf(GetParam()), Device());
  auto loaded = LoadStageModel(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  StageModel& model = **loaded;
  if (!model.begins()) GTEST_SKIP() << "no graphs here";
  SamplingParams greedy;
  greedy.temperature = 0;
  SamplingParams warm;
  warm.temperature = 0.7;
  SamplingParams narrow;
  narrow.top_k = 20;
  narrow.top_p = 0.8;
  const std::vector<SamplingParams> all = {greedy, warm, narrow};
  constexpr int kSteps = 40;
  constexpr int32_t kPages = 8;
  using Tokens = std::vector<int32_t>;
  std::vector<std::vector<int32_t>> pages;
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<int32_t>& own = pages.emplace_back(kPages);
    std::iota(own.begin(), own.end(), static_cast<int32_t>(i) * kPages);
  }
  // The second text takes no part in some of the steps, so that rows change their places.
  const auto takes_part = [](size_t i, int step) { return i != 1 || step % 5 != 4; };
  // `fed`: the tokens of all texts; `places`: of whose draws in the step before, if it follows
  // them.
  const auto batch_of = [&](int step, const Tokens& fed, Tokens& drawn,
                            const std::vector<int>* places) {
    Batch batch;
    for (size_t i = 0; i < all.size(); ++i) {
      if (!takes_part(i, step)) continue;
      SequenceSlice slice;
      slice.token_count = 1;
      slice.prefix_length = step;
      slice.tokens = std::span(fed).subspan(i, 1);
      slice.pages = pages[i];
      slice.draw = *Sampler::RowDrawOf(all[i], 11, step);
      slice.drawn = &drawn[i];
      if (places != nullptr && (*places)[i] >= 0) slice.follows = (*places)[i];
      batch.slices.push_back(slice);
    }
    return batch;
  };
  const Tokens first = {3, 5, 7};
  std::vector<Tokens> expected(kSteps, first);
  for (int step = 0; step < kSteps; ++step) {
    const auto at = static_cast<size_t>(step);
    const Tokens fed = step == 0 ? first : expected[at - 1];
    expected[at] = fed;
    ASSERT_TRUE(model.Forward(batch_of(step, fed, expected[at], nullptr), {}, {}, {}).ok());
  }
  std::vector<Tokens> drawn(kSteps, first);
  std::unique_ptr<BegunBatch> before;
  std::vector<int> places(all.size(), -1);
  Tokens fed = first;  // What the host knows.
  for (int step = 0; step < kSteps; ++step) {
    const auto at = static_cast<size_t>(step);
    auto begun = model.Begin(batch_of(step, fed, drawn[at], &places));
    ASSERT_TRUE(begun.ok()) << begun.status();
    ASSERT_NE(*begun, nullptr);
    int place = 0;
    for (size_t i = 0; i < all.size(); ++i) places[i] = takes_part(i, step) ? place++ : -1;
    if (before != nullptr) {
      ASSERT_TRUE(before->End().ok());
      fed = drawn[at - 1];
    }
    for (size_t i = 0; i < all.size(); ++i) {
      if (!takes_part(i, step)) drawn[at][i] = fed[i];
    }
    before = *std::move(begun);
  }
  ASSERT_TRUE(before->End().ok());
  EXPECT_EQ(drawn, expected);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, TorchDeviceTest,
    ::testing::Values(Shape{"qwen3_64", "Qwen3ForCausalLM", 64, 8, 2},
                      Shape{"llama_128", "LlamaForCausalLM", 128, 4, 4, true},
                      Shape{"groups_of_7", "Qwen3ForCausalLM", 128, 7, 1},
                      Shape{"groups_of_12", "LlamaForCausalLM", 64, 12, 1},
                      Shape{"wide", "Qwen3ForCausalLM", 256, 2, 1},
                      Shape{"no_kernels_for_16", "Qwen3ForCausalLM", 16, 4, 2},
                      Shape{"no_kernels_for_80", "LlamaForCausalLM", 80, 4, 2},
                      Shape{"window", "MistralForCausalLM", 64, 8, 4, false, 700},
                      Shape{"experts", "Qwen3MoeForCausalLM", 64, 8, 2, false, 0, true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace baton
