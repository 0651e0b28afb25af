// Carries a scenario's faults out on the world's nodes, and heals them all at kFaultsEndUs. It
// decides nothing: what happens and when is in the scenario.
#ifndef TESTS_SIM_FAULT_INJECTOR_H_
#define TESTS_SIM_FAULT_INJECTOR_H_

#include <cstdint>
#include <vector>

#include "tests/sim/clients.h"
#include "tests/sim/scenario.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

class FaultInjector {
 public:
  FaultInjector(World& world, Clients& clients, const Topology& topology)
      : world_(world), clients_(clients), topology_(topology) {}

  // Starts every node that runs from the beginning, and schedules the rest.
  void Begin(const Scenario& scenario);

  // The router stood still not long ago: what it owes may be late.
  bool Excuses(int router) const {
    return world_.now_us() <= excused_until_us_[static_cast<size_t>(router)];
  }

  // By how much a router's loop may be late at any time, and what it owes with it.
  int64_t late_us() const { return late_us_; }

 private:
  void Schedule(const Fault& fault);
  void Happens(const Fault& fault);
  void Kill(const Fault& fault);
  void Pause(const Fault& fault);
  void BeLate(int node, int64_t late_us, int64_t until_us);
  void Drain(const Fault& fault);
  void Exited(int node);  // By itself, drained.
  void StartLater(int node, int64_t after_us);
  void Heal();

  World& world_;
  Clients& clients_;
  const Topology& topology_;
  std::vector<int64_t> excused_until_us_;  // By router.
  int64_t late_us_ = 0;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_FAULT_INJECTOR_H_
