// How a worker's GPU is doing, for its metrics.
#ifndef SERVICES_BATON_GPU_MONITOR_H_
#define SERVICES_BATON_GPU_MONITOR_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "common/preflight/gpus.h"
#include "common/telemetry/metrics.h"
#include "proto/baton/v1/config.pb.h"

namespace baton {

// Reads on a thread of its own, since a driver may take long to answer and who asks for metrics is
// who answers probes.
class GpuMonitor {
 public:
  // For the GPU of --device; null on a CPU.
  static std::unique_ptr<GpuMonitor> Start(const v1::Options& options);

  GpuMonitor(std::function<GpuReading()> read, std::chrono::microseconds interval);
  ~GpuMonitor();  // Waits for a reading under way.

  // Nothing where the latest reading is older than three intervals: the driver hangs.
  GpuReading Latest() const;

 private:
  void Run();

  const std::function<GpuReading()> read_;  // The thread's.
  const std::chrono::microseconds interval_;
  mutable Mutex mutex_;
  GpuReading latest_ ABSL_GUARDED_BY(mutex_);
  int64_t read_us_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last: it uses the rest.
};

void ExportGpu(const GpuReading& reading, Metrics& metrics);

}  // namespace baton

#endif  // SERVICES_BATON_GPU_MONITOR_H_
