// What the cores around one decode step cost: the planner with its stage, of requests that a
// colocated chain has read, and of those whose prompt others have read, as in a decode service. No
// executor, no thread and no network: a step's tokens are there at once.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
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

class PlannedSteps {
 public:
  PlannedSteps(int batch, bool granted)
      : planner_(LimitsOf(batch, granted)),
        stage_({.stages = 1, .page_size = kPageSize, .plan_limit = 8}) {
    Tell(prefill::EpochBegan{1});
    prefill::ChainUp up{.epoch = 1, .stages = 1};
    up.page_count = batch * (kContextTokens / kPageSize + 1);
    Tell(up);
    for (int i = 1; i <= batch; ++i) {
      prefill::StartRequested start;
      start.attempt_id = static_cast<uint64_t>(i);
      start.prompt_tokens = kPromptTokens;
      start.stop.max_tokens = kNewTokens;
      if (granted) start.writers = {{{"prefill-0", 2}, {0, 2}}};
      Tell(start);
    }
    while (widest_ < static_cast<size_t>(batch)) Step();
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
    Tell(finished);
  }

 private:
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
  void Tell(const prefill::StageEvent& event) {
    std::vector<prefill::StageAction> actions;
    stage_.Handle(event, ++now_us_, actions);
    for (prefill::StageAction& action : actions) {
      if (auto* run = std::get_if<prefill::RunCompute>(&action)) {
        submitted_.push_back(std::move(*run));
      } else if (auto* report = std::get_if<prefill::ReportPlanDone>(&action)) {
        Tell(prefill::PlannerEvent(
            prefill::StagePlanDone{0, report->epoch, std::move(report->done)}));
      }
    }
  }

  prefill::ChainPlanner planner_;
  prefill::Stage stage_;
  std::vector<prefill::RunCompute> submitted_;
  size_t widest_ = 0;
  int64_t now_us_ = 0;
};

std::vector<double> MicrosPerStep(int batch, bool granted) {
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    PlannedSteps steps(batch, granted);
    const auto begun = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) steps.Step();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begun;
    rounds.push_back(took.count() / kSteps);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds;
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
  std::printf("{%s}\n", absl::StrJoin(figures, ", ").c_str());
}

}  // namespace
}  // namespace baton

int main() { baton::Main(); }
