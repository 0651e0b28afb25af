// The one function of checks: `baton validate`, `baton up` before it forks, and every worker and
// router before it loads ask it, so that they cannot disagree.
//
//   const PreflightReport report = Preflight(parsed_options, ReadMachine());
//   if (!report.status().ok()) ...      // One message with everything that is wrong.
//   report.values                       // The options with what follows from the machine filled
//   in.
//
// `up`, and a worker that is a node (--nnodes), start their children with
// ChildArguments(PlannedOptions(options, report), ...) followed by PlannedArguments(report): the
// host's memory is planned once for all of them, not by each on its own.
#ifndef COMMON_PREFLIGHT_PREFLIGHT_H_
#define COMMON_PREFLIGHT_PREFLIGHT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/config/options.h"
#include "common/model/model_config.h"
#include "common/preflight/chunk_costs.h"
#include "common/preflight/finding.h"
#include "common/preflight/gpus.h"
#include "common/preflight/machine.h"
#include "common/preflight/memory_plan.h"

namespace baton {

struct PreflightReport {
  // What the checks are of: ROUTER, PREFILL, DECODE, or UP for `up` and for a `validate` that no
  // --disaggregation-mode makes a worker.
  config::Role role = v1::OptionSpec::ROLE_UNSPECIFIED;
  v1::Options values;
  std::vector<Finding> findings;  // As found: what others follow from comes first.
  // Set as far as the findings allow.
  std::optional<ModelConfig> model;
  std::optional<HostMemory> memory;
  // With --device cuda or cuda:N: this machine's GPUs, the device of each worker here, and what the
  // GPUs hold.
  Gpus gpus;
  std::vector<std::string> devices;
  std::vector<DeviceMemory> device_memory;
  ChunkCosts chunks;
  // If --chunked-prefill-size is auto: the size that each rule gives. `values` has the size for the
  // chain's own rule.
  std::optional<AutoChunks> auto_chunks;
  int64_t context_tokens = 0;  // The longest sequence.
  std::string chat_template;   // For UP: where it is from; empty if there is none.
  Machine machine;

  // The findings that refuse, in one message; OK if there are none. InvalidArgument if it can never
  // work, ResourceExhausted if memory alone is short.
  absl::Status status() const;
};

// Reads the model directory's headers and small files; the tokenizer for UP. Never a weight.
PreflightReport Preflight(const config::ParsedOptions& options, const Machine& machine);

// What `up` or a node gives its workers after their other arguments: of a flag given twice the last
// counts.
std::vector<std::string> PlannedArguments(const PreflightReport& report);

// `given` with what was found once for all stages and must not be found again by each: its layers
// and the size of its chunks.
config::ParsedOptions PlannedOptions(const config::ParsedOptions& given,
                                     const PreflightReport& report);

// "context_length: got 32768 ... (set by flag --context-length)".
std::string FindingText(const Finding& finding);

}  // namespace baton

#endif  // COMMON_PREFLIGHT_PREFLIGHT_H_
