#include "common/preflight/control_groups.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace baton {
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
