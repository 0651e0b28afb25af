// Kernels and whole steps beside the machine's limit, measured in the same run:
//   bazel run -c opt //common/engine:engine_benchmark
// Counters: GFLOPs, `peak`, the share of the FP32 multiply-add peak of one core, and weight_bytes,
// each second.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/random.h"
#include "common/engine/create_executor.h"
#include "common/engine/executors/threaded_executor.h"
#include "common/engine/kernels/kernels.h"
#include "common/engine/sampling/sampler.h"
#include "common/engine/stage_model.h"
#include "common/engine/testing/instruction_peaks.h"
#include "common/engine/torch/torch_backend.h"
#include "common/model/make_model.h"

namespace baton {
namespace {

std::vector<float> RandomFloats(size_t count) {
  Random random(1);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random.Uniform() - 0.5);
  return values;
}

// The best of several short runs, measured once.
double FmaPeakFlopsPerSecond() {
  static const double peak = [] {
    double best = 0;
    for (int run = 0; run < 20; ++run) {
      const auto begin = std::chrono::steady_clock::now();
      const double operations = kernels::FindKernels("")->multiply_adds(1 << 20);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      best = std::max(best, operations / took.count());
    }
    return best;
  }();
  return peak;
}

void ReportFlops(benchmark::State& state, double flops_per_iteration) {
  const double flops = flops_per_iteration * static_cast<double>(state.iterations());
  state.counters["GFLOPs"] = benchmark::Counter(flops / 1e9, benchmark::Counter::kIsRate);
  state.counters["peak"] =
      benchmark::Counter(flops / FmaPeakFlopsPerSecond(), benchmark::Counter::kIsRate);
}

// Bytes of weights that an iteration reads, each second.
void ReportWeightBytes(benchmark::State& state, size_t bytes) {
  state.counters["weight_bytes"] =
      benchmark::Counter(static_cast<double>(bytes), benchmark::Counter::kIsIterationInvariantRate);
}

template <typename Element, typename Linear>
void MeasureLinear(benchmark::State& state, const std::vector<Element>& panels, Linear linear) {
  const int rows = static_cast<int>(state.range(0));
  const int outputs = static_cast<int>(state.range(1));
  const int inputs = static_cast<int>(state.range(2));
  const auto x = RandomFloats(static_cast<size_t>(rows) * static_cast<size_t>(inputs));
  std::vector<float> y(static_cast<size_t>(rows) * static_cast<size_t>(outputs));
  const kernels::Packed<Element> matrix = {panels.data(), outputs, inputs};
  const int panel_width = kernels::FindKernels("")->panel_width;
  const int panel_count = (outputs + panel_width - 1) / panel_width;
  for (auto _ : state) {
    linear(matrix, x.data(), rows, 0, panel_count, y.data(), static_cast<size_t>(outputs));
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  ReportFlops(state, 2.0 * rows * outputs * inputs);
  ReportWeightBytes(state, panels.size() * sizeof(Element));
}

std::vector<float> RandomPanels(const benchmark::State& state) {
  return RandomFloats(kernels::PackedSize(static_cast<int>(state.range(1)),
                                          static_cast<int>(state.range(2)),
                                          kernels::FindKernels("")->panel_width));
}

// Arguments: rows, outputs, inputs. The one row of 65,536 outputs is more than any cache holds, as
// weights are when a token is decoded.
void BM_Linear(benchmark::State& state) {
  MeasureLinear(state, RandomPanels(state), kernels::FindKernels("")->linear);
}
BENCHMARK(BM_Linear)
    ->ArgNames({"rows", "out", "in"})
    ->Args({1, 65536, 4096})
    ->Args({1, 262144, 1024})
    ->Args({4, 65536, 4096})
    ->Args({8, 65536, 4096})
    ->Args({1, 1536, 256})
    ->Args({1, 4096, 4096})
    ->Args({16, 1536, 256})
    ->Args({16, 4096, 4096})
    ->Args({192, 1536, 256})
    ->Args({192, 256, 768})
    ->Args({256, 4096, 4096});

// The same with weights in bfloat16.
void BM_LinearBf16(benchmark::State& state) {
  const kernels::KernelTable& table = *kernels::FindKernels("");
  const std::vector<float> wide = RandomPanels(state);
  std::vector<kernels::Bf16> panels(wide.size());
  table.to_bf16(wide.data(), wide.size(), panels.data());
  MeasureLinear(state, panels, table.linear_bf16);
}
BENCHMARK(BM_LinearBf16)
    ->ArgNames({"rows", "out", "in"})
    ->Args({1, 65536, 4096})
    ->Args({1, 262144, 1024})
    ->Args({4, 65536, 4096})
    ->Args({8, 65536, 4096})
    ->Args({16, 4096, 4096})
    ->Args({256, 4096, 4096});

// Arguments: tokens of the chunk, prefix, head_dim; 4 query heads share a KV head.
void BM_Attention(benchmark::State& state) {
  constexpr int kHeads = 4;
  const kernels::KernelTable& table = *kernels::FindKernels("");
  const int tokens = static_cast<int>(state.range(0));
  const int prefix = static_cast<int>(state.range(1));
  const int dim = static_cast<int>(state.range(2));
  const size_t tile_floats = static_cast<size_t>(kernels::kKeyTile * dim);
  const size_t tiles = static_cast<size_t>((prefix + tokens) / kernels::kKeyTile + 1);
  const auto kv = RandomFloats(2 * tiles * tile_floats);
  std::vector<const float*> keys;
  std::vector<const float*> values;
  for (size_t i = 0; i < tiles; ++i) {
    keys.push_back(&kv[2 * i * tile_floats]);
    values.push_back(&kv[(2 * i + 1) * tile_floats]);
  }
  const auto query = RandomFloats(static_cast<size_t>(tokens * kHeads * dim));
  std::vector<float> output(query.size());
  kernels::AttentionArgs<float> args;
  args.query = query.data();
  args.output = output.data();
  args.query_stride = args.output_stride = static_cast<size_t>(kHeads * dim);
  args.tokens = tokens;
  args.heads = kHeads;
  args.head_dim = dim;
  args.first_position = prefix;
  args.scale = 0.125f;
  args.kv = {keys.data(), values.data()};
  for (auto _ : state) {
    table.attention(args);
    benchmark::DoNotOptimize(output.data());
    benchmark::ClobberMemory();
  }
  const double pairs = static_cast<double>(tokens) * (prefix + (tokens + 1) / 2.0);
  ReportFlops(state, 4.0 * pairs * kHeads * dim);
}
BENCHMARK(BM_Attention)
    ->ArgNames({"tokens", "prefix", "dim"})
    ->Args({1024, 4096, 32})
    ->Args({1024, 4096, 64})
    ->Args({1024, 4096, 128})
    ->Args({1, 4096, 64});

// The size of the model that ships with Baton: 8 layers, hidden 256.
std::unique_ptr<StageModel> ShippedSizeModel(int vocab_size = 4096, int threads = 1) {
  RandomModelOptions model;
  model.hidden_size = 256;
  model.intermediate_size = 768;
  model.num_hidden_layers = 8;
  model.num_attention_heads = 8;
  model.num_key_value_heads = 2;
  model.head_dim = 32;
  model.vocab_size = vocab_size;
  model.tie_word_embeddings = true;
  model.dtype = DType::kBF16;
  const std::string path =
      (std::filesystem::temp_directory_path() / "baton_engine_benchmark").string();
  const absl::Status made = MakeRandomModel(path, model);
  BATON_CHECK(made.ok()) << made;
  ExecutorOptions options;
  options.numerics = CpuNumerics::kAuto;  // As users have it.
  options.model_path = path;
  options.threads = threads;
  auto loaded = LoadStageModel(options);
  BATON_CHECK(loaded.ok()) << loaded.status();
  return *std::move(loaded);
}

// Arguments: tokens per step, prefix, sequences.
void BM_Step(benchmark::State& state) {
  const auto model = ShippedSizeModel();
  const int tokens = static_cast<int>(state.range(0));
  const int prefix = static_cast<int>(state.range(1));
  const int sequences = static_cast<int>(state.range(2));
  std::vector<int32_t> ids(static_cast<size_t>(tokens), 65);
  std::vector<int32_t> pages;
  const int pages_each = (prefix + tokens) / model->kv().page_size + 1;
  for (int page = 0; page < pages_each; ++page) pages.push_back(page);
  Batch batch;
  // All on the same pages: the same work, less memory.
  for (int i = 0; i < sequences; ++i) batch.slices.push_back({ids, tokens, prefix, pages, true});
  std::vector<float> logits(static_cast<size_t>(sequences) * 4096);
  for (auto _ : state) {
    const absl::Status status = model->Forward(batch, {}, {}, logits);
    BATON_CHECK(status.ok()) << status;
  }
  state.counters["tokens"] = benchmark::Counter(static_cast<double>(tokens) * sequences,
                                                benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_Step)
    ->ArgNames({"tokens", "prefix", "sequences"})
    ->Args({4400, 0, 1})
    ->Args({512, 0, 1})
    ->Args({512, 3888, 1})
    ->Args({1, 4400, 1})
    ->Args({1, 4400, 8})
    ->Unit(benchmark::kMillisecond);

// How the tokens of a step are chosen; index of the benchmarks' argument.
SamplingParams Choice(int64_t kind) {
  SamplingParams params;
  if (kind == 0) params.temperature = 0;
  if (kind == 2) params.top_p = 0.9;
  if (kind == 3) params.top_k = 50;
  if (kind == 4) params.logprobs = true;
  return params;
}
constexpr const char* kChoices[] = {"greedy", "temperature", "top_p 0.9", "top_k 50", "logprobs"};

// One row of a vocabulary. Arguments: choice; spread of the logits (1: flat, as random weights make
// them, which is the hardest to select from; 10: peaked, as models make them).
void BM_Sample(benchmark::State& state) {
  constexpr int kVocab = 131072;
  std::vector<float> logits = RandomFloats(kVocab);
  for (float& logit : logits) logit *= static_cast<float>(2 * state.range(1));
  const SamplingParams params = Choice(state.range(0));
  Sampler sampler(kVocab);
  int position = 0;
  for (auto _ : state) {
    const auto token = sampler.Sample({logits, &params, 1, position++, nullptr});
    BATON_CHECK(token.ok()) << token.status();
  }
  state.SetLabel(kChoices[state.range(0)]);
}
BENCHMARK(BM_Sample)
    ->ArgNames({"choice", "spread"})
    ->ArgsProduct({{0, 1, 2, 3, 4}, {1, 10}})
    ->Unit(benchmark::kMicrosecond);

// Decode steps of 16 sequences with greedy draws and with others in turn, at a vocabulary of 128K
// on two threads: `ratio` is the median of the pairs', which is what drifts least.
// Argument: choice.
void BM_DecodeStep(benchmark::State& state) {
  constexpr int kVocab = 131072;
  constexpr int kSequences = 16;
  const auto model = ShippedSizeModel(kVocab, 2);
  RowSampler sampler(model.get());
  const std::vector<int32_t> ids = {65};
  const std::vector<int32_t> pages = {0};
  Batch batch;
  for (int i = 0; i < kSequences; ++i) batch.slices.push_back({ids, 1, 20, pages, true});
  std::vector<float> logits(size_t{kSequences} * kVocab);
  int position = 0;
  const auto step = [&](const SamplingParams& params) {
    const auto begin = std::chrono::steady_clock::now();
    const absl::Status status = model->Forward(batch, {}, {}, logits);
    BATON_CHECK(status.ok()) << status;
    std::vector<Sampler::Row> rows;
    for (size_t i = 0; i < kSequences; ++i) {
      rows.push_back(
          {std::span(logits).subspan(i * kVocab, kVocab), &params, i, position, nullptr});
    }
    ++position;
    benchmark::DoNotOptimize(sampler.Draw(rows));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    return took.count();
  };
  const auto median = [](std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                     values.end());
    return values[values.size() / 2];
  };
  std::vector<double> greedy;
  std::vector<double> ratios;
  for (auto _ : state) {
    greedy.push_back(step(Choice(0)));
    ratios.push_back(step(Choice(state.range(0))) / greedy.back());
  }
  state.counters["greedy_ms"] = 1e3 * median(greedy);
  state.counters["ratio"] = median(ratios);
  state.SetLabel(kChoices[state.range(0)]);
}
BENCHMARK(BM_DecodeStep)
    ->ArgName("choice")
    ->DenseRange(0, 4)
    ->Unit(benchmark::kMillisecond)
    ->MinTime(5);

// Arguments as of BM_Linear, on one thread: libtorch's product, to compare in one run.
void BM_TorchLinear(benchmark::State& state) {
  const auto plugin = LoadTorchPlugin();
  BATON_CHECK(plugin.ok()) << plugin.status();
  (*plugin)->set_threads(1);
  const int rows = static_cast<int>(state.range(0));
  const int outputs = static_cast<int>(state.range(1));
  const int inputs = static_cast<int>(state.range(2));
  const auto weights = RandomFloats(static_cast<size_t>(outputs) * static_cast<size_t>(inputs));
  const auto x = RandomFloats(static_cast<size_t>(rows) * static_cast<size_t>(inputs));
  std::vector<float> y(static_cast<size_t>(rows) * static_cast<size_t>(outputs));
  const auto linear = (*plugin)->make_linear(outputs, inputs);
  linear->SetRows(reinterpret_cast<const std::byte*>(weights.data()), nullptr, 0, outputs);
  for (auto _ : state) {
    linear->Apply(x.data(), rows, y.data());
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  ReportFlops(state, 2.0 * rows * outputs * inputs);
}
BENCHMARK(BM_TorchLinear)
    ->ArgNames({"rows", "out", "in"})
    ->Args({1, 4096, 4096})
    ->Args({16, 4096, 4096})
    ->Args({192, 1536, 256})
    ->Args({256, 4096, 4096});

void BM_FmaPeak(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(FmaPeakFlopsPerSecond());
  state.counters["GFLOPs"] = FmaPeakFlopsPerSecond() / 1e9;
}
BENCHMARK(BM_FmaPeak)->Iterations(1);

// Instructions that Baton does not use; `peak` is their speed as a multiple of multiply-adds'.
void BM_InstructionPeak(benchmark::State& state, const InstructionPeak& instruction) {
  if (!instruction.available()) return state.SkipWithError("this CPU has no such instruction");
  double operations = 0;
  for (auto _ : state) operations = instruction.run(1 << 18);
  ReportFlops(state, operations);
}
BENCHMARK_CAPTURE(BM_InstructionPeak, vdpbf16ps, kAvx512Bf16Peak);
BENCHMARK_CAPTURE(BM_InstructionPeak, tdpbf16ps, kAmxBf16Peak);

}  // namespace
}  // namespace baton
