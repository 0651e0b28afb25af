// Registrations that no worker of ours makes: descriptions that contradict themselves, and workers
// that fit nobody. A router refuses each by its name, and nothing else changes.
#ifndef TESTS_SIM_INTRUDERS_H_
#define TESTS_SIM_INTRUDERS_H_

#include "services/router/core/router_core.h"
#include "tests/sim/world.h"

namespace baton::sim {

// Sends the router one of each kind, made of what `like` says of itself.
void TryIntruders(World& world, router::RouterCore& core, const router::WorkerInfo& like);

}  // namespace baton::sim

#endif  // TESTS_SIM_INTRUDERS_H_
