#include "common/preflight/gpus.h"

#include <dlfcn.h>

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace baton {
namespace {

constexpr char kLibrary[] = "libnvidia-ml.so.1";
constexpr char kVariable[] = "CUDA_VISIBLE_DEVICES";

// The part of NVML that is used here, as nvml.h declares it; its binary interface is stable, and so
// its header is not needed.
struct NvmlMemory {
  unsigned long long total, free, used;  // NOLINT(google-runtime-int)
};
using NvmlDevice = void*;
constexpr int kNvmlSuccess = 0;
constexpr unsigned kUuidBytes = 96;

class Nvml {
 public:
  Nvml() : library_(dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) {
    ready_ = Call<int()>("nvmlInit_v2") == kNvmlSuccess;
  }
  ~Nvml() {
    if (ready_) Call<int()>("nvmlShutdown");
    if (library_ != nullptr) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::optional<unsigned> Count() const {
    unsigned count = 0;
    if (!ready_ || Call<int(unsigned*)>("nvmlDeviceGetCount_v2", &count) != kNvmlSuccess) {
      return std::nullopt;
    }
    return count;
  }

  Gpu Describe(unsigned index) const {
    Gpu gpu;
    NvmlDevice device = nullptr;
    if (Call<int(unsigned, NvmlDevice*)>("nvmlDeviceGetHandleByIndex_v2", index, &device) !=
        kNvmlSuccess) {
      return gpu;
    }
    char uuid[kUuidBytes] = "";
    if (Call<int(NvmlDevice, char*, unsigned)>("nvmlDeviceGetUUID", device, uuid, kUuidBytes) ==
        kNvmlSuccess) {
      gpu.uuid = uuid;
    }
    NvmlMemory memory = {};
    if (Call<int(NvmlDevice, NvmlMemory*)>("nvmlDeviceGetMemoryInfo", device, &memory) ==
        kNvmlSuccess) {
      gpu.free_bytes = static_cast<int64_t>(memory.free);
    }
    return gpu;
  }

 private:
  // -1 if the library or the function is not there.
  template <typename Function, typename... Arguments>
  int Call(const char* name, Arguments... arguments) const {
    void* const symbol = library_ == nullptr ? nullptr : dlsym(library_, name);
    return symbol == nullptr ? -1 : reinterpret_cast<Function*>(symbol)(arguments...);
  }

  void* const library_;
  bool ready_ = false;
};

// A number, or the beginning of a UUID that only one has. A part of a GPU (MIG) counts as one of
// unknown memory.
std::optional<Gpu> FindGpu(const std::vector<Gpu>& all, const std::string& entry) {
  if (absl::StartsWith(entry, "MIG-")) return Gpu{};
  uint32_t index = 0;
  if (absl::SimpleAtoi(entry, &index)) {
    if (index >= all.size()) return std::nullopt;
    return all[index];
  }
  if (!absl::StartsWith(entry, "GPU-")) return std::nullopt;
  std::optional<Gpu> found;
  for (const Gpu& gpu : all) {
    if (!absl::StartsWith(gpu.uuid, entry)) continue;
    if (found.has_value()) return std::nullopt;
    found = gpu;
  }
  return found;
}

}  // namespace

std::vector<Gpu> VisibleGpusOf(const std::vector<Gpu>& all,
                               const std::optional<std::string>& variable) {
  if (!variable.has_value()) return all;
  std::vector<Gpu> visible;
  for (const absl::string_view text : absl::StrSplit(*variable, ',')) {
    const std::string entry(absl::StripAsciiWhitespace(text));
    const std::optional<Gpu> gpu = FindGpu(all, entry);
    if (!gpu.has_value()) break;
    visible.push_back(*gpu);
  }
  return visible;
}

Gpus ReadGpus() {
  const char* const text = std::getenv(kVariable);
  const std::optional<std::string> variable =
      text == nullptr ? std::nullopt : std::optional<std::string>(text);
  Gpus gpus;
  gpus.source = variable ? absl::StrCat(kVariable, "=", *variable) : "this machine";
  const Nvml nvml;
  const std::optional<unsigned> count = nvml.Count();
  if (!count.has_value()) return gpus;
  gpus.known = true;
  std::vector<Gpu> all;
  for (unsigned index = 0; index < *count; ++index) all.push_back(nvml.Describe(index));
  gpus.visible = VisibleGpusOf(all, variable);
  return gpus;
}

}  // namespace baton
