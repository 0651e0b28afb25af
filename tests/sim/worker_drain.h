// The drain of a simulated worker: the real Drain (services/worker/core), its facts from the
// process's cores and its membership, and the clean end of the process. Plays
// services/baton/worker_drain.
#ifndef TESTS_SIM_WORKER_DRAIN_H_
#define TESTS_SIM_WORKER_DRAIN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "services/worker/core/drain.h"
#include "tests/sim/topology.h"
#include "tests/sim/worker_membership.h"
#include "tests/sim/world.h"

namespace baton::sim {

class WorkerDrain {
 public:
  // The process's hooks: refuse what is new and end at `deadline_us` what is left; whether it holds
  // nothing.
  struct Hooks {
    std::function<void(int64_t deadline_us)> begin;
    std::function<bool(std::string& why_not)> at_rest;
  };
  WorkerDrain(World& world, const Topology& topology, int node, WorkerMembership& membership,
              Hooks hooks);

  void Begin(int64_t drain_us);
  bool draining() const { return drain_.has_value(); }

 private:
  void Look();  // Whether it may leave, now and then.
  void Leave(worker::DrainPhase before);

  World& world_;
  const Topology& topology_;
  const int node_;
  WorkerMembership& membership_;
  const Hooks hooks_;
  std::optional<worker::Drain> drain_;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_WORKER_DRAIN_H_
