// This worker's endpoints, one to each life of a peer that it exchanges tensors with: the members
// of its own chain or decode service, and the workers that a ticket or a grant names. An endpoint
// is opened when it is wanted first, at an address that a router vouches for, and kept until the
// transport finds it dead. A peer's absence from a list closes none: a router that starts anew, or
// is wrong about a worker, takes nothing away. Plain data of Memberships, which decides.
//
// WANTED -(a router says where it is)-> STANDING
// WANTED -(no router knows it, or it can't be opened)-> FAILED -(after a moment)-> gone
// STANDING -(found dead)-> WANTED again, if it had stood for longer than a moment: it may be the
// connection alone that has died; else FAILED. Nothing is tried before the moment is over: who
// connects to a process that dies just then may end with it (common/transport/README.md).
#ifndef SERVICES_WORKER_CORE_ENDPOINTS_H_
#define SERVICES_WORKER_CORE_ENDPOINTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/types/instance.h"
#include "services/worker/core/peer_worker.h"

namespace baton::worker {

struct PeerEndpoint {
  uint64_t endpoint = 0;  // The transport's number: never 0, never used again.
  Role role = Role::kPrefill;
};

class Endpoints {
 public:
  // Twice the most workers of a cluster: those that have just left may still be counted.
  static constexpr size_t kMost = 8192;

  enum class Want { kNew, kUnderWay, kStands, kRefused };
  // kNew: it is to be looked up. kRefused: it has failed a moment ago, or there are too many.
  Want Begin(const InstanceRef& peer);

  // The router that was asked last for a peer that is wanted; 0: none yet, or it is being opened.
  uint64_t AskedOf(const InstanceRef& peer) const;
  void Asked(const InstanceRef& peer, uint64_t router);
  // Those that wait for this router's answer.
  std::vector<InstanceRef> WaitingFor(uint64_t router) const;

  void Opened(const PeerWorker& peer, uint64_t endpoint, int64_t now_us);
  // Not to be tried again before `retry_at_us`.
  void Failed(const InstanceRef& peer, int64_t retry_at_us);
  // Whose endpoint that was; nullopt: no peer's. It is wanted again, or has failed for `moment_us`.
  std::optional<InstanceRef> Died(uint64_t endpoint, int64_t now_us, int64_t moment_us);
  // Those that are wanted again, once their moment is over: to be looked up.
  std::vector<InstanceRef> TakeDue(int64_t now_us);
  // Forgets failures whose time is over.
  void Expire(int64_t now_us);
  int64_t NextDeadlineUs() const;

  bool Wanted(const InstanceRef& peer) const;
  std::optional<PeerEndpoint> Find(const InstanceRef& peer) const;
  // All that stand.
  std::map<InstanceRef, PeerEndpoint> Standing() const;  // For tests; defined in testing/.

 private:
  struct Entry {
    enum class State { kWanted, kStanding, kFailed };
    State state = State::kWanted;
    uint64_t router = 0;      // Wanted: that is asked.
    PeerEndpoint endpoint;    // Standing.
    int64_t retry_at_us = 0;  // Failed; or wanted again, and > 0 before then.
    int64_t opened_us = 0;    // Standing.
  };

  std::map<InstanceRef, Entry> entries_;
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_CORE_ENDPOINTS_H_
