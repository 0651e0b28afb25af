// Brings a scenario's clients to their routers at their times, lets some of them leave or abort,
// and sends the probes that a healed cluster has to answer.
#ifndef TESTS_SIM_WORKLOAD_H_
#define TESTS_SIM_WORKLOAD_H_

#include <cstdint>

#include "tests/sim/clients.h"
#include "tests/sim/scenario.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

class Workload {
 public:
  Workload(World& world, Clients& clients, const Topology& topology)
      : world_(world), clients_(clients), topology_(topology) {}

  void Begin(const Scenario& scenario);
  // When probes begin: what the last fault has broken serves again by then.
  int64_t ProbesUs() const { return kFaultsEndUs + topology_.times.RecoveryUs(); }

 private:
  void Submit(Client client);
  void Leave(uint64_t id);
  void Abort(uint64_t id);
  void Probe();
  void SendProbe(int router, int64_t at_us);
  void ProbeAgain();
  std::string FindIdle() const;  // That has answered no probe yet; empty: none.

  World& world_;
  Clients& clients_;
  const Topology& topology_;
  int probes_ = 0;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_WORKLOAD_H_
