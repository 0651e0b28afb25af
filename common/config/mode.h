// What --disaggregation-mode makes of a worker, or of the cluster that `up` starts, and how long
// its requests may be.
#ifndef COMMON_CONFIG_MODE_H_
#define COMMON_CONFIG_MODE_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "proto/baton/v1/config.pb.h"

namespace baton::config {

inline constexpr int64_t kMaxColocatedRequests = 4096;  // As many as a plan has rows.

// A member of a decode service; all other workers are stages of chains.
inline bool IsDecode(const v1::Options& options) {
  return options.disaggregation_mode() == "decode";
}

// Whether the worker's stage says something: a decode service of one stage counts ranks alone.
inline bool HasStages(const v1::Options& options) {
  return !IsDecode(options) || options.pp_size() > 1;
}

// A stage of a chain that also decodes what it reads; of a cluster, all chains are.
inline bool IsColocated(const v1::Options& options) {
  return options.disaggregation_mode() == "null";
}

// UP, a cluster, where the mode says no worker.
inline v1::OptionSpec::Role ModeRole(const v1::Options& options) {
  if (IsDecode(options)) return v1::OptionSpec::DECODE;
  if (IsColocated(options)) return v1::OptionSpec::COLOCATED;
  const bool prefill = options.disaggregation_mode() == "prefill";
  return prefill ? v1::OptionSpec::PREFILL : v1::OptionSpec::UP;
}

inline bool IsChainRole(v1::OptionSpec::Role role) {
  return role == v1::OptionSpec::PREFILL || role == v1::OptionSpec::COLOCATED;
}

// "prefill", "colocated", "decode": in names, logs and traces of a worker.
inline std::string WorkerKind(const v1::Options& options) {
  return IsColocated(options) ? "colocated" : options.disaggregation_mode();
}

// How many tokens a prompt and its answer may have together: --context-length where it is given,
// and never more than the model's `model_tokens`.
inline int ContextTokens(const v1::Options& options, int model_tokens) {
  const int64_t asked = options.context_length();
  return asked == 0 ? model_tokens : static_cast<int>(std::min<int64_t>(asked, model_tokens));
}

}  // namespace baton::config

#endif  // COMMON_CONFIG_MODE_H_
