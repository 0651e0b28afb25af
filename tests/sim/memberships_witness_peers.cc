// A worker's peers and its endpoints to them (memberships_witness.h).
#include <algorithm>
#include <set>
#include <utility>

#include "tests/sim/memberships_witness.h"

namespace baton::sim {

bool MembershipsWitness::Needs(const worker::PeerWorker& peer) const {
  const worker::PeerWorker& self = options_.self;
  if (self.role == Role::kDecode) {
    const bool of_one = self.pp_size > 1 && peer.decode_id == self.decode_id;
    return peer.role == Role::kPrefill || of_one;
  }
  return peer.role == Role::kDecode || peer.chain_id == self.chain_id;
}

bool MembershipsWitness::Lists(const InstanceRef& peer) const {
  return std::any_of(routers_.begin(), routers_.end(),
                     [&peer](const auto& entry) { return entry.second.listed.contains(peer); });
}

void MembershipsWitness::Hear(const worker::StopAsked& /*event*/) { stop_asked_ = true; }

void MembershipsWitness::OpeningAnswered() {
  if (--opening_ == 0) died_early_.clear();
}

void MembershipsWitness::NotOpened(const InstanceRef& instance) {
  OpeningAnswered();
  const auto peer = peers_.find(instance);
  if (peer == peers_.end()) return;
  peer->second.tried = true;
  peer->second.too_early = false;
  peer->second.retry_us = world_.now_us() + options_.times.heartbeat_us;
}

// Whom a router has given up its peers have given up too, unless another one has held it.
void MembershipsWitness::LetGoOfPeers(const Router& router, uint64_t incarnation) {
  if (router.incarnation != incarnation || !router.gave_up) return;
  for (const auto& [id, other] : routers_) {
    if (&other == &router || !other.answers()) continue;
    const bool all_the_while = other.joined_us <= router.took_us;
    const bool since_then = other.joined_us <= let_go_us_;
    if (all_the_while || since_then) return;
  }
  let_go_us_ = world_.now_us();
  bool lost = false;
  for (auto& [instance, peer] : peers_) {
    peer.tried = false;
    if (peer.endpoint != 0) {
      Expect(worker::CloseEndpoint{peer.endpoint});
      peer.endpoint = 0;
      lost = true;
    }
    if (peer.retry_us == kNeverUs) {
      peer.too_early = true;
    } else {
      peer.retry_us = 0;
    }
  }
  if (lost) Expect(worker::EndpointsChanged{.lost = true});
}

void MembershipsWitness::Hear(const worker::PeersConnected& event) {
  bool changed = false;
  for (const auto& [instance, endpoint] : event.standing) {
    if (died_early_.contains(endpoint)) {
      NotOpened(instance);
      Expect(worker::CloseEndpoint{endpoint});
      continue;
    }
    OpeningAnswered();
    const auto peer = peers_.find(instance);
    if (peer == peers_.end() || peer->second.endpoint != 0) {  // It is no longer wanted.
      Expect(worker::CloseEndpoint{endpoint});
      continue;
    }
    peer->second.retry_us = 0;  // Nothing is being opened any more.
    if (std::exchange(peer->second.too_early, false)) {
      Expect(worker::CloseEndpoint{endpoint});
      continue;
    }
    peer->second.endpoint = endpoint;
    peer->second.tried = peer->second.told = true;
    NewsOf(instance);
    changed = true;
  }
  for (const InstanceRef& instance : event.failed) NotOpened(instance);
  if (changed) Expect(worker::EndpointsChanged{});
}

void MembershipsWitness::Hear(const worker::PeerFailed& event) {
  const auto peer = std::find_if(peers_.begin(), peers_.end(), [&event](const auto& entry) {
    return entry.second.endpoint == event.endpoint;
  });
  if (peer == peers_.end()) {
    if (opening_ > 0) died_early_.insert(event.endpoint);
    return;
  }
  peer->second.endpoint = 0;
  peer->second.retry_us = world_.now_us() + options_.times.heartbeat_us;
  Expect(worker::EndpointsChanged{.lost = true});
  NewsOf(peer->first);
}

// Routers pair over it, or do no longer, if they have been told of the view that lists it.
void MembershipsWitness::NewsOf(const InstanceRef& peer) {
  for (auto& [id, router] : routers_) {
    if (router.listed.contains(peer) && router.applied == router.version) News(router);
  }
}

void MembershipsWitness::UpdatePeers() {
  std::set<InstanceRef> here;
  const auto add = [&](const InstanceRef& instance, const worker::PeerWorker& worker) {
    here.insert(instance);
    const auto [peer, is_new] = peers_.try_emplace(instance);
    if (!is_new) return;
    peer->second.worker = worker;
    peer->second.worker.joined_version = 0;
    peer->second.order = ++arrivals_;
    peer->second.told = !Needs(worker);
  };
  for (const auto& [id, router] : routers_) {
    for (const auto& [instance, worker] : router.listed) add(instance, worker);
    for (const auto& [instance, worker] : router.kept) add(instance, worker);
  }
  bool lost = false;
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    const auto next = std::next(peer);
    if (!here.contains(peer->first)) {
      if (peer->second.endpoint != 0) {
        Expect(worker::CloseEndpoint{peer->second.endpoint});
        lost = true;
      }
      peers_.erase(peer);
    } else if (!std::exchange(peer->second.was_listed, Lists(peer->first)) &&
               peer->second.retry_us != kNeverUs) {
      peer->second.retry_us = 0;  // Listed again: what failed before is another matter.
    }
    peer = next;
  }
  if (lost) Expect(worker::EndpointsChanged{.lost = true});
}

// Unless another router has listed the peer since before it was given up.
void MembershipsWitness::RenewRejoined() {
  for (const Rejoined& rejoined : rejoined_) {
    const bool held = std::any_of(routers_.begin(), routers_.end(), [&](const auto& entry) {
      const Router& other = entry.second;
      return &other != rejoined.router && other.answers() && other.listed.contains(rejoined.peer) &&
             other.since_us.at(rejoined.peer) <= rejoined.held_us;
    });
    Peer& peer = peers_.at(rejoined.peer);
    if (!held && peer.retry_us == kNeverUs) {  // What is being opened has most likely gone as well.
      peer.too_early = true;
      peer.tried = false;
    }
    if (held || peer.endpoint == 0) continue;
    Expect(worker::CloseEndpoint{peer.endpoint});
    Expect(worker::EndpointsChanged{.lost = true});
    peer.endpoint = 0;
    peer.tried = false;
    NewsOf(rejoined.peer);
  }
}

// A stopped worker connects to no peer any more, and says so of each.
void MembershipsWitness::Connect() {
  worker::ConnectPeers connect;
  for (auto& [instance, peer] : peers_) {
    if (!Lists(instance) || !Needs(peer.worker) || peer.endpoint != 0) continue;
    if (world_.now_us() < peer.retry_us) continue;
    peer.retry_us = kNeverUs;
    ++opening_;
    connect.peers.push_back(peer.worker);
  }
  if (stop_asked_) {
    for (const worker::PeerWorker& peer : connect.peers) NotOpened(peer.instance);
    return;
  }
  if (!connect.peers.empty()) Expect(std::move(connect));
}

std::vector<worker::PeerWorker> MembershipsWitness::Known() const {
  std::vector<const Peer*> latest;
  for (const auto& [instance, peer] : peers_) {
    if (peer.told) latest.push_back(&peer);
  }
  std::sort(latest.begin(), latest.end(),
            [](const Peer* a, const Peer* b) { return a->order > b->order; });
  // Whom no router lists is only kept, and comes behind.
  std::stable_partition(latest.begin(), latest.end(),
                        [this](const Peer* peer) { return Lists(peer->worker.instance); });
  std::set<std::string> names;
  std::vector<worker::PeerWorker> known;
  for (const Peer* peer : latest) {
    if (names.insert(peer->worker.instance.id).second) known.push_back(peer->worker);
  }
  return known;
}

void MembershipsWitness::TellPeers() {
  std::vector<worker::PeerWorker> known = Known();
  if (known == told_) return;
  told_ = std::move(known);
  Expect(worker::TellPeers{told_});
}

// A view is applied when each endpoint it asks for has been tried; the router is told.
void MembershipsWitness::ApplyViews() {
  for (auto& [id, router] : routers_) {
    if (router.state != State::kMember || router.version == router.applied) continue;
    const bool tried = std::all_of(
        router.listed.begin(), router.listed.end(),
        [&](const auto& entry) { return !Needs(entry.second) || peers_.at(entry.first).tried; });
    if (!tried) continue;
    router.applied = router.version;
    if (router.asked) {
      router.news = true;
    } else if (router.answers()) {
      router.due_us = world_.now_us();
    }
  }
}

}  // namespace baton::sim
