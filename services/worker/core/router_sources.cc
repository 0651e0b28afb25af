#include "services/worker/core/router_sources.h"

#include <algorithm>

#include "common/base/clock.h"
#include "common/base/coverage.h"

namespace baton::worker {
namespace {

// Between two questions for one name, however much goes wrong.
constexpr int64_t kResolveGapUs = 500'000;
constexpr int64_t kResolveAgainUs = 1'000'000;  // After a failure.
// Announcements beyond are dropped; Memberships bounds how many routers are followed.
constexpr size_t kMaxAnnounced = 64;

}  // namespace

RouterSources::RouterSources(const std::vector<std::string>& names,
                             const std::vector<std::string>& numeric, int64_t every_us)
    : every_us_(every_us), numeric_(numeric) {
  for (const std::string& name : names) names_.try_emplace(name);
}

std::vector<std::string> RouterSources::BeginResolving(int64_t now_us) {
  std::vector<std::string> due;
  for (auto& [text, name] : names_) {
    if (name.resolving || now_us < name.due_us) continue;
    name.resolving = true;
    name.asked_us = now_us;
    due.push_back(text);
  }
  return due;
}

void RouterSources::Resolved(const std::string& name,
                             const absl::StatusOr<std::vector<std::string>>& addresses,
                             int64_t now_us) {
  const auto found = names_.find(name);
  if (found == names_.end()) return;
  found->second.resolving = false;
  found->second.due_us = now_us + (addresses.ok() ? every_us_ : kResolveAgainUs);
  if (addresses.ok()) found->second.addresses = *addresses;
}

void RouterSources::ResolveSoon(int64_t now_us) {
  for (auto& [text, name] : names_) {
    name.due_us = std::min(name.due_us, std::max(now_us, name.asked_us + kResolveGapUs));
  }
}

void RouterSources::Announced(const std::string& address, int64_t until_us) {
  if (announced_.size() >= kMaxAnnounced && !announced_.contains(address)) {
    Covered<"worker: an announcement is dropped">();
    return;
  }
  announced_[address] = until_us;
}

void RouterSources::Expire(int64_t now_us) {
  std::erase_if(announced_, [now_us](const auto& entry) { return entry.second <= now_us; });
}

std::set<std::string> RouterSources::Addresses() const {
  std::set<std::string> all(numeric_.begin(), numeric_.end());
  for (const auto& [text, name] : names_) {
    all.insert(name.addresses.begin(), name.addresses.end());
  }
  for (const auto& [address, until_us] : announced_) all.insert(address);
  return all;
}

int64_t RouterSources::NextDeadlineUs() const {
  int64_t next_us = kNeverUs;
  for (const auto& [text, name] : names_) {
    if (!name.resolving) next_us = std::min(next_us, name.due_us);
  }
  for (const auto& [address, until_us] : announced_) next_us = std::min(next_us, until_us);
  return next_us;
}

}  // namespace baton::worker
