#include "common/preflight/machine.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace baton {
namespace {

constexpr char kCgroups[] = "/sys/fs/cgroup";

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The file's first number; none if it is missing or says "max".
std::optional<int64_t> ReadNumber(const std::string& path) {
  int64_t number = 0;
  std::ifstream file(path);
  if (!(file >> number)) return std::nullopt;
  return number;
}

// The number behind `key` in lines such as "MemAvailable:   123 kB" or "inactive_file 123".
std::optional<int64_t> NumberBehind(const std::string& text, absl::string_view key) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t number = 0;
    if (words.size() >= 2 && words[0] == key && absl::SimpleAtoi(words[1], &number)) return number;
  }
  return std::nullopt;
}

// What one control group leaves: its limit less its use, of which file pages that nobody has used
// lately can be taken back at once.
std::optional<int64_t> LeftIn(const std::string& directory, const char* limit_file,
                              const char* usage_file, const char* reclaimable) {
  const auto limit = ReadNumber(absl::StrCat(directory, "/", limit_file));
  const auto usage = ReadNumber(absl::StrCat(directory, "/", usage_file));
  if (!limit || !usage) return std::nullopt;
  const std::string stat = ReadAll(absl::StrCat(directory, "/memory.stat"));
  const int64_t used = std::max<int64_t>(*usage - NumberBehind(stat, reclaimable).value_or(0), 0);
  return std::max<int64_t>(*limit - used, 0);
}

// The tightest of the groups from `path` up to the root; inside a container the path of the host
// need not exist, and the container's own group is the root.
std::optional<int64_t> TightestGroup(const std::string& mount, std::string path, bool version_2) {
  std::optional<int64_t> tightest;
  while (true) {
    const std::string directory = mount + (path == "/" ? "" : path);
    const auto left = version_2 ? LeftIn(directory, "memory.max", "memory.current", "inactive_file")
                                : LeftIn(directory, "memory.limit_in_bytes",
                                         "memory.usage_in_bytes", "total_inactive_file");
    if (left) tightest = std::min(*left, tightest.value_or(*left));
    if (path.size() <= 1) return tightest;
    path.erase(std::max<size_t>(path.rfind('/'), 1));
    if (path.empty() || path[0] != '/') return tightest;
  }
}

std::optional<int64_t> LeftByGroups(const std::string& root) {
  std::optional<int64_t> left;
  for (const absl::string_view line :
       absl::StrSplit(ReadAll(root + "/proc/self/cgroup"), '\n', absl::SkipEmpty())) {
    // "hierarchy:controllers:path"; version 2 is hierarchy 0 without controllers.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || !absl::StartsWith(parts[2], "/")) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    const bool version_2 = parts[0] == "0" && parts[1].empty();
    const bool memory =
        std::find(controllers.begin(), controllers.end(), "memory") != controllers.end();
    if (!version_2 && !memory) continue;
    const std::string mount = absl::StrCat(root, kCgroups, version_2 ? "" : "/memory");
    const auto tightest = TightestGroup(mount, parts[2], version_2);
    if (tightest) left = std::min(*tightest, left.value_or(*tightest));
  }
  return left;
}

}  // namespace

Machine ReadMachine(const std::string& root) {
  Machine machine;
  const auto available_kib = NumberBehind(ReadAll(root + "/proc/meminfo"), "MemAvailable:");
  if (available_kib) machine = {*available_kib * 1024, "MemAvailable"};
  const auto left = LeftByGroups(root);
  if (left && (!available_kib || *left < machine.available_bytes)) {
    machine = {*left, "its control group's limit"};
  }
  machine.cores = std::max(1L, sysconf(_SC_NPROCESSORS_ONLN));
  return machine;
}

}  // namespace baton
