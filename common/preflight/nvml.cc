#include "common/preflight/nvml.h"

#include <dlfcn.h>

namespace baton {
namespace {

constexpr char kLibrary[] = "libnvidia-ml.so.1";

template <typename Function>
void Find(void* library, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

NvmlFunctions LoadNvml() {
  NvmlFunctions functions;
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return functions;
  Find(library, "nvmlInit_v2", &functions.init);
  Find(library, "nvmlShutdown", &functions.shutdown);
  Find(library, "nvmlDeviceGetCount_v2", &functions.count);
  Find(library, "nvmlDeviceGetHandleByIndex_v2", &functions.device);
  Find(library, "nvmlDeviceGetUUID", &functions.uuid);
  Find(library, "nvmlDeviceGetMemoryInfo", &functions.memory);
  Find(library, "nvmlDeviceGetUtilizationRates", &functions.utilization);
  return functions;
}

}  // namespace baton
