// The peers that the views of all routers list together, and the endpoints to those that this
// worker needs. Plain data of Memberships, which decides.
//
// A peer is one incarnation. It is here while any router lists it, so that one router's loss, or
// its ignorance after a start, takes nothing from the others. Two incarnations of one name are both
// here while routers disagree (each router's pairs name exactly one), but only the newest that has
// been connected to is told to the worker: chains are wired with one of a name.
#ifndef SERVICES_WORKER_CORE_PEER_TABLE_H_
#define SERVICES_WORKER_CORE_PEER_TABLE_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "services/worker/core/peer_worker.h"
#include "services/worker/core/router_membership.h"

namespace baton::worker {

class PeerTable {
 public:
  // `self` says which peers need endpoints: decode services connect to every prefill stage, stages
  // to every decode service and to the other stages of their chain.
  explicit PeerTable(PeerWorker self) : self_(std::move(self)) {}

  // Makes the table hold exactly what `views` list or keep; returns those whose endpoints are to be
  // closed.
  std::vector<InstanceRef> Update(const std::vector<const RouterMembership*>& views);

  // Those that are listed and need an endpoint now; each is not due again for `retry_us`.
  std::vector<PeerWorker> BeginConnecting(int64_t now_us, int64_t retry_us);
  int64_t NextConnectUs() const;
  void Connected(const InstanceRef& instance);
  // Not to be tried again before `retry_at_us`.
  void Disconnected(const InstanceRef& instance, int64_t retry_at_us);

  // Each endpoint that this view asks for has been tried: it stands, or it is among Unconnected.
  bool Tried(const RouterMembership::Listed& view) const;
  // The incarnations of those in this view that need an endpoint and have none, in order.
  std::vector<uint64_t> Unconnected(const RouterMembership::Listed& view) const;
  bool Stands(const InstanceRef& instance) const;

  // One incarnation of each name, the peers that came last first.
  std::vector<PeerWorker> Known() const;
  bool Holds(const InstanceRef& instance) const { return peers_.contains(instance); }

 private:
  struct Peer {
    PeerWorker worker;
    uint64_t order = 0;        // Of its coming.
    bool listed = false;       // By a router, not only kept.
    bool stands = false;       // The endpoint.
    bool tried = false;        // To open it, since it was listed first.
    bool may_be_told = false;  // It stood once, or needs none.
  };
  bool NeedsEndpoint(const PeerWorker& peer) const;
  void NoteMissing(const InstanceRef& instance, const Peer& peer);

  const PeerWorker self_;
  std::map<InstanceRef, Peer> peers_;
  std::map<InstanceRef, int64_t> missing_;  // Endpoints, and when to try again.
  uint64_t arrivals_ = 0;
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_CORE_PEER_TABLE_H_
