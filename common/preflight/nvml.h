// The part of the driver's NVML that Baton calls. It needs no CUDA, no libtorch and no memory of a
// GPU. A table of functions, so that tests play the driver.
#ifndef COMMON_PREFLIGHT_NVML_H_
#define COMMON_PREFLIGHT_NVML_H_

namespace baton {

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

}  // namespace baton

#endif  // COMMON_PREFLIGHT_NVML_H_
