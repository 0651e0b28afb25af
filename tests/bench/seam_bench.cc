// What the asynchronous seam adds to a plan, microseconds: a step through an executor beside the
// same step called directly, in turn. Prints a flat JSON object.
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/sync.h"
#include "common/engine/host_kv_memory.h"
#include "common/engine/threaded_executor.h"
#include "nlohmann/json.hpp"
#include "tests/bench/quantiles.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRounds = 400;
constexpr size_t kSequences = 16;

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

// What a step of `busy_us` takes longer through the seam, round by round.
std::vector<double> Added(int64_t busy_us) {
  auto owned = std::make_unique<Busy>(busy_us);
  Busy* const model = owned.get();
  ThreadedExecutor executor(std::move(owned), "bench.compute");
  const std::vector<int32_t> tokens(64, 1);
  const std::vector<int32_t> pages = {0};
  std::vector<double> added_us;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t begun_us = NowUs();
    Batch batch;
    for (size_t i = 0; i < kSequences; ++i) batch.slices.push_back({tokens, 64, 0, pages, false});
    BATON_CHECK(model->Forward(batch, {}, {}, {}).ok()) << "busy";
    const int64_t called_us = NowUs();
    Notification done;
    Step step;
    step.sequences.resize(kSequences);
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
    added_us.push_back(static_cast<double>((NowUs() - called_us) - (called_us - begun_us)));
  }
  return added_us;
}

// The same step on a bare thread: what waking two sleepers costs on this machine, whoever asks.
std::vector<double> BareWakings(int64_t busy_us) {
  Busy model(busy_us);
  Mutex mutex;
  int asked = 0;
  int answered = 0;
  std::thread worker([&] {
    for (int round = 1; round <= kRounds; ++round) {
      {
        MutexLock lock(&mutex);
        mutex.Await([&] { return asked == round; });
      }
      BATON_CHECK(model.Forward({}, {}, {}, {}).ok()) << "busy";
      MutexLock lock(&mutex);
      answered = round;
    }
  });
  std::vector<double> added_us;
  for (int round = 1; round <= kRounds; ++round) {
    BATON_CHECK(model.Forward({}, {}, {}, {}).ok()) << "busy";  // The worker sleeps meanwhile.
    const int64_t begun_us = NowUs();
    {
      MutexLock lock(&mutex);
      asked = round;
    }
    MutexLock lock(&mutex);
    mutex.Await([&] { return answered == round; });
    added_us.push_back(static_cast<double>(NowUs() - begun_us - busy_us));
  }
  worker.join();
  return added_us;
}

// What is added to each of many plans when the next one is submitted while one runs.
double AddedInFlight(int64_t busy_us) {
  ThreadedExecutor executor(std::make_unique<Busy>(busy_us), "bench.compute");
  const std::vector<int32_t> tokens(64, 1);
  const std::vector<int32_t> pages = {0};
  Mutex mutex;
  int ended = 0;
  const int64_t begun_us = NowUs();
  for (int round = 0; round < kRounds; ++round) {
    Step step;
    step.sequences.resize(1);
    step.sequences[0] = {tokens, 64, 0, pages, {}, {}};
    executor.Submit(std::move(step), [&](const StepResult&) {
      MutexLock lock(&mutex);
      ++ended;
    });
    MutexLock lock(&mutex);
    mutex.Await([&] { return ended >= round; });  // Two at most are under way.
  }
  MutexLock lock(&mutex);
  mutex.Await([&] { return ended == kRounds; });
  return static_cast<double>(NowUs() - begun_us) / kRounds - static_cast<double>(busy_us);
}

int Main() {
  Json out;
  // The limit is for plans that compute; an idle machine's sleeping thread is woken slowest.
  for (const int64_t busy_us : {0, 200, 5000}) {
    const std::string key =
        busy_us == 5000 ? "seam_cost" : absl::StrCat("seam_cost_", busy_us, "us");
    PutQuartiles(key, Added(busy_us), out);
  }
  out["bare_wakings"] = Quantile(BareWakings(5000), 0.5);
  out["seam_cost_in_flight"] = AddedInFlight(5000);
  std::printf("%s\n", out.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace baton

int main() { return baton::Main(); }
