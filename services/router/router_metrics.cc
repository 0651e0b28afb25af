#include "services/router/router_metrics.h"

#include <map>
#include <utility>

namespace baton::router {
namespace {

double Seconds(int64_t us) { return static_cast<double>(us) * 1e-6; }

const char* StateName(const Worker& worker) {
  if (worker.draining) return "draining";
  return worker.ready ? "ready" : "loading";
}

}  // namespace

const char* EndpointName(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kGenerate:
      return "generate";
    case Endpoint::kCompletions:
      return "completions";
    case Endpoint::kChatCompletions:
      return "chat_completions";
    case Endpoint::kMessages:
      return "messages";
    case Endpoint::kResponses:
      return "responses";
  }
  return "other";
}

const char* FinishName(const RequestEnd& end) {
  if (!end.status.ok()) return "error";
  switch (end.reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
  }
  return "other";
}

RouterMetrics::RouterMetrics(const std::string& model_name, const std::string& instance_id)
    : metrics_(
          {.role = MetricRole::kRouter, .model_name = model_name, .instance_id = instance_id}) {
  // The rates of alerts don't see the failures with which a series begins.
  for (const Endpoint endpoint :
       {Endpoint::kGenerate, Endpoint::kCompletions, Endpoint::kChatCompletions,
        Endpoint::kMessages, Endpoint::kResponses}) {
    for (const absl::StatusCode code : {absl::StatusCode::kUnavailable, absl::StatusCode::kInternal,
                                        absl::StatusCode::kDeadlineExceeded}) {
      metrics_.Increment(Metric::kRequestsTotal, 0, {EndpointName(endpoint), OutcomeLabel(code)});
    }
  }
}

void RouterMetrics::CountAdmitted(int prompt_tokens, int64_t queue_us) {
  metrics_.Increment(Metric::kPromptTokensTotal, prompt_tokens);
  metrics_.Observe(Metric::kQueueSeconds, Seconds(queue_us));
}

void RouterMetrics::CountFirstToken(int64_t ttft_us) {
  metrics_.Observe(Metric::kTtftSeconds, Seconds(ttft_us));
}

void RouterMetrics::CountNextToken(int64_t itl_us) {
  metrics_.Observe(Metric::kItlSeconds, Seconds(itl_us));
}

void RouterMetrics::CountEnd(const RequestEnd& end) {
  metrics_.Increment(Metric::kRequestsTotal, 1,
                     {EndpointName(end.endpoint), OutcomeLabel(end.status.code())});
  if (end.completion_tokens == 0) return;
  metrics_.Increment(Metric::kRequestsFinishedTotal, 1, {FinishName(end)});
  metrics_.Increment(Metric::kGenerationTokensTotal, end.completion_tokens);
  metrics_.Observe(Metric::kRequestDurationSeconds, Seconds(end.duration_us));
  if (end.completion_tokens > 1) {
    metrics_.Observe(Metric::kTpotSeconds, Seconds(end.decode_us) / (end.completion_tokens - 1));
  }
}

void RouterMetrics::CountRefused(Endpoint endpoint, const absl::Status& status) {
  metrics_.Increment(Metric::kRequestsTotal, 1,
                     {EndpointName(endpoint), OutcomeLabel(status.code())});
}

void RouterMetrics::CountToolCalls(int parsed, int malformed) {
  if (parsed > 0) metrics_.Increment(Metric::kToolCallsTotal, parsed, {"parsed"});
  if (malformed > 0) metrics_.Increment(Metric::kToolCallsTotal, malformed, {"malformed"});
}

void RouterMetrics::SetLoad(const RouterLoad& load, const std::vector<Worker>& workers,
                            size_t pairs, bool ready, bool draining) {
  metrics_.Set(Metric::kRequestsRunning, load.prefilling + load.decoding);
  metrics_.Set(Metric::kRequestsWaiting, load.waiting + load.reserving);
  metrics_.Set(Metric::kUp, 1);
  metrics_.Set(Metric::kReady, ready ? 1 : 0);
  metrics_.Set(Metric::kReadyPairs, static_cast<double>(pairs));
  const auto advance = [this](Metric metric, int64_t now, int64_t before, LabelValues labels) {
    if (now > before) metrics_.Increment(metric, static_cast<double>(now - before), labels);
  };
  const auto advance_leg = [&](const char* leg, const RetryCounts& now, const RetryCounts& before) {
    const Metric retries = Metric::kRequestRetriesTotal;
    advance(retries, now.failure_total, before.failure_total, {leg, "failure"});
    advance(retries, now.drain_total, before.drain_total, {leg, "drain"});
    advance(retries, now.overload_total, before.overload_total, {leg, "overload"});
    advance(Metric::kWorkerRefusalsTotal, now.refused_total, before.refused_total, {leg});
  };
  advance_leg("prefill", load.retries_prefill, last_.retries_prefill);
  advance_leg("decode", load.retries_decode, last_.retries_decode);
  advance(Metric::kRetryBudgetExhaustedTotal, load.budget_exhausted_total,
          last_.budget_exhausted_total, {});
  advance(Metric::kRouterPausesTotal, load.pauses_total, last_.pauses_total, {});
  advance(Metric::kMembershipLeasesExpiredTotal, load.leases_expired_total,
          last_.leases_expired_total, {});
  advance(Metric::kAccountingErrorsTotal, load.accounting_errors_total,
          last_.accounting_errors_total, {});
  advance(Metric::kRequestResumesTotal, load.resumes.continued_total, last_.resumes.continued_total,
          {"continued"});
  advance(Metric::kRequestResumesTotal, load.resumes.diverged_total, last_.resumes.diverged_total,
          {"diverged"});
  advance(Metric::kRateLimitedTotal, load.limited.requests_total, last_.limited.requests_total,
          {"requests"});
  advance(Metric::kRateLimitedTotal, load.limited.tokens_total, last_.limited.tokens_total,
          {"tokens"});
  const auto advance_queue = [&](int64_t total, int64_t before, const char* reason) {
    advance(Metric::kQueueRefusalsTotal, total, before, {reason});
  };
  advance_queue(load.queue.full_total, last_.queue.full_total, "full");
  advance_queue(load.queue.predicted_total, last_.queue.predicted_total, "predicted");
  advance_queue(load.queue.waited_total, last_.queue.waited_total, "waited");
  advance_queue(load.queue.gave_way_total, last_.queue.gave_way_total, "gave_way");
  const PredictionCounts& now = load.predictions;
  const PredictionCounts& before = last_.predictions;
  const Metric choices = Metric::kRouterChoicesTotal;
  advance(choices, now.cached_total, before.cached_total, {"cached"});
  advance(choices, now.passed_over_total, before.passed_over_total, {"passed_over"});
  advance(choices, now.uncached_total, before.uncached_total, {"uncached"});
  advance(Metric::kRouterPredictedCachedTokensTotal, now.predicted_tokens_total,
          before.predicted_tokens_total, {});
  advance(Metric::kRouterCachedTokensTotal, now.cached_tokens_total, before.cached_tokens_total,
          {});
  last_ = load;
  drain_.Update(metrics_, load.drain, draining);
  std::map<std::pair<std::string, std::string>, int> counts;
  for (const char* role : {"prefill", "decode"}) {
    for (const char* state : {"loading", "ready", "draining"}) counts[{role, state}] = 0;
  }
  for (const Worker& worker : workers) {
    ++counts[{worker.info.role == Role::kPrefill ? "prefill" : "decode", StateName(worker)}];
  }
  for (const auto& [labels, count] : counts) {
    metrics_.Set(Metric::kWorkers, count, {labels.first, labels.second});
  }
}

void RouterMetrics::SetRefused(const std::map<std::string, Applicant>& applicants) {
  int prefill = 0;
  for (const auto& [id, applicant] : applicants) {
    prefill += applicant.info.role == Role::kPrefill ? 1 : 0;
  }
  metrics_.Set(Metric::kWorkers, prefill, {"prefill", "refused"});
  metrics_.Set(Metric::kWorkers, static_cast<double>(applicants.size()) - prefill,
               {"decode", "refused"});
}

}  // namespace baton::router
