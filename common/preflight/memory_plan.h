// What every process of a cluster on this host will hold in memory, before any of them starts. Pure
// arithmetic.
#ifndef COMMON_PREFLIGHT_MEMORY_PLAN_H_
#define COMMON_PREFLIGHT_MEMORY_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/options.h"
#include "common/model/model_config.h"
#include "common/preflight/gpus.h"
#include "common/types/kv_layout.h"

namespace baton {

// Bytes, of one process.
struct ProcessMemory {
  // What a worker on a GPU holds in that GPU's memory instead of the host's.
  struct OnDevice {
    int64_t weights = 0;
    int64_t kv_per_token = 0;
    int64_t kv = 0;
    int64_t buffers = 0;
  };

  // "router", "prefill 0" or "colocated 0" (its stage), "prefill 0.1" (and rank), "decode"; of a
  // decode service of several stages "decode 0".
  std::string name;
  int64_t count = 1;  // Processes of this kind.
  // The number of each of them among the workers of this host (config::DealDevices).
  std::vector<int64_t> places;
  LayerRange layers;  // Empty for the router.
  int64_t weights = 0;
  int64_t kv_per_token = 0;
  int64_t kv = 0;       // The whole pool; its pages are resident once they have been used.
  int64_t buffers = 0;  // Scratch, activations and logits at their largest.
  int64_t runtime = 0;  // The process itself: libraries, threads, transports, the tokenizer.
  OnDevice on_device;   // All 0 on a CPU.

  int64_t total() const { return weights + kv + buffers + runtime; }
  int64_t together() const;  // For all `count`.
};

// What the names of a chain's processes begin with.
inline constexpr char kPrefillName[] = "prefill ";
inline constexpr char kColocatedName[] = "colocated ";

struct HostMemory {
  std::vector<ProcessMemory> processes;
  int64_t kv_tokens = 0;                      // In each process's pool, in whole pages.
  ElementType dtype = ElementType::kFloat32;  // For weights and activations.
  ElementType kv_dtype = ElementType::kFloat32;

  // Over all processes of the host; each saturates at 2^62.
  int64_t total() const;
  int64_t weights() const;
  int64_t kv() const;
  int64_t kv_per_token() const;
};

// Facts about the files that the plan depends on.
struct ModelFacts {
  ModelConfig config;
  ElementType dtype = ElementType::kFloat32;  // For weights and activations, as planned.
  ElementType kv_dtype = ElementType::kFloat32;
  int embedding_element_bytes = 2;  // Likewise.
  int64_t tokenizer_file_bytes = 0;
};

// The processes that `role` is on this host: itself, its node's (--nnodes), or all that UP starts.
// `context_tokens` is the longest sequence; --threads has been chosen. Errors are those of
// config::SplitLayers and ShardModel.
absl::StatusOr<HostMemory> PlanMemory(const v1::Options& options, config::Role role,
                                      const ModelFacts& model, int64_t context_tokens);

// The most KV tokens in whole pages with which weights and KV together take at most
// `static_bytes`; at most 2^30, 0 if not even one page fits.
int64_t LargestKvTokens(const HostMemory& memory, int64_t page_size, int64_t static_bytes);
int64_t LargestKvTokens(int64_t weights, int64_t kv_per_token, int64_t page_size,
                        int64_t static_bytes);

// Tokens of the longest prompt that every pool holds and that leaves room for one token in a
// context of `context_tokens` (the first generated token needs no page before it is fed back).
int64_t LongestPrompt(const HostMemory& memory, int64_t context_tokens);

// ---- GPUs ----
// What the workers of this host will hold in the memory of its GPUs, before any of them starts.
// Pure arithmetic.

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

#endif  // COMMON_PREFLIGHT_MEMORY_PLAN_H_
