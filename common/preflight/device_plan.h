// What the workers of this host will hold in the memory of its GPUs, before any of them starts.
// Pure arithmetic.
#ifndef COMMON_PREFLIGHT_DEVICE_PLAN_H_
#define COMMON_PREFLIGHT_DEVICE_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/preflight/gpus.h"
#include "common/preflight/memory_plan.h"

namespace baton {

// One GPU, over all workers that share it. Bytes; each saturates.
struct DeviceMemory {
  std::string device;  // "cuda:1"
  int64_t workers = 0;
  int64_t weights = 0;
  int64_t kv_per_token = 0;
  int64_t kv = 0;
  int64_t buffers = 0;
  int64_t runtime = 0;    // CUDA's own and its libraries'.
  int64_t available = 0;  // 0: unknown.
  std::string limit;      // Who says what is available.

  int64_t total() const;
};

// The GPUs that are dealt out, in their order; none for "cpu". `dealt` is DealDevices' answer, in
// the order that ProcessMemory::places counts. `asked_bytes` is --device-memory, 0 for what is
// free.
std::vector<DeviceMemory> PlanDevices(const HostMemory& memory,
                                      const std::vector<std::string>& dealt, const Gpus& gpus,
                                      int64_t asked_bytes);

// As of a host: the most KV tokens with which weights and KV take at most `static_bytes`.
int64_t LargestKvTokens(const DeviceMemory& device, int64_t page_size, int64_t static_bytes);

}  // namespace baton

#endif  // COMMON_PREFLIGHT_DEVICE_PLAN_H_
