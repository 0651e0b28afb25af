#include "services/worker/core/peer_table.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/coverage.h"

namespace baton::worker {

bool PeerTable::NeedsEndpoint(const PeerWorker& peer) const {
  if (self_.role != peer.role) return !self_.decodes && !peer.decodes;
  const bool staged = self_.role == Role::kPrefill || (self_.pp_size > 1 && peer.pp_size > 1);
  return staged && peer.group_id() == self_.group_id();
}

std::vector<uint64_t> PeerTable::Update(const std::vector<const RouterMembership*>& views) {
  std::set<InstanceRef> here;
  for (auto& [instance, peer] : peers_) peer.listed = false;
  const auto add = [&](const PeerWorker& worker, bool listed) {
    here.insert(worker.instance);
    const auto [found, is_new] = peers_.try_emplace(worker.instance);
    Peer& peer = found->second;
    if (is_new) {
      peer.worker = worker;
      peer.worker.joined_version = 0;  // A matter of each view; the worker is the same.
      peer.order = ++arrivals_;
      peer.may_be_told = !NeedsEndpoint(worker);
    }
    peer.listed = peer.listed || listed;
  };
  for (const RouterMembership* view : views) {
    for (const auto& [instance, worker] : view->listed()) add(worker, true);
    for (const auto& [instance, worker] : view->kept()) add(worker, false);
  }
  std::erase_if(peers_, [&](const auto& entry) { return !here.contains(entry.first); });
  std::vector<uint64_t> closed;
  std::erase_if(endpoints_, [&](const auto& entry) {
    if (here.contains(entry.first)) return false;
    closed.push_back(entry.second.endpoint);
    return true;
  });
  std::erase_if(missing_, [&](const auto& entry) {
    const auto peer = peers_.find(entry.first);
    return peer == peers_.end() || !peer->second.listed;
  });
  for (const auto& [instance, peer] : peers_) NoteMissing(instance, peer);
  return closed;
}

void PeerTable::NoteMissing(const InstanceRef& instance, const Peer& peer) {
  if (peer.listed && !Stands(instance) && NeedsEndpoint(peer.worker)) {
    missing_.try_emplace(instance, peer.opening ? kNeverUs : 0);
  }
}

std::vector<uint64_t> PeerTable::Renew() {
  std::vector<uint64_t> closed;
  for (const auto& [instance, endpoint] : endpoints_) closed.push_back(endpoint.endpoint);
  endpoints_.clear();
  missing_.clear();
  for (auto& [instance, peer] : peers_) {
    peer.tried = false;
    peer.superseded = peer.opening;
    NoteMissing(instance, peer);
  }
  return closed;
}

std::optional<uint64_t> PeerTable::Renew(const InstanceRef& peer) {
  const auto known = peers_.find(peer);
  if (known == peers_.end()) return std::nullopt;
  const auto found = endpoints_.find(peer);
  known->second.superseded = known->second.opening;
  if (known->second.opening || found != endpoints_.end()) known->second.tried = false;
  if (found == endpoints_.end()) return std::nullopt;
  const uint64_t closed = found->second.endpoint;
  endpoints_.erase(found);
  NoteMissing(peer, known->second);
  return closed;
}

std::vector<PeerWorker> PeerTable::BeginConnecting(int64_t now_us) {
  std::vector<PeerWorker> due;
  for (auto& [instance, retry_at_us] : missing_) {
    if (now_us < retry_at_us) continue;
    retry_at_us = kNeverUs;
    Peer& peer = peers_.at(instance);
    peer.opening = true;
    due.push_back(peer.worker);
  }
  opening_ += static_cast<int>(due.size());
  return due;
}

int64_t PeerTable::NextConnectUs() const {
  int64_t next_us = kNeverUs;
  for (const auto& [instance, retry_at_us] : missing_) next_us = std::min(next_us, retry_at_us);
  return next_us;
}

void PeerTable::Answered() {
  if (--opening_ == 0) died_early_.clear();
}

bool PeerTable::Opened(const InstanceRef& instance, uint64_t endpoint, int64_t retry_at_us) {
  if (died_early_.contains(endpoint)) {
    Covered<"worker: an endpoint dies before it is known">();
    NotOpened(instance, retry_at_us);
    return false;
  }
  Answered();
  const auto found = peers_.find(instance);
  if (found != peers_.end()) found->second.opening = false;
  if (found != peers_.end() && std::exchange(found->second.superseded, false)) {
    Covered<"worker: an endpoint comes that was opened too early">();
    const auto missing = missing_.find(instance);
    if (missing != missing_.end()) missing->second = 0;
    return false;
  }
  if (found == peers_.end() || Stands(instance)) {
    Covered<"worker: an endpoint comes that is not wanted">();
    return false;
  }
  found->second.tried = true;
  found->second.may_be_told = true;
  missing_.erase(instance);
  const PeerWorker& worker = found->second.worker;
  endpoints_[instance] = {endpoint, worker.role, worker.protocol_version};
  return true;
}

void PeerTable::NotOpened(const InstanceRef& instance, int64_t retry_at_us) {
  Answered();
  const auto found = peers_.find(instance);
  if (found != peers_.end()) {
    found->second.opening = found->second.superseded = false;
    found->second.tried = true;
  }
  const auto missing = missing_.find(instance);
  if (missing != missing_.end()) missing->second = retry_at_us;
}

std::optional<InstanceRef> PeerTable::Died(uint64_t endpoint, int64_t retry_at_us) {
  const auto of_it = [endpoint](const auto& entry) { return entry.second.endpoint == endpoint; };
  const auto found = std::find_if(endpoints_.begin(), endpoints_.end(), of_it);
  if (found == endpoints_.end()) {
    if (opening_ > 0) died_early_.insert(endpoint);
    return std::nullopt;
  }
  const InstanceRef instance = found->first;
  endpoints_.erase(found);
  NoteMissing(instance, peers_.at(instance));
  const auto missing = missing_.find(instance);
  if (missing != missing_.end()) missing->second = retry_at_us;
  return instance;
}

bool PeerTable::Tried(const RouterMembership::Listed& view) const {
  return std::all_of(view.begin(), view.end(), [this](const auto& entry) {
    if (!NeedsEndpoint(entry.second)) return true;
    const auto found = peers_.find(entry.first);
    return found != peers_.end() && found->second.tried;
  });
}

std::vector<uint64_t> PeerTable::Unconnected(const RouterMembership::Listed& view) const {
  std::vector<uint64_t> unconnected;
  for (const auto& [instance, worker] : view) {
    if (NeedsEndpoint(worker) && !Stands(instance)) unconnected.push_back(instance.incarnation);
  }
  std::sort(unconnected.begin(), unconnected.end());
  return unconnected;
}

std::vector<PeerWorker> PeerTable::Known() const {
  std::vector<const Peer*> newest;
  for (const auto& [instance, peer] : peers_) {
    if (peer.may_be_told) newest.push_back(&peer);
  }
  std::sort(newest.begin(), newest.end(), [](const Peer* a, const Peer* b) {
    return std::pair(a->listed, a->order) > std::pair(b->listed, b->order);
  });
  std::set<std::string> names;
  std::vector<PeerWorker> known;
  for (const Peer* peer : newest) {
    if (names.insert(peer->worker.instance.id).second) known.push_back(peer->worker);
  }
  return known;
}

}  // namespace baton::worker
