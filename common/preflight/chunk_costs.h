// What is known before a start of what chunks cost each stage: from --chunk-profile, or for timed
// executors from --timed-profile. And what follows for the layers of each stage.
#ifndef COMMON_PREFLIGHT_CHUNK_COSTS_H_
#define COMMON_PREFLIGHT_CHUNK_COSTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/chunking/chunk_policy.h"
#include "common/chunking/chunk_profile.h"
#include "common/chunking/stage_cost.h"
#include "common/config/options.h"
#include "common/engine/timed/timed_profile.h"
#include "common/preflight/finding.h"
#include "common/preflight/machine.h"
#include "common/preflight/memory_plan.h"
#include "common/types/kv_layout.h"

namespace baton {

struct ChunkCosts {
  MeasuredOn here;  // What a profile of this chain will say.
  // That of --chunk-profile, if it holds here: of this model, computed alike, with as many stages.
  std::optional<ChunkProfile> profile;
  // --chunk-profile must not be written: it is of another model, or other stages have yet to
  // compute the same partition from it.
  bool keeps_file = false;

  // The costs of the planned stages. Empty: unknown; `missing` says why and what would help.
  std::vector<StageCost> stages;
  std::string source;
  std::string missing;
};

// `here` as far as options and the machine say it: all but what the model does.
MeasuredOn MeasuredBy(const v1::Options& options, const Machine& machine);

// Reads --chunk-profile where `role` heeds it. A damaged file and, for a measured partition, one
// that does not hold here are errors; else one that does not hold is left out with a warning.
// `model_layers`: of the whole model.
void ReadChunkProfile(const v1::Options& options, config::Role role, int model_layers,
                      ChunkCosts& costs, std::vector<Finding>& findings);

// Again, when `here` says more. `measured_partition`: it has been used for that.
void CompareChunkProfile(const v1::Options& options, bool measured_partition, ChunkCosts& costs,
                         std::vector<Finding>& findings);

// "" if the profile's stages have the model's layers together: else the file was edited.
std::string WrongLayers(const ChunkProfile& profile, int model_layers);

// What --pp-layer-partition=auto means for a model whose layers do `layer_work` (ModelConfig): the
// stages' times are those for a prompt that fills the context. Errors name the option.
absl::StatusOr<std::string> MeasuredPartition(const v1::Options& options, const ChunkCosts& costs,
                                              const std::optional<TimedProfile>& played,
                                              const std::vector<double>& layer_work,
                                              int64_t context_tokens);

// `stages`, `source` and `missing`, of stages that hold `split`.
void FillStageCosts(const v1::Options& options, const std::vector<LayerRange>& split,
                    const std::optional<TimedProfile>& played,
                    const std::vector<double>& layer_work, ChunkCosts& costs);

// What --chunked-prefill-size=auto comes to. It follows from the model and the options alone, and
// not from the machine: workers that are started one by one come to the same without a word to one
// another. Rejected: the least of what all stages could hold, told when they join. It would have to
// be told again whenever one comes back, and buffers are made by it.

// The size for a rule with fixed sizes and the minimum for kOptimal: SGLang's size on small GPUs.
inline constexpr int64_t kLeastAutoChunk = 2048;
// The size for kSglang, which only makes chunks smaller: SGLang's size on GPUs of 60 GB and more.
inline constexpr int64_t kSglangAutoChunk = 8192;
// The maximum for kOptimal: more than the planner used for any prompt tried (docs/tuning.md).
inline constexpr int64_t kMostAutoChunk = 32768;
// What kOptimal's chunks may take beyond the least, as one part in so many of a stage's KV cache.
inline constexpr int64_t kAutoChunkKvShare = 5;

struct AutoChunk {
  int64_t tokens = 0;
  std::string_view source;  // What decided, a literal: "--chunk-policy fixed".
};

struct AutoChunks {
  AutoChunk fixed;
  AutoChunk sglang;
  AutoChunk optimal;

  const AutoChunk& Of(ChunkRule rule) const;
};

// --kv-cache-tokens counts as it was given, whatever --mem-fraction-static makes of it on this
// machine. Errors are PlanMemory's.
absl::StatusOr<AutoChunks> FindAutoChunks(const v1::Options& options, const ModelFacts& model,
                                          int64_t context_tokens);

}  // namespace baton

#endif  // COMMON_PREFLIGHT_CHUNK_COSTS_H_
