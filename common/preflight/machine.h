// The memory that is left on this machine for processes that are about to start, and its cores.
#ifndef COMMON_PREFLIGHT_MACHINE_H_
#define COMMON_PREFLIGHT_MACHINE_H_

#include <cstdint>
#include <string>

namespace baton {

struct Machine {
  // Bytes that can be taken without swapping: MemAvailable, or what the tightest control group
  // above this process leaves if that is less. 0: unknown, and then nothing is held against it.
  int64_t available_bytes = 0;
  std::string limit;  // Who sets it, for messages.
  int64_t cores = 1;  // That are online.
};

// Reads /proc and /sys/fs/cgroup (versions 1 and 2) below `root`, which tests set.
Machine ReadMachine(const std::string& root = "");

}  // namespace baton

#endif  // COMMON_PREFLIGHT_MACHINE_H_
