// Layers of large models beside what this machine could do at best: products beside the peak of its
// fastest instructions, decode steps beside the rate at which it reads memory. Random weights of
// the real shapes, one layer each. Argument: threads. Prints progress for people on standard error
// and a flat JSON object.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/device/memory.h"
#include "common/engine/create_executor.h"
#include "common/engine/kernels/bf16_products.h"
#include "common/engine/kernels/kernels.h"
#include "common/engine/stage_model.h"
#include "common/engine/testing/instruction_peaks.h"
#include "common/model/make_model.h"
#include "nlohmann/json.hpp"
#include "tests/bench/made_model.h"
#include "tests/bench/quantiles.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGiga = 1e9;
constexpr int kPageTokens = 64;
constexpr int kVocabulary = 512;  // So that embedding and head take next to nothing.

double Seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return took.count();
}

double BestSeconds(int rounds, const std::function<void()>& work) {
  double best = Seconds(work);
  for (int round = 1; round < rounds; ++round) best = std::min(best, Seconds(work));
  return best;
}

// `work(thread)` on so many threads at once.
void OnThreads(int threads, const std::function<void(int)>& work) {
  std::vector<std::jthread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
  work(0);
}

// The peak of the instructions that multiply bfloat16 here; nullptr: float32 is multiplied.
const InstructionPeak* FastestBf16Peak() {
  const kernels::Bf16Products* products = kernels::FastestBf16Products();
  if (products == nullptr) return nullptr;
  return std::string_view(products->name) == "amx" ? &kAmxBf16Peak : &kAvx512Bf16Peak;
}

// Operations a second, all threads together.
double PeakFlops(int threads) {
  const auto run = [](int) {
    if (const InstructionPeak* peak = FastestBf16Peak()) return peak->run(1 << 20);
    return kernels::FindKernels("")->multiply_adds(1 << 21);
  };
  std::vector<double> operations(static_cast<size_t>(threads));
  const double took = BestSeconds(10, [&] {
    OnThreads(threads, [&](int thread) { operations[static_cast<size_t>(thread)] = run(thread); });
  });
  return std::accumulate(operations.begin(), operations.end(), 0.0) / took;
}

// The sum of a thread's words, in as many chains as keep up with memory. Vectors as wide as every
// x86-64 has them: the compiler passes wider ones through the stack.
uint64_t SumOf(const uint64_t* words, size_t count) {
  typedef uint64_t Part __attribute__((vector_size(16)));
  constexpr size_t kChains = 8;
  constexpr size_t kLineWords = 8;
  constexpr size_t kAhead = 2048;  // Bytes; hardware prefetchers restart in every page.
  constexpr int kRead = 0, kSecondLevelCache = 2;
  Part sums[kChains] = {};
  for (size_t i = 0; i + kChains * 2 <= count; i += kChains * 2) {
#pragma GCC unroll 2
    for (size_t line = 0; line < kChains * 2; line += kLineWords) {
      __builtin_prefetch(reinterpret_cast<const char*>(words + i + line) + kAhead, kRead,
                         kSecondLevelCache);
    }
#pragma GCC unroll 8
    for (size_t chain = 0; chain < kChains; ++chain) {
      Part part;
      std::memcpy(&part, words + i + chain * 2, sizeof(part));
      sums[chain] += part;
    }
  }
  uint64_t sum = 0;
  for (const Part& part : sums) sum += part[0] + part[1];
  return sum;
}

// Bytes a second of a buffer that no cache holds, in large pages as weights are.
double ReadBytesPerSecond(int threads) {
  constexpr size_t kWords = size_t{1} << 27;
  auto memory = AllocateHost(kWords * sizeof(uint64_t));
  BATON_CHECK(memory.ok()) << memory.status();
  auto* const words = reinterpret_cast<uint64_t*>(memory->span().data);
  std::fill_n(words, kWords, 1);
  const size_t each = kWords / static_cast<size_t>(threads);
  std::vector<uint64_t> sums(static_cast<size_t>(threads));
  const double took = BestSeconds(5, [&] {
    OnThreads(threads, [&](int thread) {
      const auto own = static_cast<size_t>(thread);
      sums[own] = SumOf(words + own * each, each);
    });
  });
  BATON_CHECK(std::accumulate(sums.begin(), sums.end(), uint64_t{0}) == kWords);
  return static_cast<double>(kWords * sizeof(uint64_t)) / took;
}

// A loaded model, whose files are gone again.
class Layers {
 public:
  Layers(const RandomModelOptions& shape, int threads, int tokens) {
    const MadeModel made(shape);
    file_bytes_ = made.file_bytes();
    const int64_t before = ResidentBytes();
    ExecutorOptions options;
    options.numerics = CpuNumerics::kAuto;  // As users have it.
    options.model_path = made.path().string();
    options.page_size = kPageTokens;
    options.page_count = tokens / kPageTokens + 1;
    options.threads = threads;
    auto stage = LoadStageModel(options);
    BATON_CHECK(stage.ok()) << stage.status();
    model_ = *std::move(stage);
    resident_bytes_ = static_cast<double>(ResidentBytes() - before);
    pages_.resize(static_cast<size_t>(options.page_count));
    std::iota(pages_.begin(), pages_.end(), 0);
    // Memory that was never written is one page of zeros, which caches hold.
    for (const int32_t page : pages_) model_->kv_memory().ClearTail(page, 0);
  }

  double file_bytes() const { return file_bytes_; }
  double resident_bytes() const { return resident_bytes_; }
  const ModelConfig& config() const { return model_->config(); }

  // A step takes so long with so many tokens for each of so many sequences, all on the same pages.
  double StepSeconds(int rounds, int sequences, int tokens, int prefix) {
    std::vector<std::vector<int32_t>> ids;
    for (int i = 0; i < sequences; ++i) {
      std::vector<int32_t>& own = ids.emplace_back(static_cast<size_t>(tokens));
      for (size_t k = 0; k < own.size(); ++k) {
        own[k] = static_cast<int32_t>((97 * k + 31 * static_cast<size_t>(i)) % kVocabulary);
      }
    }
    Batch batch;
    for (const auto& own : ids) batch.slices.push_back({own, tokens, prefix, pages_, true});
    std::vector<float> logits(static_cast<size_t>(sequences) * kVocabulary);
    return BestSeconds(rounds, [&] {
      const absl::Status status = model_->Forward(batch, {}, {}, logits);
      BATON_CHECK(status.ok()) << status;
    });
  }

 private:
  std::unique_ptr<StageModel> model_;
  std::vector<int32_t> pages_;
  double file_bytes_ = 0;
  double resident_bytes_ = 0;
};

RandomModelOptions Shape(const char* architecture, int hidden, int heads, int kv_heads) {
  RandomModelOptions shape;
  shape.architecture = architecture;
  shape.hidden_size = hidden;
  shape.num_attention_heads = heads;
  shape.num_key_value_heads = kv_heads;
  shape.head_dim = 128;
  shape.num_hidden_layers = 1;
  shape.vocab_size = kVocabulary;
  shape.max_position_embeddings = 65536;
  shape.dtype = DType::kBF16;
  return shape;
}

class Bench {
 public:
  explicit Bench(int threads)
      : threads_(threads),
        peak_flops_(PeakFlops(threads)),
        read_bytes_(ReadBytesPerSecond(threads)) {
    Put("peak_gflops", peak_flops_ / kGiga);
    Put("read_gbps", read_bytes_ / kGiga);
  }

  void Products() {
    constexpr int kRows = 512;
    constexpr int kSize = 4096;
    constexpr kernels::Bf16 kOne = {0x3f80};
    std::vector<float> y(size_t{kRows} * kSize);
    const kernels::KernelTable& table = *kernels::FindKernels("");
    const kernels::Bf16Products* products = kernels::FastestBf16Products();
    const int panel = products != nullptr ? kernels::kPairPanel : table.panel_width;
    const size_t size = products != nullptr ? kernels::PairedSize(kSize, kSize)
                                            : kernels::PackedSize(kSize, kSize, table.panel_width);
    // As the executor has them: on lines of the cache.
    const absl::StatusOr<MemoryBuffer> weights_memory = AllocateHost(size * sizeof(kernels::Bf16));
    const absl::StatusOr<MemoryBuffer> rows_memory =
        AllocateHost(size_t{kRows} * kSize * sizeof(kernels::Bf16));
    BATON_CHECK(weights_memory.ok() && rows_memory.ok());
    auto* const weights = reinterpret_cast<kernels::Bf16*>(weights_memory->span().data);
    auto* const narrow = reinterpret_cast<kernels::Bf16*>(rows_memory->span().data);
    std::fill_n(weights, size, kOne);
    std::fill_n(narrow, size_t{kRows} * kSize, kOne);
    const std::vector<float> wide(size_t{kRows} * kSize, 1.0F);
    const int panels = (kSize + panel - 1) / panel;
    const double took = BestSeconds(10, [&] {
      OnThreads(threads_, [&](int thread) {
        const int begin = panels * thread / threads_;
        const int end = panels * (thread + 1) / threads_;
        if (products != nullptr) {
          products->linear({weights, kSize, kSize}, narrow, kRows, begin, end, y.data(), kSize);
        } else {
          table.linear_bf16({weights, kSize, kSize}, wide.data(), kRows, begin, end, y.data(),
                            kSize);
        }
      });
    });
    Put("bf16_gemm_peak", 2.0 * kRows * kSize * kSize / took / peak_flops_);
  }

  // A layer of Qwen3-30B-A3B.
  void Experts() {
    constexpr int kExperts = 128;
    constexpr int kActive = 8;
    RandomModelOptions shape = Shape("Qwen3MoeForCausalLM", 2048, 32, 4);
    shape.num_experts = kExperts;
    shape.num_experts_per_tok = kActive;
    shape.moe_intermediate_size = 768;
    std::fprintf(stderr, "making a layer of 128 experts\n");
    Layers layer(shape, threads_, 2048);
    const ModelConfig& config = layer.config();
    const double expert = 3.0 * config.hidden_size * shape.moe_intermediate_size;
    const auto others = static_cast<double>(config.LayerParameters(0, 1)) - kExperts * expert;
    for (const int tokens : {512, 2048}) {
      const double pairs = 0.5 * tokens * tokens;
      const double flops = 2.0 * tokens * (others + kActive * expert) +
                           4.0 * pairs * config.num_attention_heads * config.head_dim;
      Put(absl::StrCat("moe_prefill_peak_", tokens),
          flops / layer.StepSeconds(3, 1, tokens, 0) / peak_flops_);
    }
    for (const int sequences : {1, 16}) {
      // Random routers choose each expert as often: so many of them by one sequence or more.
      const double missed = std::pow(1.0 - double{kActive} / kExperts, sequences);
      const double bytes = 2 * (others + kExperts * (1 - missed) * expert);
      Put(absl::StrCat("moe_decode_bw_", sequences),
          bytes / layer.StepSeconds(21, sequences, 1, 64) / read_bytes_);
    }
  }

  // A layer of DeepSeek-V3.1 with as many experts as a token uses, after 32K tokens.
  void Latent() {
    constexpr int kPrefix = 32768;
    constexpr int kChunk = 1024;
    RandomModelOptions shape = Shape("DeepseekV3ForCausalLM", 7168, 128, 128);
    shape.num_experts = shape.num_experts_per_tok = 8;
    shape.moe_intermediate_size = 2048;
    std::fprintf(stderr, "making a layer of latent attention\n");
    Layers layer(shape, threads_, kPrefix + kChunk);
    const ModelConfig& config = layer.config();
    const auto parameters = static_cast<double>(config.LayerParameters(0, 1));
    const auto row_bytes =
        static_cast<double>(config.kv(1, ElementType::kBFloat16).BandBytes({0, 1}));
    const double near = layer.StepSeconds(5, 1, 1, 64);
    const double far = layer.StepSeconds(5, 1, 1, kPrefix);
    Put("mla_decode_bw", (2 * parameters + kPrefix * row_bytes) / far / read_bytes_);
    // Each head multiplies every row by its query, and its value part by a weight. At batch 1 that
    // is more arithmetic than a processor does while memory gives the weights.
    const LatentAttention& latent = config.latent;
    const double heads = config.num_attention_heads;
    const double row_flops = 2.0 * heads * (2 * latent.kv_rank + latent.rope_dim);
    Put("mla_attention_ms", 1e3 * (far - near));
    Put("mla_attention_peak", kPrefix * row_flops / (far - near) / peak_flops_);
    // Keys and values of all heads are made of the latent rows, and then attended to.
    const double widened = heads * latent.kv_rank * (latent.nope_dim + latent.value_dim);
    const double pairs = kChunk * (kPrefix + 0.5 * kChunk);
    const double flops = 2 * kChunk * parameters + 2.0 * kPrefix * widened +
                         2 * pairs * heads * (latent.key_dim() + latent.value_dim);
    Put("mla_prefill_ratio", layer.StepSeconds(1, 1, kChunk, kPrefix) / (flops / peak_flops_));
  }

  // The layers of Qwen3-0.6B, without its large head: their projections are what FP8 narrows.
  void Fp8() {
    RandomModelOptions shape = Shape("Qwen3ForCausalLM", 1024, 16, 8);
    shape.intermediate_size = 3072;
    shape.num_hidden_layers = 28;
    std::fprintf(stderr, "making layers in bfloat16 and FP8\n");
    Layers wide(shape, threads_, 256);
    shape.fp8 = true;
    Layers narrow(shape, threads_, 256);
    std::vector<double> gains;
    std::vector<double> narrow_ms;
    for (int round = 0; round < 21; ++round) {
      const double wide_s = wide.StepSeconds(1, 1, 1, 128);
      narrow_ms.push_back(1e3 * narrow.StepSeconds(1, 1, 1, 128));
      gains.push_back(1e3 * wide_s / narrow_ms.back());
    }
    Put("fp8_decode_ms", Quantile(narrow_ms, 0.5));
    Put("fp8_decode_bw", narrow.file_bytes() / (Quantile(narrow_ms, 0.5) / 1e3) / read_bytes_);
    Put("fp8_decode_gain", Quantile(gains, 0.5));
    Put("fp8_decode_gain_p25", Quantile(gains, 0.25));
    std::vector<double> prefill_gains;
    for (int round = 0; round < 7; ++round) {
      const double wide_s = wide.StepSeconds(1, 1, 256, 0);
      prefill_gains.push_back(wide_s / narrow.StepSeconds(1, 1, 256, 0));
    }
    Put("fp8_prefill_gain", Quantile(prefill_gains, 0.5));
    Put("fp8_memory", narrow.resident_bytes() / narrow.file_bytes());
  }

  const Json& out() const { return out_; }

 private:
  void Put(const std::string& key, double value) {
    out_[threads_ == 1 ? key : absl::StrCat(key, "_", threads_, "t")] = value;
  }

  const int threads_;
  Json out_;
  const double peak_flops_;
  const double read_bytes_;
};

int Main(int threads) {
  Bench bench(threads);
  bench.Products();
  bench.Fp8();
  bench.Experts();
  bench.Latent();
  std::printf("%s\n", bench.out().dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc > 1 ? std::atoi(argv[1]) : 1); }
