#include "services/baton/gpu_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

namespace baton {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

constexpr auto kPatience = std::chrono::seconds(30);

// Whether the monitor's reading becomes one for which `holds`.
template <typename Predicate>
bool Becomes(const GpuMonitor& monitor, Predicate holds) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!holds(monitor.Latest())) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

TEST(GpuMonitorTest, ReadsAgainAndAgain) {
  GpuMonitor monitor([count = 0]() mutable { return GpuReading{.used_bytes = ++count}; },
                     milliseconds(1));
  EXPECT_TRUE(Becomes(monitor, [](const GpuReading& latest) { return latest.used_bytes > 2; }));
}

TEST(GpuMonitorTest, EndsBetweenReadings) {
  GpuMonitor monitor([] { return GpuReading{.used_bytes = 1}; }, std::chrono::hours(1));
  EXPECT_TRUE(Becomes(monitor, [](const GpuReading& latest) { return latest.used_bytes == 1; }));
}

TEST(GpuMonitorTest, ADriverThatHangsHoldsNobodyUpAndTellsNothing) {
  std::atomic<bool> hangs = true;
  GpuMonitor monitor(
      [&hangs, count = 0]() mutable {
        if (++count == 2) hangs.wait(true);
        return GpuReading{.used_bytes = count};
      },
      milliseconds(100));
  EXPECT_TRUE(Becomes(monitor, [](const GpuReading& latest) { return latest.used_bytes == 1; }));
  EXPECT_TRUE(Becomes(monitor, [](const GpuReading& latest) { return !latest.used_bytes; }));
  hangs = false;
  hangs.notify_all();
  EXPECT_TRUE(Becomes(monitor, [](const GpuReading& latest) { return latest.used_bytes > 1; }));
}

TEST(GpuMonitorTest, MetricsSayWhatIsKnown) {
  Metrics metrics({.role = MetricRole::kDecode,
                   .model_name = "tiny",
                   .instance_id = "decode-0",
                   .device = "cuda:1"});
  ExportGpu({.used_bytes = 3, .total_bytes = 4, .utilization = 0.5}, metrics);
  const std::string all = metrics.Scrape();
  EXPECT_THAT(all, testing::ContainsRegex("baton_device_memory_used_bytes.*cuda:1.* 3\n"));
  EXPECT_THAT(all, testing::ContainsRegex("baton_device_memory_total_bytes.*cuda:1.* 4\n"));
  EXPECT_THAT(all, testing::ContainsRegex("baton_device_utilization_ratio.*cuda:1.* 0.5\n"));
  ExportGpu({.utilization = 0}, metrics);
  EXPECT_THAT(metrics.Scrape(), Not(HasSubstr("baton_device_memory")));
  EXPECT_THAT(metrics.Scrape(), HasSubstr("baton_device_utilization_ratio"));
}

TEST(GpuMonitorTest, ThereIsNoneOnACpu) {
  v1::Options options;
  options.set_device("cpu");
  EXPECT_EQ(GpuMonitor::Start(options), nullptr);
}

}  // namespace
}  // namespace baton
