#include "common/preflight/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

namespace baton {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const std::vector<Gpu> kFour = {{"GPU-aa0", 1}, {"GPU-aa1", 2}, {"GPU-b", 3}, {"GPU-c", 4}};

// The free memory of those that are visible, which tells them apart.
std::vector<int64_t> Visible(const std::optional<std::string>& variable) {
  std::vector<int64_t> free;
  for (const Gpu& gpu : VisibleGpusOf(kFour, variable)) free.push_back(gpu.free_bytes);
  return free;
}

TEST(GpusTest, WithoutTheVariableAllAreVisible) {
  EXPECT_THAT(Visible(std::nullopt), ElementsAre(1, 2, 3, 4));
}

TEST(GpusTest, TheVariableChoosesAndOrders) {
  EXPECT_THAT(Visible("3, 0"), ElementsAre(4, 1));
  EXPECT_THAT(Visible("GPU-b,GPU-aa1"), ElementsAre(3, 2));
  EXPECT_THAT(Visible("MIG-1,2"), ElementsAre(0, 3)) << "a part of a GPU has unknown memory";
}

TEST(GpusTest, WhatIsNoGpuEndsTheList) {
  EXPECT_THAT(Visible(""), IsEmpty());
  EXPECT_THAT(Visible("NoDevFiles"), IsEmpty());
  EXPECT_THAT(Visible("1,-1,2"), ElementsAre(2));
  EXPECT_THAT(Visible("0,4,1"), ElementsAre(1));
  EXPECT_THAT(Visible("GPU-aa"), IsEmpty()) << "two begin so";
  EXPECT_THAT(Visible("GPU-"), IsEmpty());
}

// A driver of two GPUs; what it answers is in these.
unsigned played_count = 2;
int played_result = kNvmlSuccess;
int set_up = 0;

NvmlFunctions PlayedNvml() {
  NvmlFunctions nvml;
  nvml.init = [] { return ++set_up, kNvmlSuccess; };
  nvml.shutdown = [] { return --set_up, kNvmlSuccess; };
  nvml.count = [](unsigned* count) { return *count = played_count, kNvmlSuccess; };
  nvml.device = [](unsigned index, NvmlDevice* device) {
    static int devices[2];
    *device = &devices[index];
    devices[index] = static_cast<int>(index);
    return kNvmlSuccess;
  };
  nvml.uuid = [](NvmlDevice device, char* uuid, unsigned bytes) {
    std::snprintf(uuid, bytes, "GPU-%d", *static_cast<int*>(device));
    return kNvmlSuccess;
  };
  nvml.memory = [](NvmlDevice device, NvmlMemory* memory) {
    const auto used = 100u + static_cast<unsigned>(*static_cast<int*>(device));
    *memory = {1000, 1000 - used, used};
    return played_result;
  };
  nvml.utilization = [](NvmlDevice, NvmlUtilization* utilization) {
    *utilization = {25, 50};
    return played_result;
  };
  return nvml;
}

GpuReading ReadOnce(const NvmlFunctions& nvml, const std::optional<std::string>& variable,
                    size_t number) {
  return GpuSensor(nvml, variable, number).Read();
}

TEST(GpuSensorTest, ReadsTheGpuThatCudaMeans) {
  const NvmlFunctions nvml = PlayedNvml();
  const GpuReading second = ReadOnce(nvml, std::nullopt, 1);
  EXPECT_EQ(second.used_bytes, 101);
  EXPECT_EQ(second.total_bytes, 1000);
  EXPECT_EQ(second.utilization, 0.25);
  EXPECT_EQ(ReadOnce(nvml, "1,0", 0).used_bytes, 101);
  EXPECT_EQ(ReadOnce(nvml, "GPU-1", 0).used_bytes, 101);
  EXPECT_EQ(ReadOnce(nvml, "1,0", 1).used_bytes, 100);
  EXPECT_EQ(set_up, 0) << "each has shut NVML down";
}

void ExpectNothing(const GpuReading& reading) {
  EXPECT_EQ(reading.used_bytes, std::nullopt);
  EXPECT_EQ(reading.total_bytes, std::nullopt);
  EXPECT_EQ(reading.utilization, std::nullopt);
}

TEST(GpuSensorTest, WhatIsNotThereIsAbsent) {
  ExpectNothing(ReadOnce(PlayedNvml(), std::nullopt, 2));
  ExpectNothing(ReadOnce(PlayedNvml(), "1", 1));
  ExpectNothing(ReadOnce(PlayedNvml(), "MIG-1", 0));
  ExpectNothing(ReadOnce(NvmlFunctions(), std::nullopt, 0));
  NvmlFunctions fails = PlayedNvml();
  fails.init = [] { return 9; };
  fails.shutdown = [] { return ADD_FAILURE() << "it was not set up", 0; };
  ExpectNothing(ReadOnce(fails, std::nullopt, 0));
}

TEST(GpuSensorTest, AFailureIsOfOneReading) {
  NvmlFunctions nvml = PlayedNvml();
  {
    const GpuSensor sensor(nvml, std::nullopt, 0);
    played_result = 15;
    ExpectNothing(sensor.Read());
    played_result = kNvmlSuccess;
    EXPECT_EQ(sensor.Read().used_bytes, 100);
  }
  nvml.utilization = nullptr;
  const GpuReading reading = ReadOnce(nvml, std::nullopt, 0);
  EXPECT_EQ(reading.used_bytes, 100);
  EXPECT_EQ(reading.utilization, std::nullopt);
}

TEST(GpusTest, DevicesNamesHaveNumbers) {
  EXPECT_EQ(GpuNumber("cuda"), 0u);
  EXPECT_EQ(GpuNumber("cuda:12"), 12u);
  for (const char* const other : {"cpu", "", "cuda:", "cuda:-1", "cuda:x"}) {
    EXPECT_EQ(GpuNumber(other), std::nullopt) << other;
  }
}

}  // namespace
}  // namespace baton
