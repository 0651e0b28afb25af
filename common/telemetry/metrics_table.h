// The one table of metrics. What a process exports, docs/metrics.md, dashboards and alerts are
// tested against it. Names: prefix baton_, base units, _total on counters alone (promtool check
// metrics). Every series carries the labels model_name, role, instance_id and, on a prefill stage,
// stage; the table lists what comes on top.
#ifndef COMMON_TELEMETRY_METRICS_TABLE_H_
#define COMMON_TELEMETRY_METRICS_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include "common/telemetry/metrics_labels.h"

namespace baton {

// In the order of kMetricsTable.
enum class Metric {
  // Requests, as the client sees them.
  kRequestsTotal,
  kRequestsFinishedTotal,
  kToolCallsTotal,
  kRequestDurationSeconds,
  kTtftSeconds,
  kTpotSeconds,
  kItlSeconds,
  kPromptTokensTotal,
  kGenerationTokensTotal,
  kRequestRetriesTotal,
  kRequestResumesTotal,
  kRateLimitedTotal,
  kQueueRefusalsTotal,
  kWorkerRefusalsTotal,
  kRetryBudgetExhaustedTotal,
  // Load.
  kRequestsRunning,
  kRequestsWaiting,
  kQueueSeconds,
  // Prefill stages.
  kPrefillSeconds,
  kPrefillTokensTotal,
  kPlansTotal,
  kCachedPromptTokensTotal,
  kPrefixCachePages,
  kPrefixCacheEvictedPagesTotal,
  kKvReusedPagesTotal,
  kRetractionsTotal,
  kPlansIssuedTotal,
  kDecodeWaitSeconds,
  kPlanSlotOccupancyRatio,
  kPromptsChunked,
  kRequestChunks,
  kChunkTokens,
  kChunkComputeSeconds,
  kPlanPredictionRatio,
  kPlanCostErrorRatio,
  kPlanCostsKnown,
  kStageBusySecondsTotal,
  kStageIdleSecondsTotal,
  kActivationBytesTotal,
  // Decode.
  kDecodeStepsTotal,
  kDecodeStepSeconds,
  kDecodeBatchSize,
  // KV cache and hand-off.
  kKvPagesCapacity,
  kKvPagesUsed,
  kKvPagesQuarantined,
  kKvUsedRatio,
  kKvTransferBytesTotal,
  kKvTransferSeconds,
  kKvTransferFailuresTotal,
  kKvMessagesRefusedTotal,
  kDataPlaneUnprovenMessagesTotal,
  kKvCommitsRepeatedTotal,
  kKvGrantsActive,
  kKvLeasesExpiredTotal,
  // The GPU that a worker computes on.
  kDeviceMemoryUsedBytes,
  kDeviceMemoryTotalBytes,
  kDeviceUtilizationRatio,
  // Cluster.
  kWorkers,
  kReadyPairs,
  kRouterChoicesTotal,
  kRouterPredictedCachedTokensTotal,
  kRouterCachedTokensTotal,
  kMembershipLeasesExpiredTotal,
  kAccountingErrorsTotal,
  kRefusingRouters,
  kRouterPausesTotal,
  // Drain.
  kDraining,
  kDrainEndedRequestsTotal,
  // HTTP server.
  kHttpConnectionsOpen,
  kHttpConnectionsAcceptedTotal,
  kHttpConnectionsEvictedTotal,
  kHttpRefusedTotal,
  // Tracing.
  kTraceSpansTotal,
  // Process.
  kLogLinesDroppedTotal,
  kUp,
  kReady,
  kWeightLoadProgressRatio,
  kProcessStartTimeSeconds,
  kProcessUptimeSeconds,
  kBuildInfo,
};

enum class MetricType { kCounter, kGauge, kHistogram };

// Bits of MetricInfo::roles.
enum class MetricRole : uint8_t { kRouter = 1, kPrefill = 2, kDecode = 4 };

struct MetricInfo {
  Metric id;
  const char* name;
  MetricType type;
  const char* unit;  // "seconds", "bytes", "tokens" ...
  const char* help;
  uint8_t roles;
  std::span<const MetricLabel> labels = {};
  std::span<const double> buckets = {};  // Upper bounds, ascending; histograms alone.
  // A gauge of workers on a GPU alone, which is there only while it is known
  // (Metrics::SetOrRemove). Its one label is MetricsIdentity::device.
  bool of_device = false;
};

namespace metrics_internal {

inline constexpr uint8_t kR = static_cast<uint8_t>(MetricRole::kRouter);
inline constexpr uint8_t kP = static_cast<uint8_t>(MetricRole::kPrefill);
inline constexpr uint8_t kD = static_cast<uint8_t>(MetricRole::kDecode);

// Rows of the table.
constexpr MetricInfo Counter(Metric id, const char* name, const char* unit, const char* help,
                             uint8_t roles, std::span<const MetricLabel> labels = {}) {
  return {id, name, MetricType::kCounter, unit, help, roles, labels};
}
constexpr MetricInfo Gauge(Metric id, const char* name, const char* unit, const char* help,
                           uint8_t roles, std::span<const MetricLabel> labels = {}) {
  return {id, name, MetricType::kGauge, unit, help, roles, labels};
}
constexpr MetricInfo DeviceGauge(Metric id, const char* name, const char* unit, const char* help) {
  return {id, name, MetricType::kGauge, unit, help, kP | kD, kDeviceLabels, {}, true};
}
constexpr MetricInfo Histogram(Metric id, const char* name, const char* unit, const char* help,
                               uint8_t roles, std::span<const double> buckets) {
  return {id, name, MetricType::kHistogram, unit, help, roles, {}, buckets};
}

inline constexpr MetricInfo kTable[] = {
    Counter(Metric::kRequestsTotal, "baton_requests_total", "requests",
            "Requests that ended, by endpoint and outcome.", kR, kRequestLabels),
    Counter(Metric::kRequestsFinishedTotal, "baton_requests_finished_total", "requests",
            "Requests that generated tokens and ended, by finish reason.", kR, kFinishLabels),
    Counter(Metric::kToolCallsTotal, "baton_tool_calls_total", "calls",
            "Calls of tools in chat answers, by outcome: parsed (told as calls) or malformed (left "
            "in the content as text).",
            kR, kToolCallLabels),
    Histogram(Metric::kRequestDurationSeconds, "baton_request_duration_seconds", "seconds",
              "Time from a request's arrival at the router to its last token.", kR,
              kRequestBuckets),
    Histogram(Metric::kTtftSeconds, "baton_time_to_first_token_seconds", "seconds",
              "Time from a request's arrival at the router to its first token (TTFT).", kR,
              kTtftBuckets),
    Histogram(Metric::kTpotSeconds, "baton_time_per_output_token_seconds", "seconds",
              "Mean time between a request's tokens after its first (TPOT), once for each request.",
              kR, kTpotBuckets),
    Histogram(Metric::kItlSeconds, "baton_inter_token_latency_seconds", "seconds",
              "Time between two tokens of a request (ITL), once for each token after its first.",
              kR, kTpotBuckets),
    Counter(Metric::kPromptTokensTotal, "baton_prompt_tokens_total", "tokens",
            "Prompt tokens of admitted requests.", kR),
    Counter(
        Metric::kGenerationTokensTotal, "baton_generation_tokens_total", "tokens",
        "Tokens generated: sent to clients by the router, drawn by decode or a colocated chain.",
        kR | kP | kD),
    Counter(Metric::kRequestRetriesTotal, "baton_request_retries_total", "retries",
            "Requests begun again, before or after their first token, by leg and reason: the leg "
            "failed (failure), was full (overload) or drains (drain).",
            kR, kRetryLabels),
    Counter(Metric::kRequestResumesTotal, "baton_request_resumes_total", "resumes",
            "Texts that the same or other workers were to go on with, by the token that they drew "
            "first: the last one that the client has (continued), or another, which ends the "
            "request (diverged).",
            kR, kResumeLabels),
    Counter(Metric::kRateLimitedTotal, "baton_rate_limited_total", "requests",
            "Requests refused because their tenant had used what it may in a minute, by the limit.",
            kR, kRateLimitLabels),
    Counter(
        Metric::kQueueRefusalsTotal, "baton_queue_refusals_total", "requests",
        "Requests that the router's queue refused: as many waited as may (full), they would wait "
        "for too long (predicted) or have (waited), or another tenant took their place (gave_way).",
        kR, kQueueRefusalLabels),
    Counter(Metric::kWorkerRefusalsTotal, "baton_worker_refusals_total", "refusals",
            "Attempts that a worker refused because its queue was full, by leg.", kR, kLegLabels),
    Counter(Metric::kRetryBudgetExhaustedTotal, "baton_retry_budget_exhausted_total", "retries",
            "Requests that failed because the router had recently retried too many others.", kR),
    Gauge(Metric::kRequestsRunning, "baton_requests_running", "requests",
          "Requests being worked on in this process.", kR | kP | kD),
    Gauge(Metric::kRequestsWaiting, "baton_requests_waiting", "requests",
          "Requests that wait for admission in this process.", kR | kP | kD),
    Histogram(Metric::kQueueSeconds, "baton_request_queue_seconds", "seconds",
              "Time that a request waited for admission in this process.", kR | kP | kD,
              kTtftBuckets),
    Histogram(Metric::kPrefillSeconds, "baton_prefill_seconds", "seconds",
              "Time from a request's start at stage 0 to the end of its last chunk in the chain "
              "(stage 0).",
              kP, kTtftBuckets),
    Counter(Metric::kPrefillTokensTotal, "baton_prefill_tokens_total", "tokens",
            "Prompt tokens that this stage has computed.", kP | kD),
    Counter(Metric::kPlansTotal, "baton_plans_total", "plans",
            "Plans that this stage has applied; equal on all stages of a chain at rest.", kP | kD),
    Counter(Metric::kCachedPromptTokensTotal, "baton_cached_prompt_tokens_total", "tokens",
            "Tokens of prompts whose KV was in the prefix cache (stage 0).", kP),
    Gauge(
        Metric::kPrefixCachePages, "baton_prefix_cache_pages", "pages",
        "Pages of the prefix cache, those in use among them (stage 0, rank 0 of a decode service).",
        kP | kD),
    Counter(Metric::kPrefixCacheEvictedPagesTotal, "baton_prefix_cache_evicted_pages_total",
            "pages",
            "Pages that the prefix cache gave up for requests that lacked some (stage 0, rank 0 of "
            "a decode service).",
            kP | kD),
    Counter(Metric::kKvReusedPagesTotal, "baton_kv_reused_pages_total", "pages",
            "Pages of prompts whose KV the decode service held, so that it was not sent.", kD),
    Counter(Metric::kRetractionsTotal, "baton_retractions_total", "requests",
            "Requests that gave their pages back for older ones and were computed again (stage 0 "
            "of a colocated chain, rank 0 of a decode service).",
            kP | kD),
    Counter(Metric::kPlansIssuedTotal, "baton_plans_issued_total", "plans",
            "Plans with work that stage 0 has issued, by kind: chunks of prompts (prefill), tokens "
            "of requests that the chain decodes (decode), or both (mixed).",
            kP | kD, kPlanLabels),
    Histogram(Metric::kDecodeWaitSeconds, "baton_decode_wait_seconds", "seconds",
              "How long a token that a colocated chain has drawn waits for the plan that feeds it, "
              "once for each such token (stage 0).",
              kP | kD, kStepBuckets),
    Histogram(Metric::kPlanSlotOccupancyRatio, "baton_plan_slot_occupancy_ratio", "ratio",
              "Requests whose tokens a plan has, over the most that one may have "
              "(--pp-max-micro-batch-size), once for each plan with decode steps (stage 0).",
              kP | kD, kShareBuckets),
    Gauge(Metric::kPromptsChunked, "baton_prompts_chunked", "requests",
          "Prompts that are computed in part now (stage 0).", kP),
    Histogram(Metric::kRequestChunks, "baton_request_chunks", "chunks",
              "Chunks that a prompt was computed in; those above 1 were cut (stage 0).", kP,
              kBatchBuckets),
    Histogram(Metric::kChunkTokens, "baton_chunk_tokens", "tokens", "Tokens of a chunk.", kP | kD,
              kChunkBuckets),
    Histogram(Metric::kChunkComputeSeconds, "baton_chunk_compute_seconds", "seconds",
              "Compute time of a chunk in this stage.", kP | kD, kStepBuckets),
    Histogram(Metric::kPlanPredictionRatio, "baton_plan_prediction_ratio", "ratio",
              "Compute time of a plan on a stage over what was predicted, for every stage of the "
              "chain (stage 0).",
              kP, kRatioBuckets),
    Gauge(Metric::kPlanCostErrorRatio, "baton_plan_cost_error_ratio", "ratio",
          "Recent error of predicted compute times of plans, as a fraction of the times, for the "
          "stage with the largest error (stage 0).",
          kP),
    Gauge(Metric::kPlanCostsKnown, "baton_plan_costs_known", "boolean",
          "1 while stage 0 knows the costs of plans on each stage, which --chunk-policy sglang and "
          "optimal need.",
          kP),
    Counter(Metric::kStageBusySecondsTotal, "baton_stage_busy_seconds_total", "seconds",
            "Time that this stage spent computing.", kP | kD),
    Counter(Metric::kStageIdleSecondsTotal, "baton_stage_idle_seconds_total", "seconds",
            "Time that this stage did not compute, by what it waited for: bubble (no plan, while "
            "the chain had work), no_request (none in the chain), input (the stage before was not "
            "done with the plan), transfer (activations on the way), credit (the next stage had no "
            "buffer). With baton_stage_busy_seconds_total it is all of the time.",
            kP | kD, kIdleLabels),
    Counter(Metric::kActivationBytesTotal, "baton_activation_bytes_total", "bytes",
            "Activations that this stage has sent on.", kP | kD),
    Counter(Metric::kDecodeStepsTotal, "baton_decode_steps_total", "steps",
            "Decode steps, each one token for every request of the batch; of a colocated chain, "
            "plans with decode steps.",
            kP | kD),
    Histogram(Metric::kDecodeStepSeconds, "baton_decode_step_seconds", "seconds",
              "Compute time of a decode step; of a colocated chain, of a plan with decode steps.",
              kP | kD, kStepBuckets),
    Histogram(Metric::kDecodeBatchSize, "baton_decode_batch_size", "requests",
              "Requests in a decode step.", kP | kD, kBatchBuckets),
    Gauge(Metric::kKvPagesCapacity, "baton_kv_pages_capacity", "pages", "Pages of the KV cache.",
          kP | kD),
    Gauge(Metric::kKvPagesUsed, "baton_kv_pages_used", "pages", "Pages owned by requests.",
          kP | kD),
    Gauge(Metric::kKvPagesQuarantined, "baton_kv_pages_quarantined", "pages",
          "Pages held back because a peer may still write to them.", kP | kD),
    Gauge(Metric::kKvUsedRatio, "baton_kv_used_ratio", "ratio",
          "Pages owned by requests or quarantined, divided by all pages; 0 to 1.", kP | kD),
    Counter(Metric::kKvTransferBytesTotal, "baton_kv_transfer_bytes_total", "bytes",
            "KV bytes handed over: sent by prefill, placed by decode.", kP | kD),
    Histogram(Metric::kKvTransferSeconds, "baton_kv_transfer_seconds", "seconds",
              "Time of one KV hand-off: on prefill from sending a chunk's layers to their "
              "acknowledgement, on decode from the first byte to the commit.",
              kP | kD, kStepBuckets),
    Counter(Metric::kKvTransferFailuresTotal, "baton_kv_transfer_failures_total", "transfers",
            "KV hand-offs that failed, by reason.", kP | kD, kFailureLabels),
    Counter(Metric::kKvMessagesRefusedTotal, "baton_kv_messages_refused_total", "messages",
            "KV messages that decode refused to place, and receipts that prefill could not assign, "
            "by reason.",
            kP | kD, kRefusalLabels),
    Counter(Metric::kDataPlaneUnprovenMessagesTotal, "baton_data_plane_unproven_messages_total",
            "messages",
            "Messages of the data plane that were dropped because their sender had not proved "
            "itself, or repeated another's proof.",
            kP | kD),
    Counter(Metric::kKvCommitsRepeatedTotal, "baton_kv_commits_repeated_total", "commits",
            "Commits that were sent again because decode's receipt had not arrived.", kP),
    Gauge(Metric::kKvGrantsActive, "baton_kv_grants_active", "grants",
          "Grants (tickets) that prefill may still write under.", kD),
    Counter(Metric::kKvLeasesExpiredTotal, "baton_kv_leases_expired_total", "leases",
            "KV leases that ended because their holder sent nothing.", kP | kD),
    DeviceGauge(Metric::kDeviceMemoryUsedBytes, "baton_device_memory_used_bytes", "bytes",
                "Memory in use on the GPU that this worker computes on, by all processes, as the "
                "driver says."),
    DeviceGauge(Metric::kDeviceMemoryTotalBytes, "baton_device_memory_total_bytes", "bytes",
                "Memory of the GPU that this worker computes on."),
    DeviceGauge(Metric::kDeviceUtilizationRatio, "baton_device_utilization_ratio", "ratio",
                "Share of the driver's last sample period in which anything ran on the GPU that "
                "this worker computes on; 0 to 1."),
    Gauge(Metric::kWorkers, "baton_workers", "workers",
          "Workers, by role and state. State refused: the worker tries to join but does not fit "
          "the workers that are registered.",
          kR, kWorkerLabels),
    Gauge(Metric::kReadyPairs, "baton_ready_pairs", "pairs",
          "Pairs of a prefill chain and a decode service that can serve.", kR),
    Counter(Metric::kRouterChoicesTotal, "baton_router_choices_total", "requests",
            "Chains chosen for requests, by what the router predicted: cached (no other candidate "
            "has more of the prompt cached), passed_over (another has, and was passed over), "
            "uncached (no candidate has any of it).",
            kR, kChoiceLabels),
    Counter(Metric::kRouterPredictedCachedTokensTotal, "baton_router_predicted_cached_tokens_total",
            "tokens", "Prompt tokens that the router predicted to be cached, of answered requests.",
            kR),
    Counter(Metric::kRouterCachedTokensTotal, "baton_router_cached_tokens_total", "tokens",
            "Prompt tokens that chains reported as cached, of the same requests.", kR),
    Counter(Metric::kMembershipLeasesExpiredTotal, "baton_membership_leases_expired_total",
            "leases", "Workers dropped because they stopped sending heartbeats.", kR),
    Counter(Metric::kAccountingErrorsTotal, "baton_router_accounting_errors_total", "entries",
            "Times that the router counted more ends than starts of work on a worker. Above 0 it "
            "is a bug to report.",
            kR),
    Gauge(Metric::kRefusingRouters, "baton_refusing_routers", "routers",
          "Routers that refuse this worker because it does not fit their registered workers; "
          "/readiness says why if no router accepts it.",
          kP | kD),
    Counter(Metric::kRouterPausesTotal, "baton_router_pauses_total", "pauses",
            "Times that the router's loop was late by a quarter of a lease or more, because the "
            "process was stopped or is overloaded.",
            kR),
    Gauge(Metric::kDraining, "baton_draining", "boolean",
          "1 while the process finishes what it has begun and takes nothing new.", kR | kP | kD),
    Counter(
        Metric::kDrainEndedRequestsTotal, "baton_drain_ended_requests_total", "requests",
        "Requests that a drain ended here, by cause: refused (came too late), handed_back (had not "
        "begun; the router starts them elsewhere), time_over (ran longer than --drain-timeout-ms), "
        "and on the router worker (a worker's drain ended them, and the client had tokens).",
        kR | kP | kD, kDrainLabels),
    Gauge(Metric::kHttpConnectionsOpen, "baton_http_connections_open", "connections",
          "Open connections of this process's HTTP server.", kR | kP | kD),
    Counter(Metric::kHttpConnectionsAcceptedTotal, "baton_http_connections_accepted_total",
            "connections", "Connections that this process's HTTP server has admitted.",
            kR | kP | kD),
    Counter(Metric::kHttpConnectionsEvictedTotal, "baton_http_connections_evicted_total",
            "connections", "Idle HTTP connections closed to make room for others.", kR | kP | kD),
    Counter(Metric::kHttpRefusedTotal, "baton_http_refused_total", "requests",
            "What the HTTP server turned away for want of room: a connection (connections), or a "
            "request whose body found no memory (body_memory).",
            kR | kP | kD, kHttpRefusalLabels),
    Counter(Metric::kTraceSpansTotal, "baton_trace_spans_total", "spans",
            "Spans of this process by outcome: exported to the collector, dropped because the "
            "queue was full, or failed because the collector was unreachable or refused them.",
            kR | kP | kD, kSpanLabels),
    Counter(Metric::kLogLinesDroppedTotal, "baton_log_lines_dropped_total", "lines",
            "Lines of the log that could not be written: their reader stands still or has gone, or "
            "the disk is full.",
            kR | kP | kD),
    Gauge(Metric::kUp, "baton_up", "boolean", "1 while the process makes progress (/health).",
          kR | kP | kD),
    Gauge(Metric::kReady, "baton_ready", "boolean",
          "1 while the process takes new requests (/readiness).", kR | kP | kD),
    Gauge(Metric::kWeightLoadProgressRatio, "baton_weight_load_progress_ratio", "ratio",
          "Share of this process's weights that is loaded; 0 to 1.", kP | kD),
    Gauge(Metric::kProcessStartTimeSeconds, "baton_process_start_time_seconds", "seconds",
          "Start of the process in seconds since 1970.", kR | kP | kD),
    Gauge(Metric::kProcessUptimeSeconds, "baton_process_uptime_seconds", "seconds",
          "Time since the start of the process.", kR | kP | kD),
    Gauge(Metric::kBuildInfo, "baton_build_info", "boolean",
          "Always 1; its labels describe the build.", kR | kP | kD, kBuildLabels),
};

}  // namespace metrics_internal

inline constexpr std::span<const MetricInfo> kMetricsTable = metrics_internal::kTable;

constexpr const MetricInfo& InfoOf(Metric metric) {
  return kMetricsTable[static_cast<size_t>(metric)];
}

// InfoOf indexes the table by the enumeration.
consteval bool TableIsInOrder() {
  for (size_t i = 0; i < kMetricsTable.size(); ++i) {
    if (kMetricsTable[i].id != static_cast<Metric>(i)) return false;
  }
  return true;
}
static_assert(TableIsInOrder());

}  // namespace baton

#endif  // COMMON_TELEMETRY_METRICS_TABLE_H_
