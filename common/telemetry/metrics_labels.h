// What the labels of the metrics may say, and the buckets of the histograms (metrics_table.h).
#ifndef COMMON_TELEMETRY_METRICS_LABELS_H_
#define COMMON_TELEMETRY_METRICS_LABELS_H_

#include <span>

namespace baton {

// The release, as baton_build_info shows it.
inline constexpr char kBatonVersion[] = "0.1.0";

// A label and the only values that it takes, so that the number of series is bounded and all of
// them exist from the start. A value that is not listed is counted as the last one, "other".
struct MetricLabel {
  const char* name;
  std::span<const char* const> values;
};

namespace metrics_internal {

inline constexpr const char* kEndpoints[] = {"completions", "chat_completions", "messages",
                                             "responses",   "generate",         "other"};
inline constexpr const char* kOutcomes[] = {
    "ok",          "invalid",  "overloaded", "cancelled", "deadline_exceeded",
    "unavailable", "internal", "other"};
inline constexpr const char* kFinishReasons[] = {"stop", "length", "abort", "error", "other"};
inline constexpr const char* kToolCallOutcomes[] = {"parsed", "malformed", "other"};
inline constexpr const char* kLegs[] = {"prefill", "decode", "other"};
inline constexpr const char* kRetryReasons[] = {"failure", "overload", "drain", "other"};
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

}  // namespace metrics_internal
}  // namespace baton

#endif  // COMMON_TELEMETRY_METRICS_LABELS_H_
