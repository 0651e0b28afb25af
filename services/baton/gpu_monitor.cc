#include "services/baton/gpu_monitor.h"

#include <optional>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/preflight/gpus.h"

namespace baton {
namespace {

constexpr auto kInterval = std::chrono::seconds(5);

}  // namespace

std::unique_ptr<GpuMonitor> GpuMonitor::Start(const v1::Options& options) {
  const std::optional<size_t> number = GpuNumber(options.device());
  if (!number.has_value()) return nullptr;
  // The driver is loaded by the first reading, not while the worker starts.
  auto read = [number = *number, variable = VisibleDevicesVariable(),
               sensor = std::shared_ptr<GpuSensor>()]() mutable {
    if (sensor == nullptr) sensor = std::make_shared<GpuSensor>(LoadNvml(), variable, number);
    return sensor->Read();
  };
  return std::make_unique<GpuMonitor>(std::move(read), kInterval);
}

GpuMonitor::GpuMonitor(std::function<GpuReading()> read, std::chrono::microseconds interval)
    : read_(std::move(read)), interval_(interval), thread_([this] { Run(); }) {}

GpuMonitor::~GpuMonitor() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

GpuReading GpuMonitor::Latest() const {
  MutexLock lock(&mutex_);
  return NowUs() - read_us_ > 3 * interval_.count() ? GpuReading() : latest_;
}

void GpuMonitor::Run() {
  const auto stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
  while (true) {
    const GpuReading reading = read_();
    MutexLock lock(&mutex_);
    latest_ = reading;
    read_us_ = NowUs();
    if (mutex_.AwaitFor(interval_, stopping)) return;
  }
}

void ExportGpu(const GpuReading& reading, Metrics& metrics) {
  metrics.SetOrRemove(Metric::kDeviceMemoryUsedBytes, reading.used_bytes);
  metrics.SetOrRemove(Metric::kDeviceMemoryTotalBytes, reading.total_bytes);
  metrics.SetOrRemove(Metric::kDeviceUtilizationRatio, reading.utilization);
}

}  // namespace baton
