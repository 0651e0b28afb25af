// What bfloat16 gains an executor beside float32, and what it takes; and libtorch's operators
// beside Baton's kernels: the shape of Qwen3-0.6B with random weights, one thread, batch 1. Steps
// of both take turns, so that both meet the same machine. With the argument `alone` bfloat16 is
// timed by itself, for engine_bench.py's turns with another program. Prints progress for people on
// standard error and a flat JSON object.
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/engine/create_executor.h"
#include "common/engine/stage_model.h"
#include "common/model/make_model.h"
#include "nlohmann/json.hpp"
#include "tests/bench/made_model.h"
#include "tests/bench/quantiles.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

constexpr int kPromptTokens = 128;
constexpr int kPrefillTokens = 512;
constexpr int kRounds = 41;
constexpr int kPrefillRounds = 5;
constexpr double kMib = 1 << 20;

RandomModelOptions Shape() {
  RandomModelOptions model;
  model.hidden_size = 1024;
  model.intermediate_size = 3072;
  model.num_hidden_layers = 28;
  model.num_attention_heads = 16;
  model.num_key_value_heads = 8;
  model.head_dim = 128;
  model.vocab_size = 151936;
  model.tie_word_embeddings = true;
  model.dtype = DType::kBF16;
  return model;
}

class Subject {
 public:
  Subject(const fs::path& model, std::optional<ElementType> dtype,
          Backend backend = Backend::kNative) {
    const int64_t before = ResidentBytes();
    ExecutorOptions options;
    options.numerics = CpuNumerics::kAuto;  // As users have it.
    options.model_path = model.string();
    options.page_count = 16;
    options.dtype = dtype;
    options.backend = backend;
    auto stage = LoadStageModel(options);
    BATON_CHECK(stage.ok()) << stage.status();
    model_ = *std::move(stage);
    resident_bytes_ = ResidentBytes() - before;
    pages_.resize(16);
    std::iota(pages_.begin(), pages_.end(), 0);
    logits_.resize(static_cast<size_t>(model_->config().vocab_size));
    Milliseconds(kPromptTokens, 0);
  }

  int64_t resident_bytes() const { return resident_bytes_; }

  // Decodes one token after the prompt, always at one position, so that all steps are the same.
  double DecodeMs() { return Milliseconds(1, kPromptTokens); }
  double PrefillMs() { return Milliseconds(kPrefillTokens, 0); }

 private:
  double Milliseconds(int tokens, int prefix) {
    std::vector<int32_t> ids(static_cast<size_t>(tokens));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(97 * i % 100'000);
    const Batch batch = {{{ids, tokens, prefix, pages_, true}}};
    const auto begin = std::chrono::steady_clock::now();
    const absl::Status status = model_->Forward(batch, {}, {}, logits_);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    BATON_CHECK(status.ok()) << status;
    return took.count();
  }

  std::unique_ptr<StageModel> model_;
  int64_t resident_bytes_ = 0;
  std::vector<int32_t> pages_;
  std::vector<float> logits_;
};

using Json = nlohmann::ordered_json;

// Median and quartiles of the rounds' ratios, and both times.
void Compare(const std::string& name, int rounds, Json& out, double (Subject::*measure)(),
             Subject& narrow, Subject& wide) {
  std::vector<double> narrow_ms, wide_ms, gains;
  for (int round = 0; round < rounds; ++round) {
    narrow_ms.push_back((narrow.*measure)());
    wide_ms.push_back((wide.*measure)());
    gains.push_back(wide_ms.back() / narrow_ms.back());
  }
  PutQuartiles(name + "_bf16_gain", gains, out);
  out[name + "_ms_bfloat16"] = Quantile(narrow_ms, 0.5);
  out[name + "_ms_float32"] = Quantile(wide_ms, 0.5);
}

// Prefill by libtorch's operators over that by Baton's kernels, in time: more than 1 is slower.
void CompareTorch(const fs::path& model, Subject& narrow, Subject& wide, Json& out) {
  for (Subject* const native : {&narrow, &wide}) {
    const ElementType type = native == &narrow ? ElementType::kBFloat16 : ElementType::kFloat32;
    Subject torch(model, type, Backend::kTorch);
    std::vector<double> ratios;
    for (int round = 0; round < kPrefillRounds; ++round) {
      const double native_ms = native->PrefillMs();
      ratios.push_back(torch.PrefillMs() / native_ms);
    }
    PutQuartiles(absl::StrCat("torch_vs_native_", ElementTypeName(type)), ratios, out);
  }
}

// The times of bfloat16 by itself, as users have it.
Json TimeAlone(Subject& narrow) {
  std::vector<double> decode_ms, prefill_ms;
  for (int round = 0; round < kRounds; ++round) decode_ms.push_back(narrow.DecodeMs());
  for (int round = 0; round < kPrefillRounds; ++round) prefill_ms.push_back(narrow.PrefillMs());
  return {{"decode_ms", Quantile(decode_ms, 0.5)}, {"prefill_ms", Quantile(prefill_ms, 0.5)}};
}

int Main(bool alone) {
  std::fprintf(stderr, "making a model of 0.6B parameters\n");
  const MadeModel model(Shape());
  if (alone) {
    Subject narrow(model.path(), std::nullopt);
    std::printf("%s\n", TimeAlone(narrow).dump(1).c_str());
    return 0;
  }
  const double file_bytes = model.file_bytes();
  Subject narrow(model.path(), std::nullopt);  // --dtype auto
  Subject wide(model.path(), ElementType::kFloat32);
  Json out;
  Compare("decode", kRounds, out, &Subject::DecodeMs, narrow, wide);
  Compare("prefill", kPrefillRounds, out, &Subject::PrefillMs, narrow, wide);
  CompareTorch(model.path(), narrow, wide, out);
  out["bf16_memory"] = static_cast<double>(narrow.resident_bytes()) / file_bytes;
  out["float32_memory"] = static_cast<double>(wide.resident_bytes()) / file_bytes;
  out["model_file_mib"] = file_bytes / kMib;
  out["decode_gbps_bfloat16"] = file_bytes / 1e6 / out["decode_ms_bfloat16"].get<double>();
  out["decode_gbps_float32"] = 2 * file_bytes / 1e6 / out["decode_ms_float32"].get<double>();
  std::printf("%s\n", out.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  const bool alone = argc == 2 && std::string(argv[1]) == "alone";
  if (argc > 1 && !alone) {
    std::fprintf(stderr, "usage: dtype_bench [alone]\n");
    return 2;
  }
  return baton::Main(alone);
}
