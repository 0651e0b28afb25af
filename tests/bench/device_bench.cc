// What steps of libtorch's layers take on a device, with random weights: chunks without and with a
// prefix, and decode steps. On a GPU tools/gpu/session shows it beside what the GPU can do; on a
// CPU it compares builds. Prints a flat JSON object: of each case its milliseconds, the
// floating-point operations of its products (TFLOP/s) and the bytes that it has to read (GB/s),
// both without the head.
//
//   device_bench DEVICE [SHAPE [LAYERS [TYPE [ROUNDS [CONTEXT [CASE]]]]]]
//
// SHAPE is qwen3-0.6b, llama-8b or qwen3-30b-a3b (experts), each with a small vocabulary, or
// qwen3-0.6b-head with the whole one, for draws. CASE is the only one to run.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/engine/create_executor.h"
#include "common/engine/stage_model.h"
#include "common/model/make_model.h"
#include "nlohmann/json.hpp"
#include "tests/bench/quantiles.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

constexpr int kPageSize = 64;

struct Options {
  std::string device;
  std::string shape;
  int layers = 0;
  ElementType type = ElementType::kBFloat16;
  int rounds = 0;
  int context = 0;

  bool small() const { return shape == "qwen3-0.6b" || whole_head(); }
  bool whole_head() const { return shape == "qwen3-0.6b-head"; }
  bool sparse() const { return shape == "qwen3-30b-a3b"; }
  int chunk_tokens() const { return small() ? 512 : 8192; }
  int batch() const { return small() && !whole_head() ? 16 : 32; }
};

RandomModelOptions Shape(const Options& options) {
  RandomModelOptions model;
  if (options.sparse()) {
    model.architecture = "Qwen3MoeForCausalLM";
    model.num_experts = 128;
    model.num_experts_per_tok = 8;
    model.moe_intermediate_size = 768;
  }
  model.hidden_size = options.small() ? 1024 : options.sparse() ? 2048 : 4096;
  model.intermediate_size = options.small() ? 3072 : 14336;
  model.num_hidden_layers = options.layers;
  model.num_attention_heads = options.small() ? 16 : 32;
  model.num_key_value_heads = options.sparse() ? 4 : 8;
  model.head_dim = 128;
  model.vocab_size = options.whole_head() ? 151'936 : 4096;
  model.max_position_embeddings = 1 << 20;
  model.tie_word_embeddings = true;
  model.dtype = DType::kBF16;
  return model;
}

struct Run {
  int tokens = 0;
  int prefix = 0;
};

// What a step of these runs needs at least.
struct Needs {
  double operations = 0;
  double bytes = 0;
};

Needs NeedsOf(const std::vector<Run>& runs, const RandomModelOptions& shape,
              const Options& options) {
  const double head_columns = double{1} * shape.num_attention_heads * shape.head_dim;
  const double kv_columns = double{1} * shape.num_key_value_heads * shape.head_dim;
  const double projections = shape.hidden_size * (2.0 * head_columns + 2.0 * kv_columns);
  const double gated = 3.0 * shape.hidden_size *
                       (options.sparse() ? shape.moe_intermediate_size : shape.intermediate_size);
  const int active = options.sparse() ? shape.num_experts_per_tok : 1;
  Needs needs;
  double tokens = 0;
  for (const Run& run : runs) {
    const double seen = run.prefix + (run.tokens + 1) / 2.0;  // By a token, on average.
    needs.operations += run.tokens * (2 * (projections + active * gated) + 4 * head_columns * seen);
    needs.bytes += 2 * kv_columns * (run.prefix + run.tokens);
    tokens += run.tokens;
  }
  // With many tokens every expert has some.
  const double read = options.sparse() ? std::min<double>(shape.num_experts, tokens * active) : 1;
  needs.bytes += projections + read * gated;
  needs.operations *= shape.num_hidden_layers;
  needs.bytes *= shape.num_hidden_layers * static_cast<double>(ElementBytes(options.type));
  return needs;
}

class Subject {
 public:
  Subject(const std::string& model, const Options& given) {
    ExecutorOptions options;
    options.model_path = model;
    options.page_size = kPageSize;
    const int tokens =
        std::max(given.context * (given.batch() / 2 + 2), given.small() ? 0 : 68 << 10);
    options.page_count = (tokens + given.chunk_tokens()) / kPageSize + given.batch();
    options.dtype = given.type;
    options.kv_dtype = given.type;
    options.backend = Backend::kTorch;
    options.device = given.device;
    auto stage = LoadStageModel(options);
    BATON_CHECK(stage.ok()) << stage.status();
    model_ = *std::move(stage);
    // Twice, so that the pages of a sequence may begin anywhere.
    pages_.resize(2 * static_cast<size_t>(options.page_count));
    for (size_t i = 0; i < pages_.size(); ++i) {
      pages_[i] = static_cast<int32_t>(i % static_cast<size_t>(options.page_count));
    }
  }

  // Each sequence has pages behind those of the one before, until there are no more; what they
  // hold does not matter here.
  // `draw`: what the model draws by, if it does; else the step ends with logits in host memory.
  double Milliseconds(const std::vector<Run>& runs, const std::optional<RowDraw>& draw) {
    int longest = 0;
    for (const Run& run : runs) longest = std::max(longest, run.tokens);
    std::vector<int32_t> ids(static_cast<size_t>(longest));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(97 * i % 4000);
    Batch batch;
    std::vector<int32_t> drawn(runs.size());
    size_t first = 0;
    for (const Run& run : runs) {
      SequenceSlice slice;
      slice.tokens = std::span(ids).first(static_cast<size_t>(run.tokens));
      slice.token_count = run.tokens;
      slice.prefix_length = run.prefix;
      slice.pages = std::span(pages_).subspan(first, pages_.size() / 2);
      slice.wants_logits = !draw.has_value();
      if (draw.has_value()) {
        slice.draw = *draw;
        slice.drawn = &drawn[batch.slices.size()];
      }
      batch.slices.push_back(slice);
      first += static_cast<size_t>((run.prefix + run.tokens) / kPageSize + 1);
      first %= pages_.size() / 2;
    }
    std::vector<float> logits(static_cast<size_t>(batch.LogitsCount()) *
                              static_cast<size_t>(model_->config().vocab_size));
    const auto begin = std::chrono::steady_clock::now();
    const absl::Status status = model_->Forward(batch, {}, {}, logits);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    BATON_CHECK(status.ok()) << status;
    return took.count();
  }

  bool Draws(const RowDraw& draw) const { return model_->Draws(draw); }

 private:
  std::unique_ptr<StageModel> model_;
  std::vector<int32_t> pages_;
};

struct Case {
  const char* name;
  std::vector<Run> runs;
  std::optional<RowDraw> draw = {};
};

// As many models' own settings: temperature 0.6, top_k 20, top_p 0.95; and by temperature alone.
const RowDraw kFiltered = {.scale = 2.4F, .top_k = 20, .top_p = 0.95, .uniform = 0.5};
const RowDraw kWarm = {.scale = 1.44F, .uniform = 0.5};

std::vector<Case> Cases(const Options& options) {
  std::vector<Run> batch;
  for (int i = 1; i <= options.batch(); ++i) {
    batch.push_back({1, options.context * i / options.batch() - 1});
  }
  std::vector<Run> mixed = batch;
  mixed.push_back({options.chunk_tokens(), options.context});
  std::vector<Case> cases = {
      {"chunk_first", {{options.chunk_tokens(), 0}}},
      {"chunk_last", {{options.chunk_tokens(), options.context}}},
      {"decode_1_short", {{1, 128}}},
      {"decode_1", {{1, options.context}}},
      {"decode_batch", batch},
      {"decode_batch_drawn", batch, kFiltered},
      {"decode_batch_drawn_warm", batch, kWarm},
      {"decode_batch_and_chunk", mixed},
  };
  // Half way through a prompt of 128K: as long as the average of its chunks.
  if (!options.small()) cases.push_back({"chunk_of_128k", {{options.chunk_tokens(), 60 << 10}}});
  return cases;
}

int Main(int argc, char** argv) {
  BATON_CHECK(argc >= 2) << "device_bench DEVICE [SHAPE [LAYERS [TYPE [ROUNDS [CONTEXT [CASE]]]]]]";
  const auto word = [&](int index, const char* otherwise) {
    return argc > index ? argv[index] : otherwise;
  };
  const auto type = ParseElementType(word(4, "bfloat16"));
  BATON_CHECK(type.has_value()) << argv[4];
  const Options options = {argv[1], word(2, "qwen3-0.6b"),   std::atoi(word(3, "28")),
                           *type,   std::atoi(word(5, "9")), std::atoi(word(6, "4096"))};
  BATON_CHECK(options.small() || options.sparse() || options.shape == "llama-8b") << options.shape;
  const fs::path path = fs::temp_directory_path() / absl::StrCat("baton_device_bench_", getpid());
  const RandomModelOptions shape = Shape(options);
  const absl::Status made = MakeRandomModel(path.string(), shape);
  BATON_CHECK(made.ok()) << made;
  Subject subject(path.string(), options);
  std::error_code ignored;
  fs::remove_all(path, ignored);
  const std::string_view only = word(7, "");
  nlohmann::ordered_json out;
  for (const auto& [name, runs, draw] : Cases(options)) {
    if (!only.empty() && only != name) continue;
    if (draw.has_value() && !subject.Draws(*draw)) continue;
    for (int round = 0; round < 3; ++round) subject.Milliseconds(runs, draw);
    std::vector<double> took;
    took.reserve(static_cast<size_t>(options.rounds));
    for (int round = 0; round < options.rounds; ++round)
      took.push_back(subject.Milliseconds(runs, draw));
    const double median_ms = Quantile(took, 0.5);
    const Needs needs = NeedsOf(runs, shape, options);
    out[absl::StrCat(name, "_ms")] = median_ms;
    out[absl::StrCat(name, "_tflops")] = needs.operations / median_ms / 1e9;
    out[absl::StrCat(name, "_gbps")] = needs.bytes / median_ms / 1e6;
  }
  std::printf("%s\n", out.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
