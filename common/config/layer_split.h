// How a model's layers are shared among the stages of a prefill chain.
#ifndef COMMON_CONFIG_LAYER_SPLIT_H_
#define COMMON_CONFIG_LAYER_SPLIT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/kv_layout.h"

namespace baton::config {

// Parses "3,3,4": the layers of each stage, every one at least 1. Errors name pp_layer_partition.
absl::StatusOr<std::vector<int64_t>> ParsePartition(const std::string& partition);

// The layers of each of `pp_size` stages, in order and without gaps. With an empty `partition` the
// split is even and the larger shares go to the later stages: stage 0 also embeds and plans.
// Otherwise `partition` must name `pp_size` counts that sum to `layers`.
absl::StatusOr<std::vector<LayerRange>> SplitLayers(int64_t layers, int64_t pp_size,
                                                    const std::string& partition);

}  // namespace baton::config

#endif  // COMMON_CONFIG_LAYER_SPLIT_H_
