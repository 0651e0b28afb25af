#include "services/worker/core/peer_table.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "common/base/clock.h"

namespace baton::worker {

bool PeerTable::NeedsEndpoint(const PeerWorker& peer) const {
  if (self_.role == Role::kDecode) return peer.role == Role::kPrefill;
  return peer.role == Role::kDecode || peer.chain_id == self_.chain_id;
}

std::vector<InstanceRef> PeerTable::Update(const std::vector<const RouterMembership*>& views) {
  std::set<InstanceRef> here;
  for (auto& [instance, peer] : peers_) peer.listed = false;
  const auto add = [&](const PeerWorker& worker, bool listed) {
    here.insert(worker.instance);
    const auto [found, is_new] = peers_.try_emplace(worker.instance);
    Peer& peer = found->second;
    if (is_new) {
      peer.worker = worker;
      peer.order = ++arrivals_;
      peer.may_be_told = !NeedsEndpoint(worker);
    }
    peer.listed = peer.listed || listed;
  };
  for (const RouterMembership* view : views) {
    for (const auto& [instance, worker] : view->listed()) add(worker, true);
    for (const auto& [instance, worker] : view->kept()) add(worker, false);
  }
  std::vector<InstanceRef> closed;
  std::erase_if(peers_, [&](const auto& entry) {
    if (here.contains(entry.first)) return false;
    if (entry.second.stands) closed.push_back(entry.first);
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
  if (peer.listed && !peer.stands && NeedsEndpoint(peer.worker)) missing_.try_emplace(instance, 0);
}

std::vector<PeerWorker> PeerTable::BeginConnecting(int64_t now_us, int64_t retry_us) {
  std::vector<PeerWorker> due;
  for (auto& [instance, retry_at_us] : missing_) {
    if (now_us < retry_at_us) continue;
    retry_at_us = now_us + retry_us;
    due.push_back(peers_.at(instance).worker);
  }
  return due;
}

int64_t PeerTable::NextConnectUs() const {
  int64_t next_us = kNeverUs;
  for (const auto& [instance, retry_at_us] : missing_) next_us = std::min(next_us, retry_at_us);
  return next_us;
}

void PeerTable::Connected(const InstanceRef& instance) {
  const auto found = peers_.find(instance);
  if (found == peers_.end()) return;
  found->second.stands = true;
  found->second.tried = true;
  found->second.may_be_told = true;
  missing_.erase(instance);
}

void PeerTable::Disconnected(const InstanceRef& instance, int64_t retry_at_us) {
  const auto found = peers_.find(instance);
  if (found == peers_.end()) return;
  found->second.stands = false;
  found->second.tried = true;
  NoteMissing(instance, found->second);
  const auto missing = missing_.find(instance);
  if (missing != missing_.end()) missing->second = std::max(missing->second, retry_at_us);
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

bool PeerTable::Stands(const InstanceRef& instance) const {
  const auto found = peers_.find(instance);
  return found != peers_.end() && found->second.stands;
}

std::vector<PeerWorker> PeerTable::Known() const {
  std::vector<const Peer*> newest;
  for (const auto& [instance, peer] : peers_) {
    if (peer.may_be_told) newest.push_back(&peer);
  }
  std::sort(newest.begin(), newest.end(),
            [](const Peer* a, const Peer* b) { return a->order > b->order; });
  std::set<std::string> names;
  std::vector<PeerWorker> known;
  for (const Peer* peer : newest) {
    if (names.insert(peer->worker.instance.id).second) known.push_back(peer->worker);
  }
  return known;
}

}  // namespace baton::worker
