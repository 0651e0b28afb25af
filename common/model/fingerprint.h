// What two processes compare to know that they serve the same model: hashes of the mathematics and,
// per layer, of the weights. A stage hashes only what it loads; the registry holds the union, so
// two owners of one layer must agree and a chain whose stages agree pairwise is consistent.
#ifndef COMMON_MODEL_FINGERPRINT_H_
#define COMMON_MODEL_FINGERPRINT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "common/types/kv_layout.h"

namespace baton {

// XXH3-64 over every field of `config` that changes a logit; eos ids are not among them.
uint64_t ConfigFingerprint(const ModelConfig& config);

// The hashes of a ModelFingerprint; dtype, layout and protocol are left to the worker.
// Reads the stage's weights once; right before or after loading they come from the page cache.
absl::StatusOr<ModelFingerprint> FingerprintStage(WeightReader& reader, const ModelConfig& config,
                                                  int layer_begin, int layer_end);

}  // namespace baton

#endif  // COMMON_MODEL_FINGERPRINT_H_
