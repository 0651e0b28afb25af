// What the cores around one decode step cost: the planner with its stage, of requests that a
// colocated chain has read, and of those whose prompt others have read, as in a decode service. And
// what a request costs them beside a prefix cache of 100,000 pages, over an empty one (tree_cost).
// No executor, no thread and no network: a step's tokens are there at once.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "services/prefill/core/chain_planner.h"
#include "services/prefill/core/stage.h"

namespace baton {
namespace {

constexpr int kPageSize = 16;
constexpr int kPromptTokens = 4096;
constexpr int kNewTokens = 8192;
constexpr int kSteps = 2000;
constexpr int kRounds = 9;
constexpr int kContextTokens = kPromptTokens + kNewTokens + 1;
constexpr int32_t kToken = 7;

prefill::PlannerLimits LimitsOf(int batch, bool granted) {
  prefill::PlannerLimits limits;
  limits.page_size = kPageSize;
  limits.chunk_tokens = kPromptTokens;
  limits.plan_window = 4;
  limits.max_open_requests = batch;
  limits.max_queued_requests = batch;
  limits.max_context_tokens = kContextTokens;
  limits.decodes = true;
  limits.reserved_decode_tokens = 512;
  if (!granted) return limits;
  limits.granting = {"decode-0", 1};
  limits.layers = 2;
  limits.kv_heads = 1;
  return limits;
}

// A planner and its one stage.
class OneStage {
 public:
  OneStage(const prefill::PlannerLimits& limits, int page_count)
      : planner_(limits), stage_({.stages = 1, .page_size = kPageSize, .plan_limit = 8}) {
    Tell(prefill::StageEvent(prefill::EpochBegan{1}));
    prefill::ChainUp up{.epoch = 1, .stages = 1};
    up.page_count = page_count;
    Tell(up);
  }

  // Computes what was submitted; more than one plan where prompts are under way.
  void Step() {
    BATON_CHECK(!submitted_.empty()) << "nothing is under way";
    const prefill::RunCompute run = std::move(submitted_.front());
    submitted_.erase(submitted_.begin());
    widest_ = run.items.size();
    prefill::ComputeFinished finished{run.epoch, run.number, absl::OkStatus(), 100, {}, {}};
    for (const prefill::RunCompute::Item& item : run.items) {
      if (item.item.draws) finished.drawn.emplace_back(SampledToken{kToken, 0, {}});
    }
    Tell(prefill::StageEvent(finished));
  }

  // Items of the last plan.
  size_t rows() const { return widest_; }
  bool under_way() const { return !submitted_.empty(); }
  prefill::PlannerLoad load() const { return planner_.load(); }

  void Tell(const prefill::PlannerEvent& event) {
    std::vector<prefill::PlannerAction> actions;
    planner_.Handle(event, ++now_us_, actions);
    for (prefill::PlannerAction& action : actions) {
      auto* issue = std::get_if<prefill::IssuePlan>(&action);
      if (issue != nullptr) Tell(prefill::StageEvent(prefill::PlanArrived{std::move(issue->plan)}));
      if (const auto* ticket = std::get_if<prefill::HandOutTicket>(&action)) {
        const Ticket& granted = ticket->ticket;
        const SampledToken first{kToken, 0, {}};
        Tell(prefill::PlannerEvent(
            prefill::KvHeard{0, KvCommitted{granted.slot, granted.generation, first, 0}}));
        Tell(prefill::PlannerEvent(
            prefill::KvHeard{0, KvDrained{granted.slot, granted.generation}}));
      }
    }
  }

 private:
  void Tell(const prefill::StageEvent& event) {
    std::vector<prefill::StageAction> actions;
    stage_.Handle(event, ++now_us_, actions);
    for (prefill::StageAction& action : actions) {
      if (auto* run = std::get_if<prefill::RunCompute>(&action)) {
        submitted_.push_back(std::move(*run));
      } else if (auto* report = std::get_if<prefill::ReportPlanDone>(&action)) {
        Tell(prefill::PlannerEvent(
            prefill::StagePlanDone{0, report->epoch, std::move(report->done)}));
      } else if (auto* closed = std::get_if<prefill::ReportRequestClosed>(&action)) {
        Tell(prefill::PlannerEvent(
            prefill::StageRequestClosed{0, closed->epoch, std::move(closed->closed)}));
      }
    }
  }

  prefill::ChainPlanner planner_;
  prefill::Stage stage_;
  std::vector<prefill::RunCompute> submitted_;
  size_t widest_ = 0;
  int64_t now_us_ = 0;
};

// Until all of them decode.
void StartDecoding(int batch, bool granted, OneStage& steps) {
  for (int i = 1; i <= batch; ++i) {
    prefill::StartRequested start;
    start.attempt_id = static_cast<uint64_t>(i);
    start.prompt_tokens = kPromptTokens;
    start.stop.max_tokens = kNewTokens;
    if (granted) start.writers = {{{"prefill-0", 2}, {0, 2}}};
    steps.Tell(start);
  }
  while (steps.rows() < static_cast<size_t>(batch)) steps.Step();
}

std::vector<double> MicrosPerStep(int batch, bool granted) {
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    OneStage steps(LimitsOf(batch, granted), batch * (kContextTokens / kPageSize + 1));
    StartDecoding(batch, granted, steps);
    const auto begun = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) steps.Step();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begun;
    rounds.push_back(took.count() / kSteps);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds;
}

// Requests of one new token whose prompts begin differently, one after another.
class CachedRequests {
 public:
  CachedRequests() : chain_(Limits(), 2 * kCachedPages), random_(7) {}

  void Run() {
    auto tokens = std::make_shared<std::vector<int32_t>>(kPromptTokens);
    for (int32_t& token : *tokens) token = static_cast<int32_t>(random_.Below(100'000));
    prefill::StartRequested start;
    start.attempt_id = ++attempts_;
    start.prompt_tokens = kPromptTokens;
    start.stop.max_tokens = 1;
    start.tokens = std::move(tokens);
    const auto begun = std::chrono::steady_clock::now();
    chain_.Tell(start);
    while (chain_.under_way()) chain_.Step();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begun;
    last_us_ = took.count();
  }
  void Fill() {
    while (chain_.load().cached_pages < kCachedPages) Run();
  }
  void Flush() { chain_.Tell(prefill::PlannerEvent(prefill::FlushCache{})); }
  double last_us() const { return last_us_; }

 private:
  static constexpr int kCachedPages = 100'000;

  static prefill::PlannerLimits Limits() {
    prefill::PlannerLimits limits = LimitsOf(1, false);
    limits.caches = true;
    return limits;
  }

  OneStage chain_;
  Random random_;
  uint64_t attempts_ = 0;
  double last_us_ = 0;
};

double MedianMicros(CachedRequests& requests, bool flushes) {
  std::vector<double> micros;
  for (int i = 0; i < 201; ++i) {
    if (flushes) requests.Flush();
    requests.Run();
    micros.push_back(requests.last_us());
  }
  std::sort(micros.begin(), micros.end());
  return micros[micros.size() / 2];
}

void Main() {
  std::vector<std::string> figures;
  const auto tell = [&figures](const std::string& name, double value) {
    figures.push_back(absl::StrCat("\"", name, "\": ", value));
  };
  for (const int batch : {1, 64}) {
    for (const bool granted : {false, true}) {
      const std::vector<double> micros = MicrosPerStep(batch, granted);
      const std::string suffix = absl::StrCat(granted ? "decode" : "colocated", "_batch", batch);
      tell("step_us_" + suffix, micros[kRounds / 2]);
      tell("least_us_" + suffix, micros.front());
    }
  }
  CachedRequests requests;
  requests.Fill();
  const double full_us = MedianMicros(requests, /*flushes=*/false);
  const double empty_us = MedianMicros(requests, /*flushes=*/true);
  tell("request_us_cached_100000", full_us);
  tell("tree_cost", full_us / empty_us);
  std::printf("{%s}\n", absl::StrJoin(figures, ", ").c_str());
}

}  // namespace
}  // namespace baton

int main() { baton::Main(); }
