#include "common/preflight/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/preflight/control_groups.h"

namespace baton {
namespace {

// The number behind `key` in lines such as "MemAvailable:   123 kB" or "inactive_file 123".
std::optional<int64_t> NumberBehind(const std::string& text, absl::string_view key) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t number = 0;
    if (words.size() >= 2 && words[0] == key && absl::SimpleAtoi(words[1], &number)) return number;
  }
  return std::nullopt;
}

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

// The text behind the colon in the first line such as "model name : A processor".
std::string TextBehind(const std::string& text, absl::string_view key) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> sides =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::StripAsciiWhitespace(sides.first) != key) continue;
    return std::string(absl::StripAsciiWhitespace(sides.second));
  }
  return "";
}

// The memory one control group leaves: its limit less its use. Inactive file pages don't count as
// used: the kernel reclaims them at once.
std::optional<int64_t> LeftIn(const ControlGroup& group) {
  const auto limit = group.Number(group.version_2 ? "memory.max" : "memory.limit_in_bytes");
  const auto usage = group.Number(group.version_2 ? "memory.current" : "memory.usage_in_bytes");
  if (!limit || !usage) return std::nullopt;
  const auto reclaimable = NumberBehind(group.Text("memory.stat"),
                                        group.version_2 ? "inactive_file" : "total_inactive_file");
  const int64_t used = std::max<int64_t>(*usage - reclaimable.value_or(0), 0);
  return std::max<int64_t>(*limit - used, 0);
}

std::optional<int64_t> CoresIn(const ControlGroup& group) {
  if (group.version_2) return CoresOfCpuMax(group.Text("cpu.max"));
  const auto quota_us = group.Number("cpu.cfs_quota_us");
  const auto period_us = group.Number("cpu.cfs_period_us");
  if (!quota_us || !period_us) return std::nullopt;
  return CoresOfQuota(*quota_us, *period_us);
}

// The least that `measure` finds in the groups above this process.
std::optional<int64_t> Tightest(const std::string& root, const char* controller,
                                std::optional<int64_t> (*measure)(const ControlGroup&)) {
  std::optional<int64_t> tightest;
  for (const ControlGroup& group : ControlGroupsOf(root, controller)) {
    const auto measured = measure(group);
    if (measured) tightest = std::min(*measured, tightest.value_or(*measured));
  }
  return tightest;
}

}  // namespace

int64_t SchedulableCores() {
  cpu_set_t set;
  // Fails on machines with more CPUs than the set has room for.
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1L, sysconf(_SC_NPROCESSORS_ONLN));
}

Machine ReadMachine(const std::string& root, int64_t schedulable_cores) {
  Machine machine;
  const auto available_kib = NumberBehind(ReadText(root + "/proc/meminfo"), "MemAvailable:");
  if (available_kib) machine = {*available_kib * 1024, "MemAvailable"};
  const auto left = Tightest(root, "memory", LeftIn);
  if (left && (!available_kib || *left < machine.available_bytes)) {
    machine = {*left, "its control group's limit"};
  }
  const auto quota = Tightest(root, "cpu", CoresIn);
  machine.cores = std::min(schedulable_cores, quota.value_or(schedulable_cores));
  machine.host = FirstLine(ReadText(root + "/proc/sys/kernel/hostname"));
  machine.cpu = TextBehind(ReadText(root + "/proc/cpuinfo"), "model name");
  return machine;
}

}  // namespace baton
