#include "services/prefill/stage/stage_shell.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace baton::prefill {
namespace {

absl::Status EpochOver() { return absl::CancelledError("the epoch is over"); }

}  // namespace

StageShell::StageShell(const StageOptions& options, ActivationChannel* activations, KvSender* kv,
                       PlanComputer* computer, links::GroupJoiner* joiner, Metrics* metrics,
                       std::unique_ptr<StageTrace> trace)
    : activations_(activations),
      kv_(kv),
      computer_(computer),
      joiner_(joiner),
      metrics_(metrics),
      trace_(std::move(trace)),
      output_buffers_(OutputBuffers(options.plans_in_flight)),
      stage_(options),
      neighbours_(options.stage, options.tensor_rank) {}

absl::Status StageShell::TryEpoch(const links::Hello& hello, const FindEndpoint& find) {
  BATON_CHECK(epoch_ == 0) << "epoch " << epoch_ << " has not ended";
  BATON_RETURN_IF_ERROR(neighbours_.Begin(hello, stage_.Quiet(), find));
  stage_.AccountTime(NowUs());
  if (absl::Status status =
          activations_->Begin({hello.epoch, hello.max_plan_tokens, hello.activation_credits,
                               output_buffers_, neighbours_.previous(), neighbours_.next()});
      !status.ok()) {
    neighbours_.End();
    return status;
  }
  epoch_ = hello.epoch;
  Handle(EpochBegan{hello.epoch});
  return absl::OkStatus();
}

void StageShell::CheckNeighbours(const FindEndpoint& find) {
  if (const absl::Status gone = neighbours_.Check(find); !gone.ok()) Fail(epoch_, gone);
}

void StageShell::EndEpoch(const absl::Status& why) {
  if (epoch_ == 0) return;
  epoch_ = 0;
  neighbours_.End();
  activations_->End();
  // What is being computed may wait for ranks that are gone. Leaving ends the other ranks' steps,
  // and may be stage 0's first sign of it.
  if (joiner_ != nullptr) joiner_->Leave(why);
  kv_->CancelAll();
  if (trace_ != nullptr) trace_->EndEpoch(EpochOver(), NowUs());
  contexts_.clear();
  plan_contexts_.clear();
  Handle(EpochEnded{});
}

void StageShell::Fail(uint64_t epoch, const absl::Status& status) {
  if (epoch != epoch_ || epoch_ == 0) return;
  EndEpoch(status);
  reports_.end_epoch(status);
}

// A request's context is needed by the plans from its first chunk to its final one or its abort,
// which ends what the chain decodes.
void StageShell::KeepContexts(const PlanWithContexts& plan) {
  for (const PlanOpen& open : plan.plan.opens) {
    const PromptContextPtr& prompt = plan.opens.at(open.attempt_id);
    contexts_[open.attempt_id] = prompt;
    if (trace_ != nullptr) trace_->Open(open.attempt_id, prompt->trace);
  }
  std::vector<PromptContextPtr>& held = plan_contexts_[plan.plan.number];
  for (const PlanItem& item : plan.plan.items) {
    const auto found = contexts_.find(item.attempt_id);
    if (found == contexts_.end()) continue;  // The core refuses the plan.
    held.push_back(found->second);
    if (item.final) contexts_.erase(found);
  }
  for (const uint64_t attempt_id : plan.plan.aborts) contexts_.erase(attempt_id);
  if (held.empty()) plan_contexts_.erase(plan.plan.number);
}

void StageShell::OnPlan(PlanWithContexts plan) {
  if (epoch_ == 0 || plan.plan.epoch != epoch_) return;
  KeepContexts(plan);
  if (trace_ != nullptr) trace_->PlanArrived(plan.plan.number, NowUs());
  Handle(PlanArrived{std::move(plan.plan)});
}

void StageShell::HandleOne(const StageEvent& event) {
  if (const auto* finished = std::get_if<ComputeFinished>(&event)) return Finish(*finished);
  Tell(event);
}

void StageShell::Tell(const StageEvent& event) {
  const int64_t now_us = NowUs();
  // An arrival says itself since when the stage has been receiving.
  if (!std::holds_alternative<ActivationsArrived>(event)) {
    stage_.AccountTime(now_us, activations_->receiving_since_us());
  }
  std::vector<StageAction> actions;
  stage_.Handle(event, now_us, actions);
  for (const StageAction& action : actions) {
    std::visit([this](const auto& a) { Perform(a); }, action);
  }
}

// Reports the ends of plans to the core in plan order. A plan that never got to the executor, or is
// refused since that has stopped, ends at once, but is reported after the plans before it.
void StageShell::Finish(const ComputeFinished& event) {
  const auto ended = std::find_if(submitted_.begin(), submitted_.end(), [&](const Submitted& s) {
    return s.action.epoch == event.epoch && s.action.number == event.number;
  });
  BATON_CHECK(ended != submitted_.end()) << "plan " << event.number << " was not submitted";
  ended->finished = event;
  if (joiner_ != nullptr) ended->finished->status = joiner_->Blame(event.status);
  while (!submitted_.empty() && submitted_.front().finished.has_value()) {
    const Submitted first = std::move(submitted_.front());
    submitted_.pop_front();
    Measure(first, NowUs());
    if (!submitted_.empty()) Trace(submitted_.front());
    Tell(*first.finished);
  }
}

// An action before it may have ended the epoch. What was decided is then not begun, but the core
// counts on hearing its end.

void StageShell::Perform(const SendActivations& action) {
  if (action.epoch == epoch_) return activations_->Send(action);
  Handle(ActivationsSent{action.epoch, action.number, EpochOver()});
}

void StageShell::Perform(const ReturnCredit& action) {
  if (action.epoch == epoch_) activations_->Return(action);
}

void StageShell::Perform(const SendKv& action) {
  if (action.epoch == epoch_) {
    if (trace_ != nullptr) trace_->BeginSend(action, NowUs());
    return kv_->Send(action);
  }
  Handle(KvSent{action.epoch, action.send_id, EpochOver(), 0, 0});
}

void StageShell::Perform(const SendCommit& action) {
  if (action.epoch == epoch_) return kv_->Commit(action);
  Handle(KvSent{action.epoch, action.send_id, EpochOver(), 0, 0});
}

void StageShell::Perform(const CancelKv& action) {
  if (action.epoch == epoch_) kv_->Cancel(action.attempt_id);
}

void StageShell::Perform(const RunCompute& action) {
  submitted_.push_back({action, {}, std::nullopt});
  absl::StatusOr<ComputeJob> job = JobOf(submitted_.back());
  if (!job.ok()) {
    Handle(ComputeFinished{action.epoch, action.number, job.status(), 0, {}, {}});
    return;
  }
  if (submitted_.size() == 1) Trace(submitted_.front());
  computer_->Run(*std::move(job));
}

absl::StatusOr<ComputeJob> StageShell::JobOf(Submitted& submitted) {
  const RunCompute& action = submitted.action;
  if (action.epoch != epoch_) return EpochOver();
  int tokens = 0;
  for (const RunCompute::Item& item : action.items) tokens += item.item.token_count;
  BATON_ASSIGN_OR_RETURN(ActivationBuffers buffers, activations_->Buffers(action.number, tokens));
  auto contexts = plan_contexts_.extract(action.number);
  BATON_CHECK(!contexts.empty() && contexts.mapped().size() == action.items.size())
      << "contexts of plan " << action.number;
  submitted.prompts = std::move(contexts.mapped());
  ComputeJob job{action.epoch, action.number, {}, std::move(buffers)};
  int decoding = 0;
  for (size_t i = 0; i < action.items.size(); ++i) {
    const ComputeJob::Item& item =
        job.items.emplace_back(ComputeJob::Item{submitted.prompts[i], action.items[i]});
    decoding += item.decodes() ? 1 : 0;
    if (!item.decodes()) metrics_->Observe(Metric::kChunkTokens, item.run.item.token_count);
  }
  if (decoding > 0) metrics_->Observe(Metric::kDecodeBatchSize, decoding);
  return job;
}

// A plan's turn has come. Its spans begin here: before, it has only waited behind others.
void StageShell::Trace(const Submitted& begins) {
  if (trace_ == nullptr || begins.prompts.empty()) return;
  trace_->BeginCompute(begins.action, begins.prompts, NowUs());
}

void StageShell::Measure(const Submitted& ended, int64_t now_us) {
  const ComputeFinished& event = *ended.finished;
  if (trace_ != nullptr) trace_->EndCompute(event, now_us);
  int chunk_tokens = 0;
  int decoding = 0;
  for (const RunCompute::Item& item : ended.action.items) {
    (item.decodes ? decoding : chunk_tokens) += item.item.token_count;
  }
  const double seconds = static_cast<double>(event.compute_us) * 1e-6;
  if (chunk_tokens > 0) metrics_->Observe(Metric::kChunkComputeSeconds, seconds);
  if (decoding > 0) {
    metrics_->Increment(Metric::kDecodeStepsTotal);
    metrics_->Observe(Metric::kDecodeStepSeconds, seconds);
  }
  if (event.status.ok()) metrics_->Increment(Metric::kPrefillTokensTotal, chunk_tokens);
}

void StageShell::Perform(const ReportPlanDone& action) {
  metrics_->Increment(Metric::kPlansTotal);
  reports_.plan_done(action.epoch, action.done);
}

void StageShell::Perform(const ReportRequestClosed& action) {
  kv_->Forget(action.closed.attempt_id);
  if (trace_ != nullptr) trace_->Close(action.closed, NowUs());
  reports_.request_closed(action.epoch, action.closed);
}

void StageShell::Perform(const prefill::EndEpoch& action) { Fail(epoch_, action.status); }

void StageShell::TellTimes(int64_t now_us) {
  stage_.AccountTime(now_us, activations_->receiving_since_us());
  for (int i = 0; i < kStageDoings; ++i) {
    const auto doing = static_cast<StageDoing>(i);
    const auto seconds = static_cast<double>(stage_.times().us[i] - told_.us[i]) * 1e-6;
    if (seconds == 0) continue;
    if (doing == StageDoing::kBusy) {
      metrics_->Increment(Metric::kStageBusySecondsTotal, seconds);
    } else {
      metrics_->Increment(Metric::kStageIdleSecondsTotal, seconds, {StageDoingName(doing)});
    }
  }
  told_ = stage_.times();
}

}  // namespace baton::prefill
