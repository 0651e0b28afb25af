// What the asynchronous seam adds to a plan: a step through an executor beside the same step called
// directly, in turn.
//   bazel run -c opt //common/engine:seam_benchmark
// Counters: `added_us`, the median of the differences; `direct_us`, the direct call's.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/sync.h"
#include "common/engine/host_kv_memory.h"
#include "common/engine/threaded_executor.h"

namespace baton {
namespace {

// Computes for a given time.
class Busy final : public StageModel {
 public:
  explicit Busy(int64_t busy_us) : busy_us_(busy_us) {
    config_.num_hidden_layers = 2;
    config_.vocab_size = 1000;
    kv_.layer_end = 1;  // No last stage: nothing is drawn.
  }
  const ModelConfig& config() const override { return config_; }
  const KvGeometry& kv() const override { return kv_; }
  KvMemory& kv_memory() override { return kv_memory_; }
  absl::Status Forward(const Batch&, const TensorView&, const TensorView&,
                       std::span<float>) override {
    const int64_t end_us = NowUs() + busy_us_;
    while (NowUs() < end_us) {
    }
    return absl::OkStatus();
  }

 private:
  const int64_t busy_us_;
  ModelConfig config_;
  KvGeometry kv_;
  HostKvMemory kv_memory_{kv_, {}};
};

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Arguments: what a step computes, microseconds; sequences.
void BM_Seam(benchmark::State& state) {
  auto owned = std::make_unique<Busy>(state.range(0));
  Busy* const model = owned.get();
  ThreadedExecutor executor(std::move(owned), "benchmark.compute");
  const std::vector<int32_t> tokens(64, 1);
  const std::vector<int32_t> pages = {0};
  const auto sequences = static_cast<size_t>(state.range(1));
  std::vector<double> direct_us;
  std::vector<double> added_us;
  for (auto _ : state) {
    const int64_t begun_us = NowUs();
    Batch batch;
    for (size_t i = 0; i < sequences; ++i) batch.slices.push_back({tokens, 64, 0, pages, false});
    BATON_CHECK(model->Forward(batch, {}, {}, {}).ok()) << "busy";
    const int64_t called_us = NowUs();
    Notification done;
    Step step;
    step.sequences.resize(sequences);
    for (SequenceStep& sequence : step.sequences) {
      sequence.tokens = tokens;
      sequence.token_count = 64;
      sequence.pages = pages;
    }
    executor.Submit(std::move(step), [&](const StepResult& result) {
      BATON_CHECK(result.status.ok()) << result.status;
      done.Notify();
    });
    done.WaitForNotification();
    direct_us.push_back(static_cast<double>(called_us - begun_us));
    added_us.push_back(static_cast<double>(NowUs() - called_us) - direct_us.back());
  }
  state.counters["direct_us"] = Median(direct_us);
  state.counters["added_us"] = Median(added_us);
}
BENCHMARK(BM_Seam)
    ->ArgNames({"busy_us", "sequences"})
    ->ArgsProduct({{0, 200, 5000}, {1, 16}})
    ->MinTime(2);

}  // namespace
}  // namespace baton
