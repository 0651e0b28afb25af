#include "common/preflight/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

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
  machine.read_gpus = ReadGpus;
  return machine;
}

namespace {

constexpr char kMounts[] = "/sys/fs/cgroup";

// From `path` up to the root of the hierarchy that is mounted at `mount`.
void AppendUpwards(const std::string& mount, std::string path, bool version_2,
                   std::vector<ControlGroup>& groups) {
  while (true) {
    groups.push_back({mount + (path == "/" ? "" : path), version_2});
    if (path.size() <= 1) return;
    path.erase(std::max<size_t>(path.rfind('/'), 1));
    if (path.empty() || path[0] != '/') return;
  }
}

}  // namespace

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string ControlGroup::Text(absl::string_view file) const {
  return ReadText(absl::StrCat(directory, "/", file));
}

std::optional<int64_t> ControlGroup::Number(absl::string_view file) const {
  int64_t number = 0;
  std::ifstream stream(absl::StrCat(directory, "/", file));
  if (!(stream >> number)) return std::nullopt;
  return number;
}

std::vector<ControlGroup> ControlGroupsOf(const std::string& root, absl::string_view controller) {
  std::vector<ControlGroup> groups;
  const std::string mounts = root + kMounts;
  for (const absl::string_view line :
       absl::StrSplit(ReadText(root + "/proc/self/cgroup"), '\n', absl::SkipEmpty())) {
    // "hierarchy:controllers:path"; version 2 is hierarchy 0 without controllers.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || !absl::StartsWith(parts[2], "/")) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (parts[0] == "0" && parts[1].empty()) {
      AppendUpwards(mounts, parts[2], /*version_2=*/true, groups);
    } else if (std::find(controllers.begin(), controllers.end(), controller) != controllers.end()) {
      // Hierarchies of several controllers are mounted under all their names, and linked by each.
      AppendUpwards(absl::StrCat(mounts, "/", controller), parts[2], /*version_2=*/false, groups);
    }
  }
  return groups;
}

std::optional<int64_t> CoresOfQuota(int64_t quota_us, int64_t period_us) {
  if (quota_us <= 0 || period_us <= 0) return std::nullopt;
  return quota_us / period_us + (quota_us % period_us != 0 ? 1 : 0);
}

std::optional<int64_t> CoresOfCpuMax(absl::string_view text) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  int64_t quota_us = 0;
  int64_t period_us = 0;
  if (words.size() != 2 || !absl::SimpleAtoi(words[0], &quota_us) ||
      !absl::SimpleAtoi(words[1], &period_us)) {
    return std::nullopt;
  }
  return CoresOfQuota(quota_us, period_us);
}

}  // namespace baton
