// Who the members of this worker's chain or decode service are, and the endpoints to them and to
// the workers that are wanted (memberships.h).
#include <algorithm>
#include <set>
#include <utility>

#include "common/base/coverage.h"
#include "services/worker/core/memberships.h"

namespace baton::worker {

// ---- Members ----

// Who is connected to while nothing runs yet, of the workers that a router lists. The ranks of a
// decode service of one stage exchange no tensors by this way, nor do a colocated chain and a
// decode service.
bool Memberships::ConnectsTo(const PeerWorker& peer) const {
  const PeerWorker& self = options_.self;
  if (self.role != peer.role) return !self.decodes && !peer.decodes;
  const bool staged = self.role == Role::kPrefill || self.pp_size > 1;
  return staged && !peer.group_id().empty() && peer.group_id() == self.group_id();
}

// Those that came last first, so that who looks for a place finds its holder, and not one that a
// router which was late still lists.
std::vector<PeerWorker> Memberships::Members() const {
  std::vector<const PeerWorker*> listed;
  for (const auto& [id, router] : routers_) {
    for (const PeerWorker& worker : router.listed()) {
      const bool member = worker.role == options_.self.role && !worker.group_id().empty() &&
                          worker.group_id() == options_.self.group_id();
      if (member) listed.push_back(&worker);
    }
  }
  std::stable_sort(listed.begin(), listed.end(), [this](const auto* a, const auto* b) {
    return arrivals_.at(a->instance) > arrivals_.at(b->instance);
  });
  std::set<std::string> names;
  std::vector<PeerWorker> members;
  for (const PeerWorker* worker : listed) {
    if (names.insert(worker->instance.id).second) members.push_back(*worker);
  }
  return members;
}

void Memberships::KeepMembers() {
  bool changed = false;
  for (auto& [id, router] : routers_) changed = router.TakeChange() || changed;
  if (changed) {
    std::map<InstanceRef, uint64_t> arrivals;
    for (const auto& [id, router] : routers_) {
      for (const PeerWorker& worker : router.listed()) {
        const auto known = arrivals_.find(worker.instance);
        const uint64_t arrival = known == arrivals_.end() ? ++last_arrival_ : known->second;
        arrivals.try_emplace(worker.instance, arrival);
      }
    }
    arrivals_ = std::move(arrivals);
  }
  std::vector<PeerWorker> members = Members();
  for (const auto& [id, router] : routers_) {
    // Those of a worker that will leave have most likely been told to stop too.
    if (stop_asked_) break;
    for (const PeerWorker& peer : router.listed()) {
      if (ConnectsTo(peer) && endpoints_.Begin(peer.instance) == Endpoints::Want::kNew) {
        Connect(peer);
      }
    }
  }
  if (!connecting_.empty()) return Emit(ConnectPeers{std::exchange(connecting_, {})});
  if (members == told_) return;
  told_ = std::move(members);
  Emit(TellPeers{told_});
}

// ---- Endpoints ----

void Memberships::On(const PeersWanted& event) {
  for (const InstanceRef& peer : event.peers) {
    switch (endpoints_.Begin(peer)) {
      case Endpoints::Want::kNew:
        LookUp(peer);
        break;
      case Endpoints::Want::kStands:
        Emit(PeerStands{peer, *endpoints_.Find(peer)});
        break;
      case Endpoints::Want::kRefused:
        Emit(PeerUnreachable{peer});
        break;
      case Endpoints::Want::kUnderWay:
        break;  // Answered with the first.
    }
  }
}

const PeerWorker* Memberships::Listed(const InstanceRef& peer) const {
  for (const auto& [id, router] : routers_) {
    const auto& listed = router.listed();
    const auto found = std::find_if(listed.begin(), listed.end(), [&peer](const PeerWorker& each) {
      return each.instance == peer;
    });
    if (found != listed.end()) return &*found;
  }
  return nullptr;
}

// Routers are asked one after the other, in the order in which they were found: who names a worker
// has it from one of them.
void Memberships::LookUp(const InstanceRef& peer) {
  if (const PeerWorker* listed = Listed(peer)) return Connect(*listed);
  for (auto router = routers_.upper_bound(endpoints_.AskedOf(peer)); router != routers_.end();
       ++router) {
    if (!router->second.answers()) continue;
    endpoints_.Asked(peer, router->first);
    return Emit(LookUpPeer{router->first, peer, options_.times.AnswerTimeoutUs()});
  }
  Covered<"worker: no router knows a peer">();
  GiveUp(peer);
}

void Memberships::On(const PeerLookedUp& event) {
  if (!endpoints_.Wanted(event.peer) || endpoints_.AskedOf(event.peer) != event.router) return;
  if (event.found.ok() && event.found->instance == event.peer) return Connect(*event.found);
  LookUp(event.peer);
}

void Memberships::Connect(const PeerWorker& peer) {
  endpoints_.Asked(peer.instance, 0);
  connecting_.push_back(peer);
}

void Memberships::GiveUp(const InstanceRef& peer) {
  endpoints_.Failed(peer, now_us_ + options_.times.heartbeat_us);
  Emit(PeerUnreachable{peer});
}

void Memberships::On(const PeersConnected& event) {
  for (const auto& [peer, endpoint] : event.standing) {
    endpoints_.Opened(peer, endpoint, now_us_);
    Emit(PeerStands{peer.instance, *endpoints_.Find(peer.instance)});
  }
  for (const PeerWorker& peer : event.failed) GiveUp(peer.instance);
}

void Memberships::On(const PeerFailed& event) {
  const auto peer = endpoints_.Died(event.endpoint, now_us_, options_.times.heartbeat_us);
  if (!peer.has_value()) return;
  Covered<"worker: an endpoint dies">();
  Emit(PeerLost{*peer});
}

}  // namespace baton::worker
