// What the asynchronous seam adds to a plan, microseconds: plans through a stage's core and an
// executor, as a stage submits them; and one step through an executor beside the same step called
// directly, in turn. Prints a flat JSON object.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/event_loop.h"
#include "common/base/sync.h"
#include "common/engine/attention/host_kv_memory.h"
#include "common/engine/executors/threaded_executor.h"
#include "nlohmann/json.hpp"
#include "services/prefill/core/stage.h"
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

// The same step on a bare thread: what waking two sleeping threads costs on this machine.
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

// The only stage of a chain: its core on a loop's thread, its plans through an executor, each a
// prompt of one page. What a shell does beside that (KV, reports) ends at once.
class StageDriver {
 public:
  StageDriver(int64_t busy_us, int plans_in_flight)
      : busy_us_(busy_us),
        lead_(std::max<uint64_t>(2, static_cast<uint64_t>(plans_in_flight))),
        stage_({.page_size = kTokens, .plans_in_flight = plans_in_flight}),
        executor_(std::make_unique<Busy>(busy_us), "bench.compute") {
    loop_.Start();
    Post([this] { Tell(prefill::EpochBegan{1}); });
  }
  ~StageDriver() {
    executor_.Stop();
    loop_.Stop();
  }

  struct Cost {
    double between_us;  // From one's end to the next one's.
    double whole_us;    // A plan's share of the whole, from asking for the first to all done.
  };
  // What each of so many plans takes longer than to compute. Before the first and behind the last
  // threads are woken that have slept, which no plan does that follows another: `whole_us` has a
  // part of that which depends on how many plans there are.
  Cost Added(uint64_t plans) {
    Notification through;
    const int64_t begun_us = NowUs();
    Post([&] {
      first_ = done_ + 1;
      last_ = done_ + plans;
      through_ = &through;
      Issue();
    });
    through.WaitForNotification();
    const int64_t between_us = last_us_ - first_us_;  // Written before the notification.
    return {Share(between_us, plans - 1), Share(NowUs() - begun_us, plans)};
  }

 private:
  static constexpr int kTokens = 64;

  double Share(int64_t time_us, uint64_t plans) const {
    return static_cast<double>(time_us) / static_cast<double>(plans) -
           static_cast<double>(busy_us_);
  }
  void Post(std::function<void()> task) {
    BATON_CHECK(loop_.PostCompletion(std::move(task))) << "the loop has ended";
  }
  // As stage 0's planner does.
  void Issue() {
    while (issued_ < last_ && issued_ - done_ < lead_) {
      const uint64_t number = ++issued_;
      Ticket ticket;
      ticket.prompt_tokens = kTokens;
      ticket.prompt_pages = 1;
      events_.emplace_back(prefill::PlanArrived{
          {1, number, {{number, ticket, {0}}}, {{number, 0, kTokens, true}}, {}}});
    }
    Drain();
  }
  void Tell(prefill::StageEvent event) {
    events_.push_back(std::move(event));
    Drain();
  }
  void Drain() {
    while (!events_.empty()) {
      const prefill::StageEvent event = std::move(events_.front());
      events_.pop_front();
      std::vector<prefill::StageAction> actions;
      stage_.Handle(event, NowUs(), actions);
      for (const prefill::StageAction& action : actions) {
        std::visit([this](const auto& act) { Perform(act); }, action);
      }
    }
  }
  template <typename Action>
  void Perform(const Action& action) {
    if constexpr (std::is_same_v<Action, prefill::RunCompute>) {
      Submit(action);
    } else if constexpr (std::is_same_v<Action, prefill::SendKv> ||
                         std::is_same_v<Action, prefill::SendCommit>) {
      events_.emplace_back(prefill::KvSent{1, action.send_id, absl::OkStatus(), 0, 0});
    } else if constexpr (std::is_same_v<Action, prefill::ReportPlanDone>) {
      if (++done_ == first_) first_us_ = NowUs();
      if (done_ == last_) {
        last_us_ = NowUs();
        return through_->Notify();
      }
      Post([this] { Issue(); });
    }
  }
  void Submit(const prefill::RunCompute& run) {
    Step step;
    step.sequences.resize(1);
    step.sequences[0] = {tokens_, kTokens, 0, pages_, {}, {}};
    executor_.Submit(std::move(step), [this, number = run.number](const StepResult& result) {
      prefill::ComputeFinished finished{1, number, result.status, result.compute_us, {}, {}};
      finished.drawn.emplace_back(SampledToken{});
      Post([this, finished] { Tell(finished); });
    });
  }

  const int64_t busy_us_;
  const uint64_t lead_;
  const std::vector<int32_t> tokens_ = std::vector<int32_t>(kTokens, 1);
  const std::vector<int32_t> pages_ = {0};
  // The loop's:
  prefill::Stage stage_;
  std::deque<prefill::StageEvent> events_;
  uint64_t issued_ = 0;
  uint64_t done_ = 0;
  uint64_t first_ = 0;
  uint64_t last_ = 0;
  int64_t first_us_ = 0;  // When they ended.
  int64_t last_us_ = 0;
  Notification* through_ = nullptr;
  EventLoop loop_{"bench-stage"};
  ThreadedExecutor executor_;
};

// In turn, so that all meet the same machine.
void MeasureStage(Json& out) {
  constexpr int kTurns = 15;
  constexpr uint64_t kPlans = 25;
  std::vector<double> ahead_us;
  std::vector<double> whole_us;
  std::vector<double> one_us;
  StageDriver ahead(5000, prefill::StageOptions().plans_in_flight);
  StageDriver one(5000, 1);
  for (int turn = 0; turn < kTurns; ++turn) {
    const StageDriver::Cost cost = ahead.Added(kPlans);
    ahead_us.push_back(cost.between_us);
    whole_us.push_back(cost.whole_us);
    one_us.push_back(one.Added(kPlans).between_us);
  }
  PutQuartiles("seam_cost", ahead_us, out);
  PutQuartiles("seam_cost_whole", whole_us, out);
  PutQuartiles("seam_cost_not_ahead", one_us, out);
}

int Main() {
  Json out;
  MeasureStage(out);
  // An idle machine's sleeping thread is woken slowest.
  for (const int64_t busy_us : {0, 200, 5000}) {
    PutQuartiles(absl::StrCat("seam_cost_alone_", busy_us, "us"), Added(busy_us), out);
  }
  out["bare_wakings"] = Quantile(BareWakings(5000), 0.5);
  out["seam_cost_in_flight"] = AddedInFlight(5000);
  std::printf("%s\n", out.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace baton

int main() { return baton::Main(); }
