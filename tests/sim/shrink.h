// Makes a failing scenario smaller: leaves out clients, faults, chances of the network, workers and
// routers as long as it still breaks the same promise (delta debugging, Zeller and Hildebrandt,
// IEEE TSE 2002). What a smaller scenario's run draws is another story, so that each one is tried
// with several seeds of its chances.
#ifndef TESTS_SIM_SHRINK_H_
#define TESTS_SIM_SHRINK_H_

#include <functional>
#include <string>

#include "tests/sim/scenario.h"

namespace baton::sim {

struct Shrunken {
  Scenario scenario;  // Breaks the promise, with its chance_seed.
  int runs = 0;
};

// Runs a scenario and names the promise that it breaks; "" if it keeps every one.
using Judge = std::function<std::string(const Scenario&)>;

// `scenario` must break `violation`. The result is a function of the three.
Shrunken Shrink(Scenario scenario, const std::string& violation, const Judge& judge);

// The scenario in a smaller cluster: who is not there any more has no faults, and clients of a
// router that is not go to the first one.
Scenario WithShape(const Scenario& scenario, const Topology& smaller);

}  // namespace baton::sim

#endif  // TESTS_SIM_SHRINK_H_
