// A worker's members and its endpoints (memberships_witness.h).
#include <algorithm>
#include <set>
#include <utility>

#include "tests/sim/memberships_witness.h"

namespace baton::sim {

void MembershipsWitness::Hear(const worker::StopAsked& /*event*/) { stop_asked_ = true; }

MembershipsWitness::Wished MembershipsWitness::WishFor(const InstanceRef& peer) {
  const auto found = wishes_.find(peer);
  if (found == wishes_.end()) {
    wishes_[peer] = {};
    return Wished::kNew;
  }
  Wish& wish = found->second;
  if (wish.endpoint != 0) return Wished::kStands;
  if (wish.retry_us == 0) return Wished::kWanted;
  return Wished::kRefused;
}

void MembershipsWitness::Hear(const worker::PeersWanted& event) {
  for (const InstanceRef& peer : event.peers) {
    switch (WishFor(peer)) {
      case Wished::kNew:
        LookUp(peer, 0);
        break;
      case Wished::kStands:
        Expect(worker::PeerStands{peer, {.endpoint = wishes_.at(peer).endpoint}});
        break;
      case Wished::kRefused:
        Expect(worker::PeerUnreachable{peer});
        break;
      case Wished::kWanted:
        break;
    }
  }
}

// Whom a router lists needs no lookup; else the routers behind one are asked in turn.
void MembershipsWitness::LookUp(const InstanceRef& peer, uint64_t behind) {
  for (const auto& [id, router] : routers_) {
    for (const worker::PeerWorker& listed : router.listed) {
      if (listed.instance == peer) return Connect(listed);
    }
  }
  for (const auto& [id, router] : routers_) {
    if (id <= behind || !router.answers()) continue;
    wishes_.at(peer).asked = id;
    Expect(worker::LookUpPeer{
        id, peer, std::max(options_.times.answer_timeout_us, 2 * options_.times.heartbeat_us)});
    return;
  }
  GiveUp(peer);
}

void MembershipsWitness::Hear(const worker::PeerLookedUp& event) {
  const auto wish = wishes_.find(event.peer);
  if (wish == wishes_.end() || wish->second.asked != event.router) return;
  wish->second.asked = 0;
  if (event.found.ok() && event.found->instance == event.peer) return Connect(*event.found);
  LookUp(event.peer, event.router);
}

void MembershipsWitness::Connect(const worker::PeerWorker& peer) {
  wishes_.at(peer.instance).asked = 0;
  connecting_.push_back(peer);
}

void MembershipsWitness::GiveUp(const InstanceRef& peer) {
  wishes_[peer] = {.retry_us = world_.now_us() + options_.times.heartbeat_us};
  Expect(worker::PeerUnreachable{peer});
}

void MembershipsWitness::Hear(const worker::PeersConnected& event) {
  for (const auto& [peer, endpoint] : event.standing) {
    wishes_[peer.instance] = {.endpoint = endpoint, .opened_us = world_.now_us()};
    Expect(worker::PeerStands{peer.instance, {.endpoint = endpoint}});
  }
  for (const worker::PeerWorker& peer : event.failed) GiveUp(peer.instance);
}

void MembershipsWitness::Hear(const worker::PeerFailed& event) {
  for (auto& [peer, wish] : wishes_) {
    if (wish.endpoint != event.endpoint) continue;
    Expect(worker::PeerLost{peer});
    if (world_.now_us() - wish.opened_us >= options_.times.heartbeat_us) {
      wish = {.again_us = world_.now_us() + options_.times.heartbeat_us};
      return;
    }
    wish = {.retry_us = world_.now_us() + options_.times.heartbeat_us};
    return;
  }
}

bool MembershipsWitness::Needs(const worker::PeerWorker& peer) const {
  const worker::PeerWorker& self = options_.self;
  if (self.role != peer.role && (self.decodes || peer.decodes)) return false;
  if (self.role == Role::kDecode) {
    const bool of_one = self.pp_size > 1 && peer.decode_id == self.decode_id;
    return peer.role == Role::kPrefill || of_one;
  }
  return peer.role == Role::kDecode || peer.chain_id == self.chain_id;
}

std::vector<worker::PeerWorker> MembershipsWitness::Members() const {
  std::vector<worker::PeerWorker> members;
  std::set<InstanceRef> here;
  for (const auto& [id, router] : routers_) {
    for (const worker::PeerWorker& peer : router.listed) {
      const bool member = options_.self.role == Role::kDecode
                              ? !peer.decode_id.empty() && peer.decode_id == options_.self.decode_id
                              : peer.chain_id == options_.self.chain_id;
      if (member && here.insert(peer.instance).second) members.push_back(peer);
    }
  }
  std::sort(members.begin(), members.end(), [this](const auto& a, const auto& b) {
    return order_.at(a.instance) > order_.at(b.instance);
  });
  std::set<std::string> names;
  std::erase_if(members,
                [&names](const auto& peer) { return !names.insert(peer.instance.id).second; });
  return members;
}

void MembershipsWitness::KeepMembers() {
  if (relisted_) {
    std::map<InstanceRef, uint64_t> order;
    for (const auto& [id, router] : routers_) {
      for (const worker::PeerWorker& peer : router.listed) {
        if (order.contains(peer.instance)) continue;
        const auto known = order_.find(peer.instance);
        order[peer.instance] = known == order_.end() ? ++arrivals_ : known->second;
      }
    }
    order_ = std::move(order);
  }
  const std::vector<worker::PeerWorker> members = Members();
  for (const auto& [id, router] : routers_) {
    for (const worker::PeerWorker& peer : router.listed) {
      if (!stop_asked_ && Needs(peer) && WishFor(peer.instance) == Wished::kNew) Connect(peer);
    }
  }
  if (!connecting_.empty()) return Expect(worker::ConnectPeers{connecting_});
  if (members == told_) return;
  told_ = members;
  Expect(worker::TellPeers{told_});
}

}  // namespace baton::sim
