// The shell around one Stage: turns its actions into computing and sending, and what comes of them
// into events. Stage 0's planner and a later stage's link drive it through the same few calls.
#ifndef SERVICES_PREFILL_STAGE_STAGE_SHELL_H_
#define SERVICES_PREFILL_STAGE_STAGE_SHELL_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/serial_events.h"
#include "common/telemetry/metrics.h"
#include "services/links/core/hello.h"
#include "services/links/group_joiner.h"
#include "services/prefill/core/neighbours.h"
#include "services/prefill/core/stage.h"
#include "services/prefill/stage/activation_channel.h"
#include "services/prefill/stage/kv_sender.h"
#include "services/prefill/stage/plan_computer.h"
#include "services/prefill/stage/stage_trace.h"

namespace baton::prefill {

// A plan with the contexts of the requests that it opens.
struct PlanWithContexts {
  Plan plan;
  std::map<uint64_t, PromptContextPtr> opens;  // By attempt.
};

// Loop thread. Calls nest safely: an event that comes while another one's actions are being done
// waits for its turn.
class StageShell {
 public:
  // What the stage says to its chain.
  struct Reports {
    std::function<void(uint64_t epoch, const PlanDone&)> plan_done;
    std::function<void(uint64_t epoch, const RequestClosed&)> request_closed;
    // The stage has dropped the epoch: break the link with this status.
    std::function<void(const absl::Status&)> end_epoch;
  };

  // Nothing is owned but `trace`, which is null without tracing, as `joiner` is where a stage is
  // one process.
  StageShell(const StageOptions& options, ActivationChannel* activations, KvSender* kv,
             PlanComputer* computer, links::GroupJoiner* joiner, Metrics* metrics,
             std::unique_ptr<StageTrace> trace);

  // Before the first epoch.
  void SetReports(Reports reports) { reports_ = std::move(reports); }

  // Has this stage begin the epoch of `hello`, unless the core says why it can't yet (UNAVAILABLE)
  // or there is no memory for its activations (RESOURCE_EXHAUSTED).
  absl::Status TryEpoch(const links::Hello& hello, const FindEndpoint& find);
  // Endpoints may have changed: fails the epoch if the core says so.
  void CheckNeighbours(const FindEndpoint& find);
  // What runs of the epoch ends; the other ranks of this stage are told `why`.
  void EndEpoch(const absl::Status& why);
  // Something outside the core went wrong in `epoch`: ends it and reports so, if it still runs.
  void Fail(uint64_t epoch, const absl::Status& status);
  uint64_t epoch() const { return epoch_; }  // 0: none.

  void OnPlan(PlanWithContexts plan);
  void Handle(StageEvent event) { events_.Raise(std::move(event)); }
  void HandleOne(const StageEvent& event);

  int held_pages() const { return stage_.held_pages(); }
  bool AtRest() const { return stage_.AtRest(); }  // Holds no request, no plan and no send.

  // Adds the time since the last call to the busy and idle metrics.
  void TellTimes(int64_t now_us);

 private:
  void Perform(const RunCompute& action);
  void Perform(const SendActivations& action);
  void Perform(const ReturnCredit& action);
  void Perform(const SendKv& action);
  void Perform(const SendCommit& action);
  void Perform(const CancelKv& action);
  void Perform(const ReportPlanDone& action);
  void Perform(const ReportRequestClosed& action);
  void Perform(const prefill::EndEpoch& action);

  // A plan that the core has submitted and whose end it has not been told.
  struct Submitted {
    RunCompute action;
    std::vector<PromptContextPtr> prompts;    // By item; empty if it never got to the executor.
    std::optional<ComputeFinished> finished;  // Waits for those before it to be told.
  };
  void KeepContexts(const PlanWithContexts& plan);
  void Tell(const StageEvent& event);
  absl::StatusOr<ComputeJob> JobOf(Submitted& submitted);
  void Finish(const ComputeFinished& event);
  void Trace(const Submitted& begins);
  void Measure(const Submitted& ended, int64_t now_us);

  ActivationChannel* const activations_;
  KvSender* const kv_;
  PlanComputer* const computer_;
  links::GroupJoiner* const joiner_;
  Metrics* const metrics_;
  const std::unique_ptr<StageTrace> trace_;
  const int output_buffers_;
  Stage stage_;
  Reports reports_;
  Neighbours neighbours_;
  uint64_t epoch_ = 0;
  SerialEvents<StageEvent> events_{[this](const StageEvent& event) { HandleOne(event); }};
  // Contexts of requests that later plans will name, and those that a held plan's items need.
  std::map<uint64_t, PromptContextPtr> contexts_;                    // By attempt.
  std::map<uint64_t, std::vector<PromptContextPtr>> plan_contexts_;  // By plan, in items' order.
  std::deque<Submitted> submitted_;  // In their order; the first is being computed.
  StageTimes told_;                  // That the metrics have.
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_STAGE_STAGE_SHELL_H_
