// The GPUs of this machine that CUDA would show to a process, their memory and how busy they are:
// from the driver's NVML.
#ifndef COMMON_PREFLIGHT_GPUS_H_
#define COMMON_PREFLIGHT_GPUS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton {

// ---- NVML ----
// The part of the driver's NVML that Baton calls. It needs no CUDA, no libtorch and no memory of a
// GPU. A table of functions, so that tests play the driver.

// As nvml.h declares them; NVML's binary interface is stable, and so its header is not needed.
struct NvmlMemory {
  unsigned long long total, free, used;  // NOLINT(google-runtime-int)
};
struct NvmlUtilization {
  unsigned gpu_percent, memory_percent;
};
using NvmlDevice = void*;
inline constexpr int kNvmlSuccess = 0;
inline constexpr unsigned kNvmlUuidBytes = 96;

// Null: the driver has no such function, or there is no driver.
struct NvmlFunctions {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, NvmlDevice*) = nullptr;
  int (*uuid)(NvmlDevice, char*, unsigned) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*utilization)(NvmlDevice, NvmlUtilization*) = nullptr;
};

// The driver's. Its library stays loaded.
NvmlFunctions LoadNvml();

// ---- GPUs ----

struct Gpu {
  std::string uuid;        // "GPU-..."; empty where an entry names a part of a GPU (MIG).
  int64_t free_bytes = 0;  // 0: unknown.
  // NVML's number, in the order of PCI addresses; none of a part of a GPU.
  std::optional<unsigned> index = std::nullopt;
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

// What the driver says of a GPU at this moment. What it does not say is absent.
struct GpuReading {
  std::optional<double> used_bytes;
  std::optional<double> total_bytes;
  std::optional<double> utilization;  // 0 to 1.
};

// Reads one GPU again and again; NVML is set up for as long as it lives. One thread at a time.
class GpuSensor {
 public:
  // cuda:`number` of those that CUDA_VISIBLE_DEVICES leaves.
  GpuSensor(const NvmlFunctions& nvml, const std::optional<std::string>& variable, size_t number);
  ~GpuSensor();
  GpuSensor(const GpuSensor&) = delete;
  GpuSensor& operator=(const GpuSensor&) = delete;

  GpuReading Read() const;

 private:
  const NvmlFunctions nvml_;
  const bool ready_;
  std::optional<NvmlDevice> device_;  // None: no such GPU, or a part of one.
};

// CUDA_VISIBLE_DEVICES of this process.
std::optional<std::string> VisibleDevicesVariable();

// 1 for "cuda:1", 0 for "cuda"; none for "cpu".
std::optional<size_t> GpuNumber(absl::string_view device);

}  // namespace baton

#endif  // COMMON_PREFLIGHT_GPUS_H_
