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

// A label and the only values that it takes, so that the number of series is bounded and all of
// them exist from the start. A value that is not listed is counted as the last one, "other".
struct MetricLabel {
  const char* name;
  std::span<const char* const> values;
};

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

// The release, as baton_build_info shows it.
inline constexpr char kBatonVersion[] = "0.1.0";

namespace metrics_internal {

inline constexpr const char* kEndpoints[] = {"completions", "chat_completions", "messages",
                                             "responses",   "generate",         "other"};
inline constexpr const char* kOutcomes[] = {
    "ok",          "invalid",  "overloaded", "cancelled", "deadline_exceeded",
    "unavailable", "internal", "other"};
inline constexpr const char* kFinishReasons[] = {"stop", "length", "abort", "error", "other"};
inline constexpr const char* kToolCallOutcomes[] = {"parsed", "malformed", "other"};
inline constexpr const char* kLegs[] = {"prefill", "decode", "other"};
inline constexpr const char* kRetryReasons[] = {"failure", "overload", "drain", "retraction",
                                                "other"};
inline constexpr const char* kIdleReasons[] = {"bubble",   "no_request", "input",
                                               "transfer", "credit",     "other"};
inline constexpr const char* kFailureReasons[] = {"peer_lost", "refused",  "timeout",
                                                  "aborted",   "checksum", "other"};
// KvRefusalName of common/kv/lease_table.h, and headers that could not be read at all.
inline constexpr const char* kRefusalReasons[] = {
    "malformed", "unknown_slot", "stale_generation", "wrong_incarnation", "not_a_writer",
    "bad_range", "bad_length",   "duplicate",        "consumed",          "bad_commit",
    "other"};
inline constexpr const char* kWorkerRoles[] = {"prefill", "decode", "other"};
inline constexpr const char* kWorkerStates[] = {"loading", "ready", "draining", "refused", "other"};
inline constexpr const char* kDrainCauses[] = {"refused", "handed_back", "time_over", "worker",
                                               "other"};
inline constexpr const char* kChoices[] = {"cached", "passed_over", "uncached", "other"};
inline constexpr const char* kResumeOutcomes[] = {"continued", "diverged", "other"};
inline constexpr const char* kRateLimitNames[] = {"requests", "tokens", "other"};
inline constexpr const char* kQueueRefusals[] = {"full", "predicted", "waited", "gave_way",
                                                 "other"};
inline constexpr const char* kHttpRefusals[] = {"connections", "body_memory", "other"};
// SpanFate of common/tracing/span.h.
inline constexpr const char* kSpanFates[] = {"exported", "queue_full", "failed", "other"};
inline constexpr const char* kDevices[] = {"cuda:N"};  // For the documentation.
inline constexpr const char* kVersions[] = {kBatonVersion};

inline constexpr MetricLabel kRequestLabels[] = {{"endpoint", kEndpoints}, {"outcome", kOutcomes}};
inline constexpr MetricLabel kFinishLabels[] = {{"finish_reason", kFinishReasons}};
inline constexpr MetricLabel kToolCallLabels[] = {{"outcome", kToolCallOutcomes}};
inline constexpr MetricLabel kLegLabels[] = {{"leg", kLegs}};
inline constexpr MetricLabel kRetryLabels[] = {{"leg", kLegs}, {"reason", kRetryReasons}};
inline constexpr MetricLabel kIdleLabels[] = {{"reason", kIdleReasons}};
inline constexpr MetricLabel kFailureLabels[] = {{"reason", kFailureReasons}};
inline constexpr MetricLabel kRefusalLabels[] = {{"reason", kRefusalReasons}};
inline constexpr MetricLabel kWorkerLabels[] = {{"worker_role", kWorkerRoles},
                                                {"state", kWorkerStates}};
inline constexpr MetricLabel kDrainLabels[] = {{"cause", kDrainCauses}};
inline constexpr MetricLabel kChoiceLabels[] = {{"prediction", kChoices}};
inline constexpr MetricLabel kResumeLabels[] = {{"outcome", kResumeOutcomes}};
inline constexpr MetricLabel kRateLimitLabels[] = {{"limit", kRateLimitNames}};
inline constexpr MetricLabel kQueueRefusalLabels[] = {{"reason", kQueueRefusals}};
inline constexpr MetricLabel kHttpRefusalLabels[] = {{"reason", kHttpRefusals}};
inline constexpr const char* kPlanKinds[] = {"prefill", "decode", "mixed", "other"};
inline constexpr MetricLabel kPlanLabels[] = {{"kind", kPlanKinds}};
inline constexpr MetricLabel kSpanLabels[] = {{"fate", kSpanFates}};
inline constexpr MetricLabel kDeviceLabels[] = {{"device", kDevices}};
inline constexpr MetricLabel kBuildLabels[] = {{"version", kVersions}};

// OpenTelemetry's GenAI conventions give the buckets of TTFT, TPOT and request duration; theirs end
// at 10 s and 82 s, and long prompts go on from there. Their TPOT begins at 10 ms, above small
// models.
inline constexpr double kTtftBuckets[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08,
                                          0.1,   0.25,  0.5,  0.75, 1,    2.5,  5,
                                          7.5,   10,    20,   40,   80,   160,  320};
inline constexpr double kTpotBuckets[] = {0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15,
                                          0.2,    0.3,   0.4,  0.5,   0.75, 1,     2.5};
inline constexpr double kRequestBuckets[] = {0.01,  0.02,  0.04,   0.08,   0.16,  0.32,
                                             0.64,  1.28,  2.56,   5.12,   10.24, 20.48,
                                             40.96, 81.92, 163.84, 327.68, 655.36};
// Compute and transfer of a chunk or a step: a millisecond to ten seconds.
inline constexpr double kStepBuckets[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                          0.25,  0.5,    1,     2.5,  5,     10};
inline constexpr double kChunkBuckets[] = {16,   32,   64,   128,   256,   512,   1024,
                                           2048, 4096, 8192, 16384, 32768, 65536, 131072};
inline constexpr double kRatioBuckets[] = {0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1,
                                           1.05, 1.1, 1.2, 1.4, 2,   4};
inline constexpr double kShareBuckets[] = {0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1};
inline constexpr double kBatchBuckets[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};

inline constexpr uint8_t kR = static_cast<uint8_t>(MetricRole::kRouter);
inline constexpr uint8_t kP = static_cast<uint8_t>(MetricRole::kPrefill);
inline constexpr uint8_t kD = static_cast<uint8_t>(MetricRole::kDecode);
inline constexpr MetricType kCounter = MetricType::kCounter;
inline constexpr MetricType kGauge = MetricType::kGauge;
inline constexpr MetricType kHistogram = MetricType::kHistogram;

inline constexpr MetricInfo kTable[] = {
    {Metric::kRequestsTotal, "baton_requests_total", kCounter, "requests",
     "Requests that ended, by endpoint and outcome.", kR, kRequestLabels},
    {Metric::kRequestsFinishedTotal, "baton_requests_finished_total", kCounter, "requests",
     "Requests that generated tokens and ended, by finish reason.", kR, kFinishLabels},
    {Metric::kToolCallsTotal, "baton_tool_calls_total", kCounter, "calls",
     "Calls of tools in chat answers, by outcome: parsed (told as calls) or malformed (left in the "
     "content as text).",
     kR, kToolCallLabels},
    {Metric::kRequestDurationSeconds,
     "baton_request_duration_seconds",
     kHistogram,
     "seconds",
     "Time from a request's arrival at the router to its last token.",
     kR,
     {},
     kRequestBuckets},
    {Metric::kTtftSeconds,
     "baton_time_to_first_token_seconds",
     kHistogram,
     "seconds",
     "Time from a request's arrival at the router to its first token (TTFT).",
     kR,
     {},
     kTtftBuckets},
    {Metric::kTpotSeconds,
     "baton_time_per_output_token_seconds",
     kHistogram,
     "seconds",
     "Mean time between a request's tokens after its first (TPOT), once for each request.",
     kR,
     {},
     kTpotBuckets},
    {Metric::kItlSeconds,
     "baton_inter_token_latency_seconds",
     kHistogram,
     "seconds",
     "Time between two tokens of a request (ITL), once for each token after its first.",
     kR,
     {},
     kTpotBuckets},
    {Metric::kPromptTokensTotal, "baton_prompt_tokens_total", kCounter, "tokens",
     "Prompt tokens of admitted requests.", kR},
    {Metric::kGenerationTokensTotal, "baton_generation_tokens_total", kCounter, "tokens",
     "Tokens generated: sent to clients by the router, drawn by decode or a colocated chain.",
     kR | kP | kD},
    {Metric::kRequestRetriesTotal, "baton_request_retries_total", kCounter, "retries",
     "Requests begun again, before or after their first token, by leg and reason: the leg failed "
     "(failure), was full (overload), drains (drain), or gave the request's pages to older ones "
     "(retraction).",
     kR, kRetryLabels},
    {Metric::kRequestResumesTotal, "baton_request_resumes_total", kCounter, "resumes",
     "Texts that the same or other workers were to go on with, by the token that they drew first: "
     "the last one "
     "that the client has (continued), or another, which ends the request (diverged).",
     kR, kResumeLabels},
    {Metric::kRateLimitedTotal, "baton_rate_limited_total", kCounter, "requests",
     "Requests refused because their tenant had used what it may in a minute, by the limit.", kR,
     kRateLimitLabels},
    {Metric::kQueueRefusalsTotal, "baton_queue_refusals_total", kCounter, "requests",
     "Requests that the router's queue refused: as many waited as may (full), they would wait for "
     "too long (predicted) or have (waited), or another tenant took their place (gave_way).",
     kR, kQueueRefusalLabels},
    {Metric::kWorkerRefusalsTotal, "baton_worker_refusals_total", kCounter, "refusals",
     "Attempts that a worker refused because its queue was full, by leg.", kR, kLegLabels},
    {Metric::kRetryBudgetExhaustedTotal, "baton_retry_budget_exhausted_total", kCounter, "retries",
     "Requests that failed because the router had recently retried too many others.", kR},
    {Metric::kRequestsRunning, "baton_requests_running", kGauge, "requests",
     "Requests being worked on in this process.", kR | kP | kD},
    {Metric::kRequestsWaiting, "baton_requests_waiting", kGauge, "requests",
     "Requests that wait for admission in this process.", kR | kP | kD},
    {Metric::kQueueSeconds,
     "baton_request_queue_seconds",
     kHistogram,
     "seconds",
     "Time that a request waited for admission in this process.",
     kR | kP | kD,
     {},
     kTtftBuckets},
    {Metric::kPrefillSeconds,
     "baton_prefill_seconds",
     kHistogram,
     "seconds",
     "Time from a request's start at stage 0 to the end of its last chunk in the chain (stage 0).",
     kP,
     {},
     kTtftBuckets},
    {Metric::kPrefillTokensTotal, "baton_prefill_tokens_total", kCounter, "tokens",
     "Prompt tokens that this stage has computed.", kP | kD},
    {Metric::kPlansTotal, "baton_plans_total", kCounter, "plans",
     "Plans that this stage has applied; equal on all stages of a chain at rest.", kP | kD},
    {Metric::kCachedPromptTokensTotal, "baton_cached_prompt_tokens_total", kCounter, "tokens",
     "Tokens of prompts whose KV was in the prefix cache (stage 0).", kP},
    {Metric::kPrefixCachePages, "baton_prefix_cache_pages", kGauge, "pages",
     "Pages of the prefix cache, those in use among them (stage 0, rank 0 of a decode service).",
     kP | kD},
    {Metric::kPrefixCacheEvictedPagesTotal, "baton_prefix_cache_evicted_pages_total", kCounter,
     "pages",
     "Pages that the prefix cache gave up for requests that lacked some (stage 0, rank 0 of a "
     "decode service).",
     kP | kD},
    {Metric::kKvReusedPagesTotal, "baton_kv_reused_pages_total", kCounter, "pages",
     "Pages of prompts whose KV the decode service held, so that it was not sent.", kD},
    {Metric::kRetractionsTotal, "baton_retractions_total", kCounter, "requests",
     "Requests that gave their pages back for older ones and were computed again (stage 0 of a "
     "colocated chain, rank 0 of a decode service).",
     kP | kD},
    {Metric::kPlansIssuedTotal, "baton_plans_issued_total", kCounter, "plans",
     "Plans with work that stage 0 has issued, by kind: chunks of prompts (prefill), tokens of "
     "requests that the chain decodes (decode), or both (mixed).",
     kP | kD, kPlanLabels},
    {Metric::kDecodeWaitSeconds,
     "baton_decode_wait_seconds",
     kHistogram,
     "seconds",
     "How long a token that a colocated chain has drawn waits for the plan that feeds it, once for "
     "each such token (stage 0).",
     kP | kD,
     {},
     kStepBuckets},
    {Metric::kPlanSlotOccupancyRatio,
     "baton_plan_slot_occupancy_ratio",
     kHistogram,
     "ratio",
     "Requests whose tokens a plan has, over the most that one may have "
     "(--pp-max-micro-batch-size), once for each plan with decode steps (stage 0).",
     kP | kD,
     {},
     kShareBuckets},
    {Metric::kPromptsChunked, "baton_prompts_chunked", kGauge, "requests",
     "Prompts that are computed in part now (stage 0).", kP},
    {Metric::kRequestChunks,
     "baton_request_chunks",
     kHistogram,
     "chunks",
     "Chunks that a prompt was computed in; those above 1 were cut (stage 0).",
     kP,
     {},
     kBatchBuckets},
    {Metric::kChunkTokens,
     "baton_chunk_tokens",
     kHistogram,
     "tokens",
     "Tokens of a chunk.",
     kP | kD,
     {},
     kChunkBuckets},
    {Metric::kChunkComputeSeconds,
     "baton_chunk_compute_seconds",
     kHistogram,
     "seconds",
     "Compute time of a chunk in this stage.",
     kP | kD,
     {},
     kStepBuckets},
    {Metric::kPlanPredictionRatio,
     "baton_plan_prediction_ratio",
     kHistogram,
     "ratio",
     "Compute time of a plan on a stage over what was predicted, for every stage of the chain "
     "(stage 0).",
     kP,
     {},
     kRatioBuckets},
    {Metric::kPlanCostErrorRatio, "baton_plan_cost_error_ratio", kGauge, "ratio",
     "Recent error of predicted compute times of plans, as a fraction of the times, for the "
     "stage with the largest error (stage 0).",
     kP},
    {Metric::kPlanCostsKnown, "baton_plan_costs_known", kGauge, "boolean",
     "1 while stage 0 knows the costs of plans on each stage, which --chunk-policy sglang and "
     "optimal need.",
     kP},
    {Metric::kStageBusySecondsTotal, "baton_stage_busy_seconds_total", kCounter, "seconds",
     "Time that this stage spent computing.", kP | kD},
    {Metric::kStageIdleSecondsTotal, "baton_stage_idle_seconds_total", kCounter, "seconds",
     "Time that this stage did not compute, by what it waited for: bubble (no plan, while the "
     "chain "
     "had work), no_request (none in the chain), input (the stage before was not done with the "
     "plan), transfer (activations on the way), credit (the next stage had no buffer). With "
     "baton_stage_busy_seconds_total it is all of the time.",
     kP | kD, kIdleLabels},
    {Metric::kActivationBytesTotal, "baton_activation_bytes_total", kCounter, "bytes",
     "Activations that this stage has sent on.", kP | kD},
    {Metric::kDecodeStepsTotal, "baton_decode_steps_total", kCounter, "steps",
     "Decode steps, each one token for every request of the batch; of a colocated chain, plans "
     "with decode steps.",
     kP | kD},
    {Metric::kDecodeStepSeconds,
     "baton_decode_step_seconds",
     kHistogram,
     "seconds",
     "Compute time of a decode step; of a colocated chain, of a plan with decode steps.",
     kP | kD,
     {},
     kStepBuckets},
    {Metric::kDecodeBatchSize,
     "baton_decode_batch_size",
     kHistogram,
     "requests",
     "Requests in a decode step.",
     kP | kD,
     {},
     kBatchBuckets},
    {Metric::kKvPagesCapacity, "baton_kv_pages_capacity", kGauge, "pages", "Pages of the KV cache.",
     kP | kD},
    {Metric::kKvPagesUsed, "baton_kv_pages_used", kGauge, "pages", "Pages owned by requests.",
     kP | kD},
    {Metric::kKvPagesQuarantined, "baton_kv_pages_quarantined", kGauge, "pages",
     "Pages held back because a peer may still write to them.", kP | kD},
    {Metric::kKvUsedRatio, "baton_kv_used_ratio", kGauge, "ratio",
     "Pages owned by requests or quarantined, divided by all pages; 0 to 1.", kP | kD},
    {Metric::kKvTransferBytesTotal, "baton_kv_transfer_bytes_total", kCounter, "bytes",
     "KV bytes handed over: sent by prefill, placed by decode.", kP | kD},
    {Metric::kKvTransferSeconds,
     "baton_kv_transfer_seconds",
     kHistogram,
     "seconds",
     "Time of one KV hand-off: on prefill from sending a chunk's layers to their acknowledgement, "
     "on decode from the first byte to the commit.",
     kP | kD,
     {},
     kStepBuckets},
    {Metric::kKvTransferFailuresTotal, "baton_kv_transfer_failures_total", kCounter, "transfers",
     "KV hand-offs that failed, by reason.", kP | kD, kFailureLabels},
    {Metric::kKvMessagesRefusedTotal, "baton_kv_messages_refused_total", kCounter, "messages",
     "KV messages that decode refused to place, and receipts that prefill could not assign, by "
     "reason.",
     kP | kD, kRefusalLabels},
    {Metric::kDataPlaneUnprovenMessagesTotal, "baton_data_plane_unproven_messages_total", kCounter,
     "messages",
     "Messages of the data plane that were dropped because their sender had not proved itself, or "
     "repeated another's proof.",
     kP | kD},
    {Metric::kKvCommitsRepeatedTotal, "baton_kv_commits_repeated_total", kCounter, "commits",
     "Commits that were sent again because decode's receipt had not arrived.", kP},
    {Metric::kKvGrantsActive, "baton_kv_grants_active", kGauge, "grants",
     "Grants (tickets) that prefill may still write under.", kD},
    {Metric::kKvLeasesExpiredTotal, "baton_kv_leases_expired_total", kCounter, "leases",
     "KV leases that ended because their holder sent nothing.", kP | kD},
    {Metric::kDeviceMemoryUsedBytes,
     "baton_device_memory_used_bytes",
     kGauge,
     "bytes",
     "Memory in use on the GPU that this worker computes on, by all processes, as the driver says.",
     kP | kD,
     kDeviceLabels,
     {},
     true},
    {Metric::kDeviceMemoryTotalBytes,
     "baton_device_memory_total_bytes",
     kGauge,
     "bytes",
     "Memory of the GPU that this worker computes on.",
     kP | kD,
     kDeviceLabels,
     {},
     true},
    {Metric::kDeviceUtilizationRatio,
     "baton_device_utilization_ratio",
     kGauge,
     "ratio",
     "Share of the driver's last sample period in which anything ran on the GPU that this worker "
     "computes on; 0 to 1.",
     kP | kD,
     kDeviceLabels,
     {},
     true},
    {Metric::kWorkers, "baton_workers", kGauge, "workers",
     "Workers, by role and state. State refused: the worker tries to join but does not fit the "
     "workers that are registered.",
     kR, kWorkerLabels},
    {Metric::kReadyPairs, "baton_ready_pairs", kGauge, "pairs",
     "Pairs of a prefill chain and a decode service that can serve.", kR},
    {Metric::kRouterChoicesTotal, "baton_router_choices_total", kCounter, "requests",
     "Chains chosen for requests, by what the router predicted: cached (no other candidate has "
     "more "
     "of the prompt cached), passed_over (another has, and was passed over), uncached (no "
     "candidate "
     "has any of it).",
     kR, kChoiceLabels},
    {Metric::kRouterPredictedCachedTokensTotal, "baton_router_predicted_cached_tokens_total",
     kCounter, "tokens",
     "Prompt tokens that the router predicted to be cached, of answered requests.", kR},
    {Metric::kRouterCachedTokensTotal, "baton_router_cached_tokens_total", kCounter, "tokens",
     "Prompt tokens that chains reported as cached, of the same requests.", kR},
    {Metric::kMembershipLeasesExpiredTotal, "baton_membership_leases_expired_total", kCounter,
     "leases", "Workers dropped because they stopped sending heartbeats.", kR},
    {Metric::kAccountingErrorsTotal, "baton_router_accounting_errors_total", kCounter, "entries",
     "Times that the router counted more ends than starts of work on a worker. Above 0 it is a bug "
     "to report.",
     kR},
    {Metric::kRefusingRouters, "baton_refusing_routers", kGauge, "routers",
     "Routers that refuse this worker because it does not fit their registered workers; /readiness "
     "says why if no router accepts it.",
     kP | kD},
    {Metric::kRouterPausesTotal, "baton_router_pauses_total", kCounter, "pauses",
     "Times that the router's loop was late by a quarter of a lease or more, because the "
     "process was stopped or is overloaded.",
     kR},
    {Metric::kDraining, "baton_draining", kGauge, "boolean",
     "1 while the process finishes what it has begun and takes nothing new.", kR | kP | kD},
    {Metric::kDrainEndedRequestsTotal, "baton_drain_ended_requests_total", kCounter, "requests",
     "Requests that a drain ended here, by cause: refused (came too late), handed_back (had not "
     "begun; the router starts them elsewhere), time_over (ran longer than --drain-timeout-ms), "
     "and on the router worker (a worker's drain ended them, and the client had tokens).",
     kR | kP | kD, kDrainLabels},
    {Metric::kHttpConnectionsOpen, "baton_http_connections_open", kGauge, "connections",
     "Open connections of this process's HTTP server.", kR | kP | kD},
    {Metric::kHttpConnectionsAcceptedTotal, "baton_http_connections_accepted_total", kCounter,
     "connections", "Connections that this process's HTTP server has admitted.", kR | kP | kD},
    {Metric::kHttpConnectionsEvictedTotal, "baton_http_connections_evicted_total", kCounter,
     "connections", "Idle HTTP connections closed to make room for others.", kR | kP | kD},
    {Metric::kHttpRefusedTotal, "baton_http_refused_total", kCounter, "requests",
     "What the HTTP server turned away for want of room: a connection (connections), or a request "
     "whose body found no memory (body_memory).",
     kR | kP | kD, kHttpRefusalLabels},
    {Metric::kTraceSpansTotal, "baton_trace_spans_total", kCounter, "spans",
     "Spans of this process by outcome: exported to the collector, dropped because the queue "
     "was full, or failed because the collector was unreachable or refused them.",
     kR | kP | kD, kSpanLabels},
    {Metric::kLogLinesDroppedTotal, "baton_log_lines_dropped_total", kCounter, "lines",
     "Lines of the log that could not be written: their reader stands still or has gone, or the "
     "disk is full.",
     kR | kP | kD},
    {Metric::kUp, "baton_up", kGauge, "boolean", "1 while the process makes progress (/health).",
     kR | kP | kD},
    {Metric::kReady, "baton_ready", kGauge, "boolean",
     "1 while the process takes new requests (/readiness).", kR | kP | kD},
    {Metric::kWeightLoadProgressRatio, "baton_weight_load_progress_ratio", kGauge, "ratio",
     "Share of this process's weights that is loaded; 0 to 1.", kP | kD},
    {Metric::kProcessStartTimeSeconds, "baton_process_start_time_seconds", kGauge, "seconds",
     "Start of the process in seconds since 1970.", kR | kP | kD},
    {Metric::kProcessUptimeSeconds, "baton_process_uptime_seconds", kGauge, "seconds",
     "Time since the start of the process.", kR | kP | kD},
    {Metric::kBuildInfo, "baton_build_info", kGauge, "boolean",
     "Always 1; its labels describe the build.", kR | kP | kD, kBuildLabels},
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
