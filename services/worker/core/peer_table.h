// The peers that the views of all routers list together, and the endpoints to those that this
// worker needs. Plain data of Memberships, which decides.
//
// An endpoint has a number of the transport's, which is never used again. It may die before the
// answer that tells its number, since the transport has threads of its own: then it never stood.
// One that is not wanted any more when it is told, or of a peer that has another, is not kept.
//
// A peer is one incarnation. It is here while any router lists it, so that one router's loss, or
// its ignorance after a start, takes nothing from the others. Two incarnations of one name are both
// here while routers disagree (each router's pairs name exactly one), but only the newest that has
// been connected to is told to the worker: chains are wired with one of a name.
#ifndef SERVICES_WORKER_CORE_PEER_TABLE_H_
#define SERVICES_WORKER_CORE_PEER_TABLE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "services/worker/core/peer_worker.h"
#include "services/worker/core/router_membership.h"

namespace baton::worker {

struct PeerEndpoint {
  uint64_t endpoint = 0;  // Never 0.
  Role role = Role::kPrefill;
  uint32_t protocol_version = 0;
};

class PeerTable {
 public:
  // `self` says which peers need endpoints: decode services connect to every prefill stage, stages
  // to every decode service and to the other stages of their chain or decode service; each of their
  // ranks does. Ranks of one stage alone exchange no tensors by this way, nor do a colocated chain
  // and a decode service.
  explicit PeerTable(PeerWorker self) : self_(std::move(self)) {}

  // Makes the table hold exactly what `views` list or keep; returns the endpoints that are to be
  // closed.
  std::vector<uint64_t> Update(const std::vector<const RouterMembership*>& views);

  // Peers may have let go of theirs: every endpoint is opened again, also those that are being
  // opened. Returns the ones to be closed.
  std::vector<uint64_t> Renew();
  // This one peer has: the endpoint that stands, or is being opened, is opened again. Returns the
  // one to be closed.
  std::optional<uint64_t> Renew(const InstanceRef& peer);

  // Those that are listed and need an endpoint now. Each is answered by Opened or NotOpened, and
  // not due before.
  std::vector<PeerWorker> BeginConnecting(int64_t now_us);
  int64_t NextConnectUs() const;
  // False if the endpoint is not kept, as above; if it has died it counts as not opened.
  [[nodiscard]] bool Opened(const InstanceRef& instance, uint64_t endpoint, int64_t retry_at_us);
  // Not to be tried again before `retry_at_us`.
  void NotOpened(const InstanceRef& instance, int64_t retry_at_us);
  // Whose endpoint that was; nullopt: no peer's, or one that is being opened.
  std::optional<InstanceRef> Died(uint64_t endpoint, int64_t retry_at_us);

  // Each endpoint that this view asks for has been tried: it stands, or it is among Unconnected.
  bool Tried(const RouterMembership::Listed& view) const;
  // The incarnations of those in this view that need an endpoint and have none, in order.
  std::vector<uint64_t> Unconnected(const RouterMembership::Listed& view) const;
  bool Stands(const InstanceRef& instance) const { return endpoints_.contains(instance); }
  const std::map<InstanceRef, PeerEndpoint>& endpoints() const { return endpoints_; }

  // One incarnation of each name: those that a router lists before those that are only kept, the
  // peers that came last first. So who looks for a place finds its holder, and not one that a
  // router which was late has told of and takes for dead since (seed 9,354,187 of the simulation).
  std::vector<PeerWorker> Known() const;
  bool Holds(const InstanceRef& instance) const { return peers_.contains(instance); }

 private:
  struct Peer {
    PeerWorker worker;
    uint64_t order = 0;        // Order of arrival.
    bool listed = false;       // By a router, not only kept.
    bool tried = false;        // To open its endpoint, since it was listed first.
    bool may_be_told = false;  // It stood once, or needs none.
    bool opening = false;      // An answer is due.
    bool superseded = false;   // That opening began before Renew.
  };
  bool NeedsEndpoint(const PeerWorker& peer) const;
  void NoteMissing(const InstanceRef& instance, const Peer& peer);
  void Answered();

  const PeerWorker self_;
  std::map<InstanceRef, Peer> peers_;
  std::map<InstanceRef, PeerEndpoint> endpoints_;  // That stand; their peers are in `peers_`.
  std::map<InstanceRef, int64_t> missing_;         // When to try again; kNeverUs: being opened.
  int opening_ = 0;                                // Answers that are due.
  std::set<uint64_t> died_early_;                  // While they are, by number.
  uint64_t arrivals_ = 0;
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_CORE_PEER_TABLE_H_
