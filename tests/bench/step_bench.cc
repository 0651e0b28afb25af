// What the cores around one decode step cost: the planner with its stage, and the decode service's
// core beside it. No executor, no thread and no network: a step's tokens are there at once.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "services/decode/core/decode_core.h"
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

class PlannedSteps {
 public:
  explicit PlannedSteps(int batch)
      : planner_({.page_size = kPageSize,
                  .chunk_tokens = kPromptTokens,
                  .plan_window = 4,
                  .max_open_requests = batch,
                  .max_queued_requests = batch,
                  .max_context_tokens = kContextTokens,
                  .decodes = true,
                  .reserved_decode_tokens = 512}),
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

class DecodeSteps {
 public:
  explicit DecodeSteps(int batch)
      : core_({.self = {"decode-0", 1},
               .layout = {.layers = 2, .kv_heads = 1, .head_dim = 1, .page_size = kPageSize},
               .page_count = batch * (kContextTokens / kPageSize + 1),
               .max_running_requests = batch,
               .max_queued_requests = batch,
               .max_context_tokens = kContextTokens,
               .vocab_size = 100}) {
    for (int i = 1; i <= batch; ++i) {
      decode::ReserveRequested request;
      request.attempt_id = static_cast<uint64_t>(i);
      request.prompt_tokens = kPromptTokens;
      request.stop.max_tokens = kNewTokens;
      request.writers = {{{"prefill-0", 2}, {0, 2}}};
      Tell(request);
      Tell(decode::StreamOpened{ticket_.attempt_id, ticket_.ticket->generation});
      Tell(KvCommitted{ticket_.ticket->slot, ticket_.ticket->generation,
                       SampledToken{kToken, 0, {}}, 0});
    }
    while (running_.sequences.size() < static_cast<size_t>(batch)) Step();
  }

  void Step() {
    decode::StepFinished finished{running_.step, absl::OkStatus(), {}};
    for (const decode::RunStep::Sequence& sequence : running_.sequences) {
      finished.outputs.push_back({sequence.attempt_id, SampledToken{kToken, 0, {}}});
    }
    Tell(finished);
  }

 private:
  void Tell(const decode::Event& event) {
    std::vector<decode::Action> actions;
    core_.Handle(event, ++now_us_, actions);
    for (decode::Action& action : actions) {
      if (auto* run = std::get_if<decode::RunStep>(&action)) running_ = std::move(*run);
      if (auto* reply = std::get_if<decode::ReplyReserve>(&action)) ticket_ = std::move(*reply);
    }
  }

  decode::DecodeCore core_;
  decode::RunStep running_;
  decode::ReplyReserve ticket_;
  int64_t now_us_ = 0;
};

template <typename Steps>
std::vector<double> MicrosPerStep(int batch) {
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    Steps steps(batch);
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
    const std::vector<double> planned = MicrosPerStep<PlannedSteps>(batch);
    const std::vector<double> decode = MicrosPerStep<DecodeSteps>(batch);
    const std::string suffix = absl::StrCat("_batch", batch);
    tell("planned_us" + suffix, planned[kRounds / 2]);
    tell("planned_us_least" + suffix, planned.front());
    tell("decode_us" + suffix, decode[kRounds / 2]);
    tell("decode_us_least" + suffix, decode.front());
    tell("step_cost_us" + suffix, planned[kRounds / 2] - decode[kRounds / 2]);
  }
  std::printf("{%s}\n", absl::StrJoin(figures, ", ").c_str());
}

}  // namespace
}  // namespace baton

int main() { baton::Main(); }
