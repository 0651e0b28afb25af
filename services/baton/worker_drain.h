// The end of a worker's process, from the word to stop until it may go: tells the routers, waits
// for what services/worker/core/drain.h decides, says in the log what it waits for, deregisters.
// It decides nothing and ends no process.
#ifndef SERVICES_BATON_WORKER_DRAIN_H_
#define SERVICES_BATON_WORKER_DRAIN_H_

#include <cstdint>
#include <functional>

#include "common/types/drain_counts.h"
#include "proto/baton/v1/cluster.pb.h"
#include "services/worker/cluster_client.h"

namespace baton {

// A service of either role. Its calls may wait for its loop, never for a peer.
struct DrainedService {
  std::function<void(int64_t deadline_us)> begin;  // On NowUs()'s clock.
  std::function<bool()> at_rest;
  std::function<DrainCounts()> counts;
  std::function<v1::WorkerLoad()> load;
};

// Returns when the worker has left, at most about three seconds after `drain_timeout_ms`. The
// status that `client` asks for must say already that the worker drains.
void DrainWorker(int64_t drain_timeout_ms, const DrainedService& service,
                 worker::ClusterClient& client);

}  // namespace baton

#endif  // SERVICES_BATON_WORKER_DRAIN_H_
