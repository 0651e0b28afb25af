#include <algorithm>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/preflight/memory_plan.h"

namespace baton {
namespace {

// What a process takes of a GPU's memory before it has a tensor there: CUDA's context, cuBLAS's
// workspaces and kernels that are loaded. An estimate; it has not been measured.
constexpr int64_t kCudaBytes = int64_t{640} << 20;
constexpr int64_t kMost = int64_t{1} << 62;

int64_t Sum(int64_t left, int64_t right) { return std::min(left, kMost - right) + right; }

}  // namespace

int64_t DeviceMemory::total() const { return Sum(Sum(weights, kv), Sum(buffers, runtime)); }

std::vector<DeviceMemory> PlanDevices(const HostMemory& memory,
                                      const std::vector<std::string>& dealt, const Gpus& gpus,
                                      int64_t asked_bytes) {
  std::map<int64_t, DeviceMemory> devices;  // By number.
  for (const ProcessMemory& process : memory.processes) {
    for (const int64_t place : process.places) {
      const std::string& name = dealt[static_cast<size_t>(place)];
      int64_t number = 0;
      if (!absl::SimpleAtoi(name.substr(name.find(':') + 1), &number)) continue;  // cpu
      DeviceMemory& device = devices[number];
      device.device = name;
      ++device.workers;
      device.weights = Sum(device.weights, process.on_device.weights);
      device.kv_per_token = Sum(device.kv_per_token, process.on_device.kv_per_token);
      device.kv = Sum(device.kv, process.on_device.kv);
      device.buffers = Sum(device.buffers, process.on_device.buffers);
      device.runtime += kCudaBytes;
      const auto index = static_cast<size_t>(number);
      const int64_t free = index < gpus.visible.size() ? gpus.visible[index].free_bytes : 0;
      device.available = asked_bytes > 0 ? asked_bytes : free;
      device.limit = asked_bytes > 0 ? "--device-memory" : "its driver";
    }
  }
  std::vector<DeviceMemory> ordered;
  ordered.reserve(devices.size());
  for (auto& [number, device] : devices) ordered.push_back(std::move(device));
  return ordered;
}

int64_t LargestKvTokens(const DeviceMemory& device, int64_t page_size, int64_t static_bytes) {
  return LargestKvTokens(device.weights, device.kv_per_token, page_size, static_bytes);
}

}  // namespace baton
