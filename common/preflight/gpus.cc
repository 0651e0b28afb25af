#include "common/preflight/gpus.h"

#include <dlfcn.h>

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

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

namespace {

constexpr char kVariable[] = "CUDA_VISIBLE_DEVICES";

bool Succeeds(int result) { return result == kNvmlSuccess; }

Gpu Describe(const NvmlFunctions& nvml, unsigned index) {
  Gpu gpu;
  gpu.index = index;
  NvmlDevice device = nullptr;
  if (nvml.device == nullptr || !Succeeds(nvml.device(index, &device))) return gpu;
  char uuid[kNvmlUuidBytes] = "";
  if (nvml.uuid != nullptr && Succeeds(nvml.uuid(device, uuid, kNvmlUuidBytes))) gpu.uuid = uuid;
  NvmlMemory memory = {};
  if (nvml.memory != nullptr && Succeeds(nvml.memory(device, &memory))) {
    gpu.free_bytes = static_cast<int64_t>(memory.free);
  }
  return gpu;
}

// Nothing without a driver. NVML must be set up.
std::optional<std::vector<Gpu>> AllGpus(const NvmlFunctions& nvml) {
  unsigned count = 0;
  if (nvml.count == nullptr || !Succeeds(nvml.count(&count))) return std::nullopt;
  std::vector<Gpu> all;
  all.reserve(count);
  for (unsigned index = 0; index < count; ++index) all.push_back(Describe(nvml, index));
  return all;
}

bool SetUp(const NvmlFunctions& nvml) { return nvml.init != nullptr && Succeeds(nvml.init()); }

void ShutDown(const NvmlFunctions& nvml) {
  if (nvml.shutdown != nullptr) nvml.shutdown();
}

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

std::optional<std::string> VisibleDevicesVariable() {
  const char* const text = std::getenv(kVariable);
  return text == nullptr ? std::nullopt : std::optional<std::string>(text);
}

Gpus ReadGpus() {
  const std::optional<std::string> variable = VisibleDevicesVariable();
  Gpus gpus;
  gpus.source = variable ? absl::StrCat(kVariable, "=", *variable) : "this machine";
  const NvmlFunctions nvml = LoadNvml();
  if (!SetUp(nvml)) return gpus;
  if (const std::optional<std::vector<Gpu>> all = AllGpus(nvml); all.has_value()) {
    gpus.known = true;
    gpus.visible = VisibleGpusOf(*all, variable);
  }
  ShutDown(nvml);
  return gpus;
}

GpuSensor::GpuSensor(const NvmlFunctions& nvml, const std::optional<std::string>& variable,
                     size_t number)
    : nvml_(nvml), ready_(SetUp(nvml)) {
  if (!ready_ || nvml_.device == nullptr) return;
  const std::vector<Gpu> visible =
      VisibleGpusOf(AllGpus(nvml_).value_or(std::vector<Gpu>()), variable);
  if (number >= visible.size() || !visible[number].index.has_value()) return;
  NvmlDevice device = nullptr;
  if (Succeeds(nvml_.device(*visible[number].index, &device))) device_ = device;
}

GpuSensor::~GpuSensor() {
  if (ready_) ShutDown(nvml_);
}

GpuReading GpuSensor::Read() const {
  GpuReading reading;
  if (!device_.has_value()) return reading;
  NvmlMemory memory = {};
  if (nvml_.memory != nullptr && Succeeds(nvml_.memory(*device_, &memory))) {
    reading.used_bytes = static_cast<double>(memory.used);
    reading.total_bytes = static_cast<double>(memory.total);
  }
  NvmlUtilization utilization = {};
  if (nvml_.utilization != nullptr && Succeeds(nvml_.utilization(*device_, &utilization))) {
    reading.utilization = utilization.gpu_percent / 100.0;
  }
  return reading;
}

std::optional<size_t> GpuNumber(absl::string_view device) {
  if (device == "cuda") return 0;
  size_t number = 0;
  if (!absl::ConsumePrefix(&device, "cuda:") || !absl::SimpleAtoi(device, &number)) {
    return std::nullopt;
  }
  return number;
}

}  // namespace baton
