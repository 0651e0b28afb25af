// What one run is made of, drawn up front from its seed: the cluster, its weather, every fault and
// every client. Each item stands for itself, so that a failing run can be made smaller by leaving
// items out (shrink.h). What the run itself draws (delays, losses) comes from `chance_seed`.
#ifndef TESTS_SIM_SCENARIO_H_
#define TESTS_SIM_SCENARIO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "tests/sim/clients.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

inline constexpr int64_t kSecond = 1'000'000;
inline constexpr int64_t kFaultsBeginUs = 2 * kSecond;
inline constexpr int64_t kFaultsEndUs = 12 * kSecond;

// A storm draws its own subset of the fault kinds ("swarm testing", Groce et al., ISSTA 2012: runs
// that leave features out reach states that runs with all of them hardly ever do). Everything else
// is calm: one thing happens at most, and every request has to be answered in full.
enum class Weather {
  kCalm,          // Nothing goes wrong.
  kSlowNetwork,   // Tensor connections are slow: a full window takes longer than a lease.
  kLateMessages,  // Messages take up to 200 ms now and then.
  kOverload,      // More requests than there is room for: some are refused for that.
  kDrains,        // Processes are told to stop, and start anew.
  kLateRouters,   // A router stands still, or is always late.
  kRouters,       // Routers die, start late or leave DNS, all but the first.
  kStorm,
};
inline constexpr int kWeatherCount = 8;
const char* WeatherName(Weather weather);

enum class FaultKind {
  kKill,         // The process dies, and starts anew later.
  kPause,        // It stands still for `lasts_us`.
  kLate,         // Its loop has more to do than it can: for `lasts_us` it is `extra_us` late.
  kDrain,        // It is told to stop, with `lasts_us` to finish; a router settles for `extra_us`.
  kAskToDrain,   // The same, asked for at router 0.
  kLateStart,    // It does not run before `at_us`.
  kUnlisted,     // DNS does not list the router for `lasts_us`.
  kAlias,        // DNS lists a second address of the router for `lasts_us`.
  kDnsFails,     // DNS does not answer for `lasts_us`.
  kDnsSlow,      // DNS takes up to `extra_us` for an answer.
  kStrangers,    // DNS lists more addresses without a process than are followed.
  kPartition,    // `node` and `other` do not hear each other for `lasts_us`.
  kOneWay,       // `other` does not hear `node`.
  kClockStep,    // The wall clock of `node` is set by `extra_us`.
  kMailboxFull,  // `node` takes nothing that others send at will for `lasts_us`.
};
inline constexpr int kFaultKindCount = 15;
const char* FaultName(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kKill;
  int64_t at_us = 0;
  int64_t lasts_us = 0;
  int64_t extra_us = 0;
  int node = -1;  // -1: none.
  int other = -1;
};

// A chance of the network by its name.
struct NetworkFaultKind {
  const char* name;
  double NetworkFaults::*chance;
  double share;  // Share of the storms that have it.
  double most;
  bool of_groups = false;        // Only where stages or decode services are several ranks.
  bool of_decode_ranks = false;  // Only where decode services are.
};
const std::vector<NetworkFaultKind>& NetworkFaultKinds();

struct Scenario {
  uint64_t seed = 0;
  uint64_t chance_seed = 0;
  Weather weather = Weather::kCalm;
  Topology topology;
  NetworkFaults network;
  std::vector<Fault> faults;
  std::vector<Client> clients;

  std::string Summary() const;      // In a line.
  std::string Description() const;  // The same, and a line for each fault and client.
};

// What a share of the weathers, a load and a number of faults are is decided here alone.
Scenario DrawScenario(uint64_t seed);
void DrawFaults(Random& random, Scenario& scenario);  // After the clients.
void DrawClients(Random& random, Scenario& scenario);

}  // namespace baton::sim

#endif  // TESTS_SIM_SCENARIO_H_
