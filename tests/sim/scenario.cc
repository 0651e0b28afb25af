#include "tests/sim/scenario.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace baton::sim {
namespace {

// Weathers and how many of a hundred seeds have them.
struct WeatherShare {
  Weather weather;
  const char* name;
  int percent;
};
constexpr std::array<WeatherShare, kWeatherCount> kWeathers = {{
    {Weather::kCalm, "calm", 5},
    {Weather::kSlowNetwork, "slow-network", 9},
    {Weather::kLateMessages, "late-messages", 5},
    {Weather::kOverload, "overload", 6},
    {Weather::kDrains, "drains", 10},
    {Weather::kLateRouters, "late-routers", 5},
    {Weather::kRouters, "routers", 5},
    {Weather::kStorm, "storm", 55},
}};

constexpr std::array<const char*, kFaultKindCount> kFaultNames = {
    "kill",       "pause",     "late",    "drain",      "ask-to-drain",
    "late-start", "unlisted",  "alias",   "dns-fails",  "dns-slow",
    "strangers",  "partition", "one-way", "clock-step", "mailbox-full"};

Weather DrawWeather(Random& random) {
  int64_t left = random.Between(0, 99);
  for (const WeatherShare& share : kWeathers) {
    left -= share.percent;
    if (left < 0) return share.weather;
  }
  return Weather::kStorm;
}

// Each part has numbers of its own: another draw in one leaves the others as they are.
Random PartOf(uint64_t seed, uint64_t part) { return Random(Mix64(seed) ^ Mix64(part)); }

// A network that is slow and nothing else: a full window takes longer than a writer's lease. In a
// storm it is fast enough for requests to end in time.
int64_t DrawBandwidth(Random& random, const Topology& topology, int64_t shortest_ms,
                      int64_t longest_ms) {
  const auto window = static_cast<int64_t>(topology.UnderWayBytes());
  return std::max<int64_t>(1, window / random.Between(shortest_ms, longest_ms));
}

void DrawNetwork(Random& random, Scenario& scenario) {
  NetworkFaults& network = scenario.network;
  Topology& topology = scenario.topology;
  const int64_t lease_ms = topology.times.writer_lease_us / 1000;
  network.delay_us_max = random.Chance(0.3) ? 5000 : 500;
  switch (scenario.weather) {
    case Weather::kCalm:
    case Weather::kOverload:
    case Weather::kLateRouters:
    case Weather::kRouters:
      break;
    case Weather::kSlowNetwork:
      // Half of them so slow that heartbeats wait longer than a writer's lease behind data.
      network.bytes_per_ms = random.Chance(0.5)
                                 ? DrawBandwidth(random, topology, lease_ms, lease_ms * 4 / 3)
                                 : DrawBandwidth(random, topology, 50, lease_ms);
      break;
    case Weather::kLateMessages:
      network.spike = random.Uniform() * 0.05;
      network.data_slow = random.Chance(0.5) ? random.Uniform() * 0.05 : 0;
      network.connect_slow = random.Chance(0.5) ? random.Uniform() * 0.5 : 0;
      break;
    case Weather::kDrains:
      network.spike = random.Chance(0.4) ? random.Uniform() * 0.05 : 0;
      break;
    case Weather::kStorm:
      for (const NetworkFaultKind& kind : NetworkFaultKinds()) {
        if (kind.of_groups && !topology.has_groups()) continue;
        if (kind.of_decode_ranks && topology.decode_ranks == 1) continue;
        if (random.Chance(kind.share)) network.*kind.chance = random.Uniform() * kind.most;
      }
      if (random.Chance(0.15)) {
        network.bytes_per_ms = DrawBandwidth(random, topology, 1, kSlowestStormWindowUs / 1000);
      }
      break;
  }
  if (network.bytes_per_ms == 0) return;
  topology.times.window_us =
      static_cast<int64_t>(topology.UnderWayBytes()) * 1000 / network.bytes_per_ms;
}

// What the other parts may rely on in this weather.
void SetPromises(Random& random, Scenario& scenario) {
  Topology& topology = scenario.topology;
  const NetworkFaults& network = scenario.network;
  const auto has = [&](FaultKind kind) {
    return std::any_of(scenario.faults.begin(), scenario.faults.end(),
                       [kind](const Fault& fault) { return fault.kind == kind; });
  };
  topology.calm = scenario.weather != Weather::kStorm;
  topology.only_drains = scenario.weather == Weather::kDrains;
  topology.only_routers_pause = scenario.weather == Weather::kLateRouters;
  topology.first_router_stands = scenario.weather == Weather::kRouters;
  // What a drain hands back is no attempt, which shows where there is but one.
  if (topology.only_drains) topology.max_attempts = random.Chance(0.5) ? 1 : 2;
  const bool reachable = !has(FaultKind::kPause) && !has(FaultKind::kLate) &&
                         !has(FaultKind::kPartition) && !has(FaultKind::kOneWay) &&
                         !has(FaultKind::kMailboxFull);
  topology.undisturbed = reachable && network.spike == 0 && network.control_drop == 0 &&
                         network.connect_fail == 0 && network.connect_slow == 0 &&
                         network.break_late == 0 && network.call_late == 0;
}

}  // namespace

const char* WeatherName(Weather weather) { return kWeathers[static_cast<size_t>(weather)].name; }

const char* FaultName(FaultKind kind) { return kFaultNames[static_cast<size_t>(kind)]; }

const std::vector<NetworkFaultKind>& NetworkFaultKinds() {
  static const auto& kinds = *new std::vector<NetworkFaultKind>{
      {"spike", &NetworkFaults::spike, 0.35, 0.1},
      {"control-drop", &NetworkFaults::control_drop, 0.25, 0.01},
      {"compute-fail", &NetworkFaults::compute_fail, 0.25, 0.03},
      {"loop-late", &NetworkFaults::loop_late, 0.6, 1},
      {"call-late", &NetworkFaults::call_late, 0.2, 0.3},
      {"plan-repeat", &NetworkFaults::plan_repeat, 0.1, 0.1},
      {"nonsense", &NetworkFaults::nonsense, 0.2, 0.02},
      {"data-fail", &NetworkFaults::data_fail, 0.25, 0.02},
      {"data-lost", &NetworkFaults::data_lost, 0.15, 0.01},
      {"data-slow", &NetworkFaults::data_slow, 0.3, 0.05},
      {"data-corrupt", &NetworkFaults::data_corrupt, 0.15, 0.01},
      {"connect-fail", &NetworkFaults::connect_fail, 0.2, 0.3},
      {"connect-slow", &NetworkFaults::connect_slow, 0.2, 0.5},
      {"break-late", &NetworkFaults::break_late, 0.2, 0.5},
      {"endpoint-dies", &NetworkFaults::endpoint_dies, 0.2, 0.5},
      {"endpoint-silent", &NetworkFaults::endpoint_silent, 0.3, 0.4},
      {"group-slow", &NetworkFaults::group_slow, 0.4, 0.5, true},
      {"group-fails", &NetworkFaults::group_fails, 0.3, 0.3, true},
      {"group-hangs", &NetworkFaults::group_hangs, 0.3, 0.2, true},
      {"step-late", &NetworkFaults::step_late, 0.3, 0.05, true},
      {"step-hangs", &NetworkFaults::step_hangs, 0.4, 0.05, true},
      {"step-ends-late", &NetworkFaults::step_ends_late, 0.5, 0.2, true, true},
      {"order-garbled", &NetworkFaults::order_garbled, 0.5, 0.05, true, true},
  };
  return kinds;
}

Scenario DrawScenario(uint64_t seed) {
  Scenario scenario;
  scenario.seed = seed;
  scenario.chance_seed = Mix64(seed ^ Mix64(5));
  Random shape = PartOf(seed, 1);
  scenario.weather = DrawWeather(shape);
  scenario.topology = DrawTopology(shape);
  Random timings = PartOf(seed, 6);
  scenario.topology.times = DrawTimings(timings);
  Random ranks = PartOf(seed, 7);
  DrawRanks(ranks, scenario.topology);
  Random costs = PartOf(seed, 8);
  if (costs.Chance(0.3)) scenario.topology.known_costs = costs.Chance(0.7) ? 1 : 2.5;
  scenario.topology.tenants = 1 + static_cast<int>(PartOf(seed, 11).Below(3));
  Random decode_ranks = PartOf(seed, 9);
  DrawDecodeRanks(decode_ranks, scenario.topology);
  Random decode_stages = PartOf(seed, 12);
  DrawDecodeStages(decode_stages, scenario.topology);
  Random colocated = PartOf(seed, 13);
  DrawColocated(colocated, scenario.topology);
  Random names = PartOf(seed, 10);
  scenario.topology.announced = names.Chance(0.25);
  if (scenario.topology.has_groups()) scenario.topology.times.AddGroups();
  // So many strangers that they displace members at first are not allowed in a calm run.
  if (scenario.topology.decode_members() > 1 && scenario.weather != Weather::kStorm) {
    scenario.topology.decodes -= scenario.topology.stranger ? 1 : 0;
    scenario.topology.stranger = false;
  }
  if (scenario.weather == Weather::kOverload) {
    scenario.topology.max_requests = static_cast<int>(shape.Between(8, 64));
    scenario.topology.max_queued = static_cast<int>(shape.Between(2, 16));
  }
  if (scenario.weather == Weather::kRouters) {
    scenario.topology.routers = std::max(scenario.topology.routers, 2);
  }
  // So few that the oldest are forgotten.
  if (scenario.weather == Weather::kStorm && decode_ranks.Chance(0.3)) {
    scenario.topology.remembered = static_cast<size_t>(decode_ranks.Between(0, 2));
  }
  Random network = PartOf(seed, 2);
  DrawNetwork(network, scenario);
  Random clients = PartOf(seed, 3);
  DrawClients(clients, scenario);
  Random faults = PartOf(seed, 4);
  DrawFaults(faults, scenario);
  if (scenario.weather == Weather::kStorm && names.Chance(0.1)) {
    scenario.faults.push_back({.kind = FaultKind::kStrangers,
                               .at_us = names.Between(0, kFaultsEndUs / 2),
                               .lasts_us = names.Between(1, kFaultsEndUs / 2)});
  }
  SetPromises(faults, scenario);
  return scenario;
}

std::string Scenario::Summary() const {
  std::string text = absl::StrCat(
      WeatherName(weather), ": routers=", topology.routers, " P=", topology.stages,
      topology.ranks > 1 ? absl::StrCat(" T=", topology.ranks, " heads=", topology.kv_heads,
                                        topology.slices ? "" : " whole")
                         : "",
      topology.decode_stages > 1 ? absl::StrCat(" decode-stages=", topology.decode_stages) : "",
      topology.decode_ranks > 1
          ? absl::StrCat(" decode-ranks=", topology.decode_ranks, " heads=", topology.kv_heads)
          : "",
      " chains=", topology.chains, " decodes=", topology.decodes,
      topology.colocated > 0 ? "+colocated" : "", topology.announced ? "+announced" : "",
      topology.stranger ? "+stranger" : "", topology.lonely ? "+lonely" : "",
      topology.shares_plans ? "" : "+fcfs", topology.new_names ? "+names" : "",
      " layers=", topology.layers, " page=", topology.page_size, " chunk=", topology.chunk_tokens,
      " pages=", topology.prefill_pages, "/", topology.decode_pages,
      " running=", topology.max_running, " queued=", topology.max_queued,
      " attempts=", topology.max_attempts, " clients=", clients.size());
  for (const NetworkFaultKind& kind : NetworkFaultKinds()) {
    if (network.*kind.chance > 0) absl::StrAppend(&text, " ", kind.name, "=", network.*kind.chance);
  }
  if (network.bytes_per_ms > 0) absl::StrAppend(&text, " bytes/ms=", network.bytes_per_ms);
  std::array<int, kFaultKindCount> counts{};
  for (const Fault& fault : faults) ++counts[static_cast<size_t>(fault.kind)];
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) absl::StrAppend(&text, " ", kFaultNames[i], "=", counts[i]);
  }
  return text;
}

std::string Scenario::Description() const {
  const auto at = [](int64_t time_us) {
    return absl::StrFormat("%11.6f s  ", 1e-6 * static_cast<double>(time_us));
  };
  std::string text = absl::StrCat(Summary(), "\n", topology.times.Summary());
  for (const Fault& fault : faults) {
    absl::StrAppend(&text, "\n", at(fault.at_us), FaultName(fault.kind), " node ", fault.node);
    if (fault.other >= 0) absl::StrAppend(&text, " and node ", fault.other);
    if (fault.lasts_us > 0) absl::StrAppend(&text, " for ", fault.lasts_us, " us");
    if (fault.extra_us != 0) absl::StrAppend(&text, ", ", fault.extra_us, " us");
  }
  for (const Client& client : clients) {
    absl::StrAppend(&text, "\n", at(client.submit_us), client.request_id, " at router ",
                    client.router, ": ", client.prompt_tokens, " + ", client.max_tokens,
                    " tokens within ", client.deadline_us - client.submit_us, " us");
    if (client.leaves_us != kNeverUs) absl::StrAppend(&text, ", leaves", at(client.leaves_us));
    if (client.aborts_us != kNeverUs) absl::StrAppend(&text, ", aborts", at(client.aborts_us));
    if (client.stop_after > 0) absl::StrAppend(&text, ", stops after ", client.stop_after);
  }
  return text;
}

}  // namespace baton::sim
