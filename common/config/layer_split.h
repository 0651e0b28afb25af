// How a model's layers are shared among the stages of a chain or a decode service.
#ifndef COMMON_CONFIG_LAYER_SPLIT_H_
#define COMMON_CONFIG_LAYER_SPLIT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/kv_layout.h"

namespace baton::config {

// The options that say a split, which errors name: a worker's or a chain's, and those of the decode
// services of a cluster.
struct SplitOptions {
  const char* stages = "pp_size";
  const char* partition = "pp_layer_partition";
};
inline constexpr SplitOptions kDecodeSplit = {"decode_pp_size", "decode_pp_layer_partition"};

// Parses "3,3,4": the layers of each stage, every one at least 1.
absl::StatusOr<std::vector<int64_t>> ParsePartition(const std::string& partition,
                                                    const SplitOptions& options = {});

// The partition that stages are to take by measured times; not one that SplitLayers reads.
inline constexpr char kMeasuredPartition[] = "auto";

// "2,4,4": a partition for stages of which each needs `layer_us[stage][layer]` for a layer, such
// that the slowest stage is as fast as can be, and the squares of all stages' times are the least
// beside it. Stages that take the same within a twentieth for all layers are equal, and of
// partitions that are as good the one with the larger shares at later stages is taken. At least one
// stage and as many layers; every time > 0.
std::string BalanceLayers(std::vector<std::vector<double>> layer_us);

// The layers of each of `pp_size` stages, in order and without gaps. With an empty `partition` the
// split is even and the larger shares go to the later stages: stage 0 also embeds and plans.
// Otherwise `partition` must name `pp_size` counts that sum to `layers`.
absl::StatusOr<std::vector<LayerRange>> SplitLayers(int64_t layers, int64_t pp_size,
                                                    const std::string& partition,
                                                    const SplitOptions& options = {});

}  // namespace baton::config

#endif  // COMMON_CONFIG_LAYER_SPLIT_H_
