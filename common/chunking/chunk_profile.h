// The measured costs of chunks for each stage of a chain, as a file that outlives the processes
// (--chunk-profile). Stage 0 writes what it has learned and reads it when it restarts. `baton
// validate` and a partition by measured times read it before a start.
//
// It is JSON that people may read and copy, so everything in it is checked:
//   {"format": 1,
//    "measured_on": {"model": "toy", "config": "00f3a1...", "executor": "native", "device": "cpu",
//                    "dtype": "bfloat16", "kv_dtype": "bfloat16", "cpu_numerics": "auto",
//                    "threads": 8, "max_chunk_tokens": 2048, "host": "a", "cpu": "..."},
//    "stages": [{"layers": 3, "overhead_us": 900, "prefix_us": 0.05, "token_us": 12,
//                "attention_us": 0.0004, "error": 0.03, "plans": 812}, ...]}
#ifndef COMMON_CHUNKING_CHUNK_PROFILE_H_
#define COMMON_CHUNKING_CHUNK_PROFILE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/chunking/stage_cost.h"
#include "common/types/kv_layout.h"

namespace baton {

// What costs depend on. Costs of another model or another way to compute it don't apply.
struct MeasuredOn {
  std::string model;         // Its name, for people.
  uint64_t config_hash = 0;  // ConfigFingerprint
  std::string executor;
  std::string device;
  std::string dtype;
  std::string kv_dtype;
  std::string cpu_numerics;  // "": products are the same either way, or the file is an older one.
  // For people: if these differ, costs are off by a factor, which is learned within a few plans.
  int threads = 1;
  int max_chunk_tokens = 0;  // 0: prompts were not cut.
  std::string host;
  std::string cpu;

  // "" if costs of `this` apply to `other`; else the difference, with both values. Empty fields of
  // `other`, and an empty cpu_numerics of either, are not compared.
  std::string DifferenceTo(const MeasuredOn& other) const;
};

struct StageProfile {
  int layers = 0;
  StageCost cost;
  double error = 0;   // CostFit::error at the time of writing.
  int64_t plans = 0;  // The number of plans that it was learned from.

  // The costs of a stage with so many layers, as if all were alike: a first guess of who learns.
  StageCost OfLayers(int stage_layers) const;
};

struct ChunkProfile {
  MeasuredOn on;
  std::vector<StageProfile> stages;

  // The costs of as many stages that hold `split` of the same model. Attention takes each layer as
  // long; `layer_work` says how much each of the model's layers computes beside it, in any unit.
  // Embedding and head are part of the first and the last stage.
  std::vector<StageCost> CostsOf(const std::vector<LayerRange>& split,
                                 const std::vector<double>& layer_work) const;
};

// INVALID_ARGUMENT names `file`, the line and the field.
absl::StatusOr<ChunkProfile> ParseChunkProfile(std::string_view text, const std::string& file);
// The text that ParseChunkProfile reads.
std::string ChunkProfileText(const ChunkProfile& profile);

// NOT_FOUND if there is no such file.
absl::StatusOr<ChunkProfile> LoadChunkProfile(const std::string& path);

}  // namespace baton

#endif  // COMMON_CHUNKING_CHUNK_PROFILE_H_
