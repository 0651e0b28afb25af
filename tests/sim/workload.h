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

// Leases, rewiring and views have settled by then: the bound on being ready after the last fault.
inline constexpr int64_t kProbesUs = kFaultsEndUs + 10 * kSecond;

class Workload {
 public:
  Workload(World& world, Clients& clients, const Topology& topology)
      : world_(world), clients_(clients), topology_(topology) {}

  void Begin(const Scenario& scenario);

 private:
  void Submit(Client client);
  void Leave(uint64_t id);
  void Abort(uint64_t id);
  void Probe();

  World& world_;
  Clients& clients_;
  const Topology& topology_;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_WORKLOAD_H_
