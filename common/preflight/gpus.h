// The GPUs of this machine that CUDA would show to a process, and their memory: from the driver's
// NVML, which needs no CUDA, no libtorch and no memory of a GPU.
#ifndef COMMON_PREFLIGHT_GPUS_H_
#define COMMON_PREFLIGHT_GPUS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace baton {

struct Gpu {
  std::string uuid;        // "GPU-..."; empty where an entry names a part of a GPU (MIG).
  int64_t free_bytes = 0;  // 0: unknown.
};

// In CUDA's numbering: the first is cuda:0.
struct Gpus {
  bool known = false;  // False without the driver, and then there are none to be had here.
  std::vector<Gpu> visible;
  std::string source;  // Who says so: "this machine" or "CUDA_VISIBLE_DEVICES=2,3".
};

// Those of `all`, in the order of their PCI addresses, that CUDA_VISIBLE_DEVICES leaves (none: it
// is not set). As CUDA reads it: numbers or beginnings of UUIDs, and the first entry that is
// neither ends the list.
std::vector<Gpu> VisibleGpusOf(const std::vector<Gpu>& all,
                               const std::optional<std::string>& variable);

// Asks the driver, if there is one.
Gpus ReadGpus();

}  // namespace baton

#endif  // COMMON_PREFLIGHT_GPUS_H_
