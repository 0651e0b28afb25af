// What steps of libtorch's layers take on a device, by the shape of Qwen3-0.6B with random weights:
// chunks without and with a prefix, and decode steps. On a GPU tools/gpu/session shows it beside
// what the GPU can do; on a CPU it compares builds. Prints a flat JSON object of milliseconds.
//
//   device_bench DEVICE [LAYERS [TYPE [ROUNDS [CONTEXT]]]]
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
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
constexpr int kChunkTokens = 512;

RandomModelOptions Shape(int layers) {
  RandomModelOptions model;
  model.hidden_size = 1024;
  model.intermediate_size = 3072;
  model.num_hidden_layers = layers;
  model.num_attention_heads = 16;
  model.num_key_value_heads = 8;
  model.head_dim = 128;
  model.vocab_size = 4096;
  model.max_position_embeddings = 1 << 20;
  model.tie_word_embeddings = true;
  model.dtype = DType::kBF16;
  return model;
}

struct Run {
  int tokens = 0;
  int prefix = 0;
};

class Subject {
 public:
  Subject(const std::string& model, const std::string& device, ElementType type, int context) {
    ExecutorOptions options;
    options.model_path = model;
    options.page_size = kPageSize;
    options.page_count = 2 * context / kPageSize + 2;
    options.dtype = type;
    options.kv_dtype = type;
    options.backend = Backend::kTorch;
    options.device = device;
    auto stage = LoadStageModel(options);
    BATON_CHECK(stage.ok()) << stage.status();
    model_ = *std::move(stage);
    pages_.resize(static_cast<size_t>(options.page_count));
    std::iota(pages_.begin(), pages_.end(), 0);
  }

  // Sequences share pages: what they hold does not matter here.
  double Milliseconds(const std::vector<Run>& runs) {
    int longest = 0;
    for (const Run& run : runs) longest = std::max(longest, run.tokens);
    std::vector<int32_t> ids(static_cast<size_t>(longest));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(97 * i % 4000);
    Batch batch;
    for (const Run& run : runs) {
      SequenceSlice slice;
      slice.tokens = std::span(ids).first(static_cast<size_t>(run.tokens));
      slice.token_count = run.tokens;
      slice.prefix_length = run.prefix;
      slice.pages = pages_;
      slice.wants_logits = true;
      batch.slices.push_back(slice);
    }
    std::vector<float> logits(runs.size() * static_cast<size_t>(model_->config().vocab_size));
    const auto begin = std::chrono::steady_clock::now();
    const absl::Status status = model_->Forward(batch, {}, {}, logits);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    BATON_CHECK(status.ok()) << status;
    return took.count();
  }

 private:
  std::unique_ptr<StageModel> model_;
  std::vector<int32_t> pages_;
};

int Main(int argc, char** argv) {
  BATON_CHECK(argc >= 2) << "device_bench DEVICE [LAYERS [TYPE [ROUNDS [CONTEXT]]]]";
  const auto number = [&](int index, int otherwise) {
    return argc > index ? std::atoi(argv[index]) : otherwise;
  };
  const int layers = number(2, 28);
  const auto type = ParseElementType(argc > 3 ? argv[3] : "bfloat16");
  BATON_CHECK(type.has_value()) << argv[3];
  const int rounds = number(4, 9);
  const int context = number(5, 4096);
  const fs::path path = fs::temp_directory_path() / absl::StrCat("baton_device_bench_", getpid());
  const absl::Status made = MakeRandomModel(path.string(), Shape(layers));
  BATON_CHECK(made.ok()) << made;
  Subject subject(path.string(), argv[1], *type, context);
  std::error_code ignored;
  fs::remove_all(path, ignored);
  std::vector<Run> batch;
  for (int i = 1; i <= 16; ++i) batch.push_back({1, context * i / 16 - 1});
  std::vector<Run> mixed = batch;
  mixed.push_back({kChunkTokens, context});
  const std::pair<const char*, std::vector<Run>> cases[] = {
      {"chunk_first", {{kChunkTokens, 0}}},
      {"chunk_last", {{kChunkTokens, context}}},
      {"decode_1_short", {{1, 128}}},
      {"decode_1", {{1, context}}},
      {"decode_16", batch},
      {"decode_16_and_chunk", mixed},
  };
  nlohmann::ordered_json out;
  for (const auto& [name, runs] : cases) {
    subject.Milliseconds(runs);
    std::vector<double> took;
    took.reserve(static_cast<size_t>(rounds));
    for (int round = 0; round < rounds; ++round) took.push_back(subject.Milliseconds(runs));
    out[absl::StrCat(name, "_ms")] = Quantile(took, 0.5);
  }
  std::printf("%s\n", out.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
