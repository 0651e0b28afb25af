#include "common/preflight/machine.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace baton {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;
constexpr int64_t kSchedulable = 8;
constexpr char kMeminfo[] = "MemTotal:       33554432 kB\nMemAvailable:    8388608 kB\n";

// A made /proc and /sys/fs/cgroup.
Machine Read(const std::string& name, const std::map<std::string, std::string>& files) {
  const std::string root = testing::TempDir() + "/machine_" + name;
  for (const auto& [path, text] : files) {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  }
  return ReadMachine(root, kSchedulable);
}

TEST(MachineTest, TakesWhatTheSystemSaysIsAvailable) {
  const Machine machine = Read("plain", {{"/proc/meminfo", kMeminfo}});
  EXPECT_EQ(machine.available_bytes, 8 * kGib);
  EXPECT_EQ(machine.limit, "MemAvailable");
}

TEST(MachineTest, KnowsNothingWithoutProc) { EXPECT_EQ(Read("none", {}).available_bytes, 0); }

TEST(MachineTest, TakesTheTightestGroupOfVersion2) {
  const std::string group = "/sys/fs/cgroup/a/b";
  const Machine machine =
      Read("v2", {{"/proc/meminfo", kMeminfo},
                  {"/proc/self/cgroup", "0::/a/b\n"},
                  {"/sys/fs/cgroup/a/memory.max", "4294967296\n"},      // 4 GiB
                  {"/sys/fs/cgroup/a/memory.current", "3221225472\n"},  // 3 GiB, of which
                  {"/sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 1073741824\n"},
                  {group + "/memory.max", "max\n"},
                  {group + "/memory.current", "1000\n"}});
  EXPECT_EQ(machine.available_bytes, 2 * kGib);
  EXPECT_EQ(machine.limit, "its control group's limit");
}

TEST(MachineTest, FindsAContainersOwnGroupAtTheRoot) {
  const Machine machine = Read("v2_container", {{"/proc/meminfo", kMeminfo},
                                                {"/proc/self/cgroup", "0::/host/path\n"},
                                                {"/sys/fs/cgroup/memory.max", "1073741824\n"},
                                                {"/sys/fs/cgroup/memory.current", "0\n"}});
  EXPECT_EQ(machine.available_bytes, kGib);
}

TEST(MachineTest, ReadsVersion1) {
  const std::string group = "/sys/fs/cgroup/memory/box";
  const Machine machine =
      Read("v1", {{"/proc/meminfo", kMeminfo},
                  {"/proc/self/cgroup", "4:memory:/box\n1:cpu:/\n0::/\n"},
                  {group + "/memory.limit_in_bytes", "2147483648\n"},
                  {group + "/memory.usage_in_bytes", "1610612736\n"},
                  {group + "/memory.stat", "total_inactive_file 536870912\n"},
                  {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
                  {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "1610612736\n"}});
  EXPECT_EQ(machine.available_bytes, kGib);
}

TEST(MachineTest, AGroupAboveTheMachineLimitsNothing) {
  const Machine machine = Read("wide", {{"/proc/meminfo", kMeminfo},
                                        {"/proc/self/cgroup", "0::/\n"},
                                        {"/sys/fs/cgroup/memory.max", "68719476736\n"},
                                        {"/sys/fs/cgroup/memory.current", "0\n"}});
  EXPECT_EQ(machine.limit, "MemAvailable");
}

TEST(MachineTest, WithoutAQuotaAllSchedulableCoresCount) {
  EXPECT_EQ(Read("no_quota",
                 {{"/proc/self/cgroup", "0::/a\n"}, {"/sys/fs/cgroup/a/cpu.max", "max 100000\n"}})
                .cores,
            kSchedulable);
  EXPECT_EQ(Read("wide_quota", {{"/proc/self/cgroup", "0::/a\n"},
                                {"/sys/fs/cgroup/a/cpu.max", "1600000 100000\n"}})
                .cores,
            kSchedulable);
  EXPECT_EQ(Read("no_groups", {}).cores, kSchedulable);
}

TEST(MachineTest, TheTightestQuotaCountsRoundedUp) {
  EXPECT_EQ(Read("quota_v2", {{"/proc/self/cgroup", "0::/a/b\n"},
                              {"/sys/fs/cgroup/a/cpu.max", "150000 100000\n"},
                              {"/sys/fs/cgroup/a/b/cpu.max", "400000 100000\n"}})
                .cores,
            2);
  // As a container sees it: its own group is the root of what is mounted.
  EXPECT_EQ(Read("quota_v2_container",
                 {{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/cpu.max", "50000 100000\n"}})
                .cores,
            1);
}

TEST(MachineTest, ReadsQuotasOfVersion1) {
  const std::string cgroup = "5:cpu,cpuacct:/box/inner\n4:memory:/box\n";
  EXPECT_EQ(Read("quota_v1", {{"/proc/self/cgroup", cgroup},
                              {"/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "300000\n"},
                              {"/sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n"},
                              {"/sys/fs/cgroup/cpu/box/inner/cpu.cfs_quota_us", "-1\n"},
                              {"/sys/fs/cgroup/cpu/box/inner/cpu.cfs_period_us", "100000\n"}})
                .cores,
            3);
}

TEST(MachineTest, ThisMachineHasMemoryAndCores) {
  EXPECT_GT(ReadMachine().available_bytes, 0);
  EXPECT_GE(ReadMachine().cores, 1);
}

TEST(MachineTest, SaysItsNames) {
  const Machine machine = Read(
      "names", {{"/proc/sys/kernel/hostname", "node-7\n"},
                {"/proc/cpuinfo", "processor\t: 0\nmodel name\t: A: B @ 2 GHz\nflags\t: x\n"}});
  EXPECT_EQ(machine.host, "node-7");
  EXPECT_EQ(machine.cpu, "A: B @ 2 GHz");
  EXPECT_EQ(Read("nameless", {}).cpu, "");
}

}  // namespace
}  // namespace baton
