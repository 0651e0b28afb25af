// The memory, cores and libraries of this machine that processes which are about to start may have.
#ifndef COMMON_PREFLIGHT_MACHINE_H_
#define COMMON_PREFLIGHT_MACHINE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/preflight/gpus.h"

namespace baton {

struct Machine {
  // Bytes that can be taken without swapping: MemAvailable, or what the tightest control group
  // above this process leaves if that is less. 0: unknown, and then nothing is held against it.
  int64_t available_bytes = 0;
  std::string limit;  // Who sets it, for messages.
  // CPUs that this process may run on, or the tightest CPU quota above it, rounded up, if that is
  // less.
  int64_t cores = 1;
  std::string host;  // Its name, and its processor's, for people; empty: unknown.
  std::string cpu;
  // Whether libtorch can be loaded; null: not asked, as in a worker, which loads it next.
  std::function<absl::Status()> check_torch;
  // Asked only where GPUs compute; null: none are known.
  std::function<Gpus()> read_gpus;
};

// CPUs that are online and in this process's affinity.
int64_t SchedulableCores();

// Reads /proc and /sys/fs/cgroup (versions 1 and 2) below `root`; tests set both.
Machine ReadMachine(const std::string& root = "", int64_t schedulable_cores = SchedulableCores());

// The control groups that this process is in, versions 1 and 2, as /proc and /sys/fs/cgroup show
// them; what limits memory and CPU in containers and systemd's services.

// Empty if the file is missing.
std::string ReadText(const std::string& path);

// One group that holds this process, or a group above it. Each limits what is below.
struct ControlGroup {
  std::string directory;
  bool version_2 = false;

  std::string Text(absl::string_view file) const;
  // The file's first number; none if it is missing or says "max".
  std::optional<int64_t> Number(absl::string_view file) const;
};

// All groups, up to the root, whose limits of `controller` ("memory", "cpu") this process is under.
// A group whose directory does not exist is among them: inside a container the host's path need not
// exist, and the container's own group is the root.
std::vector<ControlGroup> ControlGroupsOf(const std::string& root, absl::string_view controller);

// Whole cores that a CPU quota is worth, rounded up, so that no part of it stays unused; at
// least 1. None if it sets no limit or is invalid.
std::optional<int64_t> CoresOfQuota(int64_t quota_us, int64_t period_us);

// The same of version 2's cpu.max, such as "150000 100000" or "max 100000".
std::optional<int64_t> CoresOfCpuMax(absl::string_view text);

}  // namespace baton

#endif  // COMMON_PREFLIGHT_MACHINE_H_
