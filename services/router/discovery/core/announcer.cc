#include "services/router/discovery/core/announcer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/host.h"

namespace baton::router {
namespace {

constexpr size_t kMaxUnderWay = 64;
constexpr int64_t kEveryUs = 5'000'000;
constexpr int64_t kFirstPauseUs = 100'000;
// Pause after a refusal: the pod is no worker, or has router addresses of its own.
constexpr int64_t kRefusedPauseUs = 30'000'000;

bool IsRefusal(const absl::Status& status) {
  return absl::IsUnimplemented(status) || absl::IsFailedPrecondition(status);
}

}  // namespace

std::vector<std::string> Announcer::SetPods(const std::map<std::string, Pod>& pods,
                                            int64_t now_us) {
  std::map<std::string, std::string> lives;  // By address.
  for (const auto& [uid, pod] : pods) {
    const int port = pod.grpc_port != 0 ? pod.grpc_port : default_port_;
    if (pod.leaving || pod.ip.empty() || port == 0) continue;
    lives[net::JoinHostPort(pod.ip, port)] = absl::StrCat(uid, "/", pod.restarts);
  }
  std::vector<std::string> gone;
  std::erase_if(targets_, [&](const auto& entry) {
    if (lives.contains(entry.first)) return false;
    under_way_ -= entry.second.under_way ? 1 : 0;
    gone.push_back(entry.first);
    return true;
  });
  for (const auto& [address, life] : lives) {
    Target& target = targets_[address];
    if (target.life == life) continue;
    target.life = life;
    target.failures = 0;
    target.due_us = now_us;
    target.again = target.under_way;
  }
  return gone;
}

std::vector<std::string> Announcer::BeginAnnouncing(int64_t now_us) {
  std::vector<std::string> due;
  for (auto& [address, target] : targets_) {
    if (under_way_ >= kMaxUnderWay) break;
    if (target.under_way || now_us < target.due_us) continue;
    target.under_way = true;
    ++under_way_;
    due.push_back(address);
  }
  return due;
}

void Announcer::Answered(const std::string& address, const absl::Status& status, int64_t now_us) {
  const auto found = targets_.find(address);
  if (found == targets_.end() || !found->second.under_way) return;
  Target& target = found->second;
  target.under_way = false;
  --under_way_;
  if (std::exchange(target.again, false)) {
    target.due_us = now_us;
  } else if (status.ok()) {
    target.failures = 0;
    target.due_us = now_us + kEveryUs;
  } else {
    const int doublings = std::min(target.failures++, 16);
    target.due_us = now_us + (IsRefusal(status) ? kRefusedPauseUs
                                                : std::min(kEveryUs, kFirstPauseUs << doublings));
  }
}

int64_t Announcer::NextDeadlineUs() const {
  if (under_way_ >= kMaxUnderWay) return kNeverUs;
  int64_t next_us = kNeverUs;
  for (const auto& [address, target] : targets_) {
    if (!target.under_way) next_us = std::min(next_us, target.due_us);
  }
  return next_us;
}

int Announcer::failures(const std::string& address) const {
  const auto found = targets_.find(address);
  return found == targets_.end() ? 0 : found->second.failures;
}

}  // namespace baton::router
