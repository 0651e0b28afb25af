// Which GPU each of a machine's workers computes on: --device, --base-gpu-id and --gpu-id-step,
// with SGLang's meaning. Pure.
#ifndef COMMON_CONFIG_DEVICE_DEAL_H_
#define COMMON_CONFIG_DEVICE_DEAL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/options.h"

namespace baton::config {

// What --device's numbers count: the GPUs that CUDA shows to a process of this machine.
struct VisibleGpus {
  std::optional<int64_t>
      count;           // None: nothing here says, and the process that opens one finds out.
  std::string source;  // Who says so, for messages.
};

// How many workers `role` starts on this machine: one, a node's, or all of `up`.
int64_t WorkersHere(const v1::Options& options, Role role);

// The device of each of these workers, "cpu" or "cuda:N", in the order in which `up` and a node
// start them: chain by chain, stage by stage, rank by rank, and decode services last.
// InvalidArgument with the option as field if there are too few GPUs, or if ranks that sum with one
// another would share one, which NCCL does not let them.
absl::StatusOr<std::vector<std::string>> DealDevices(const v1::Options& options, Role role,
                                                     const VisibleGpus& visible);

}  // namespace baton::config

#endif  // COMMON_CONFIG_DEVICE_DEAL_H_
