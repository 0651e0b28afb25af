// What chunks were measured to cost each stage of a chain, as a file that outlives the processes
// (--chunk-profile): stage 0 writes what it has learned, and reads it when it starts again; what
// comes before a start, `baton validate` and a partition by measured times, reads it too.
//
// JSON, which people may read and carry around, so everything in it is checked:
//   {"format": 1,
//    "measured_on": {"model": "toy", "config": "00f3a1...", "executor": "native", "device": "cpu",
//                    "dtype": "bfloat16", "kv_dtype": "bfloat16",
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

namespace baton {

// What costs depend on. Those of another model or another way to compute it are none of ours.
struct MeasuredOn {
  std::string model;         // Its name, for people.
  uint64_t config_hash = 0;  // ConfigFingerprint
  std::string executor;
  std::string device;
  std::string dtype;
  std::string kv_dtype;
  // For people: where these differ, costs are off by a factor, which is learned within a few plans.
  int threads = 1;
  int max_chunk_tokens = 0;  // 0: prompts were not cut.
  std::string host;
  std::string cpu;

  // "" if costs of `this` hold on `other`; else what differs, with both values. What `other` does
  // not say (empty) is not compared.
  std::string DifferenceTo(const MeasuredOn& other) const;
};

struct StageProfile {
  int layers = 0;
  StageCost cost;
  double error = 0;   // CostFit::error when it was written.
  int64_t plans = 0;  // That it was learned from.

  // What a stage of so many layers would cost there: layers are alike, so costs are in proportion
  // to them. Embedding and head are part of the first's and the last stage's.
  StageCost OfLayers(int stage_layers) const;
};

struct ChunkProfile {
  MeasuredOn on;
  std::vector<StageProfile> stages;
};

// INVALID_ARGUMENT names `file`, the line and the field.
absl::StatusOr<ChunkProfile> ParseChunkProfile(std::string_view text, const std::string& file);
// What ParseChunkProfile reads back.
std::string ChunkProfileText(const ChunkProfile& profile);

// NOT_FOUND for a file that is not there.
absl::StatusOr<ChunkProfile> LoadChunkProfile(const std::string& path);

}  // namespace baton

#endif  // COMMON_CHUNKING_CHUNK_PROFILE_H_
