// The memory, cores and libraries of this machine that processes which are about to start may have.
#ifndef COMMON_PREFLIGHT_MACHINE_H_
#define COMMON_PREFLIGHT_MACHINE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"

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
};

// CPUs that are online and in this process's affinity.
int64_t SchedulableCores();

// Reads /proc and /sys/fs/cgroup (versions 1 and 2) below `root`; tests set both.
Machine ReadMachine(const std::string& root = "", int64_t schedulable_cores = SchedulableCores());

}  // namespace baton

#endif  // COMMON_PREFLIGHT_MACHINE_H_
