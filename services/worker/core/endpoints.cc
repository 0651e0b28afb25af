#include "services/worker/core/endpoints.h"

#include <algorithm>

#include "common/base/clock.h"

namespace baton::worker {

Endpoints::Want Endpoints::Begin(const InstanceRef& peer) {
  const auto found = entries_.find(peer);
  if (found != entries_.end()) {
    switch (found->second.state) {
      case Entry::State::kWanted:
        return Want::kUnderWay;
      case Entry::State::kStanding:
        return Want::kStands;
      case Entry::State::kFailed:
        return Want::kRefused;
    }
  }
  if (entries_.size() >= kMost) return Want::kRefused;
  entries_.emplace(peer, Entry{});
  return Want::kNew;
}

uint64_t Endpoints::AskedOf(const InstanceRef& peer) const { return entries_.at(peer).router; }

void Endpoints::Asked(const InstanceRef& peer, uint64_t router) {
  entries_.at(peer).router = router;
}

std::vector<InstanceRef> Endpoints::WaitingFor(uint64_t router) const {
  std::vector<InstanceRef> waiting;
  for (const auto& [peer, entry] : entries_) {
    if (entry.state == Entry::State::kWanted && entry.router == router) waiting.push_back(peer);
  }
  return waiting;
}

bool Endpoints::Wanted(const InstanceRef& peer) const {
  const auto found = entries_.find(peer);
  return found != entries_.end() && found->second.state == Entry::State::kWanted;
}

void Endpoints::Opened(const PeerWorker& peer, uint64_t endpoint, int64_t now_us) {
  Entry& entry = entries_.at(peer.instance);
  entry = {};
  entry.state = Entry::State::kStanding;
  entry.endpoint = {endpoint, peer.role};
  entry.opened_us = now_us;
}

void Endpoints::Failed(const InstanceRef& peer, int64_t retry_at_us) {
  Entry& entry = entries_.at(peer);
  entry = {};
  entry.state = Entry::State::kFailed;
  entry.retry_at_us = retry_at_us;
}

std::optional<InstanceRef> Endpoints::Died(uint64_t endpoint, int64_t now_us, int64_t moment_us) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return entry.second.state == Entry::State::kStanding &&
           entry.second.endpoint.endpoint == endpoint;
  });
  if (found == entries_.end()) return std::nullopt;
  const InstanceRef peer = found->first;
  const bool again = now_us - found->second.opened_us >= moment_us;
  Failed(peer, now_us + moment_us);
  if (again) found->second.state = Entry::State::kWanted;
  return peer;
}

std::vector<InstanceRef> Endpoints::TakeDue(int64_t now_us) {
  std::vector<InstanceRef> due;
  for (auto& [peer, entry] : entries_) {
    const bool again = entry.state == Entry::State::kWanted && entry.retry_at_us > 0;
    if (!again || now_us < entry.retry_at_us) continue;
    entry = {};
    due.push_back(peer);
  }
  return due;
}

void Endpoints::Expire(int64_t now_us) {
  std::erase_if(entries_, [now_us](const auto& entry) {
    return entry.second.state == Entry::State::kFailed && entry.second.retry_at_us <= now_us;
  });
}

int64_t Endpoints::NextDeadlineUs() const {
  int64_t next_us = kNeverUs;
  for (const auto& [peer, entry] : entries_) {
    if (entry.retry_at_us > 0) next_us = std::min(next_us, entry.retry_at_us);
  }
  return next_us;
}

std::optional<PeerEndpoint> Endpoints::Find(const InstanceRef& peer) const {
  const auto found = entries_.find(peer);
  if (found == entries_.end() || found->second.state != Entry::State::kStanding) {
    return std::nullopt;
  }
  return found->second.endpoint;
}

}  // namespace baton::worker
