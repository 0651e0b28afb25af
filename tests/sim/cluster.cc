#include "tests/sim/cluster.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "tests/sim/clients.h"
#include "tests/sim/coverage.h"
#include "tests/sim/decode_process.h"
#include "tests/sim/fault_injector.h"
#include "tests/sim/follower_process.h"
#include "tests/sim/prefill_process.h"
#include "tests/sim/router_process.h"
#include "tests/sim/workload.h"

namespace baton::sim {
namespace {

constexpr int64_t kDeadlineSlackUs = kSecond;
// Everything is answered by then, and what was held for it is given back.
constexpr int64_t kAfterProbesUs = 14 * kSecond;
constexpr int64_t kLatestDataInStormUs = 3 * kSecond;
constexpr uint64_t kEventLimit = 2'000'000;  // A run that needs more is a livelock.

class Cluster {
 public:
  Cluster(const Scenario& scenario, bool trace)
      : scenario_(scenario),
        topology_(scenario.topology),
        world_(scenario.chance_seed, trace),
        oracle_(topology_.layers, topology_.page_size, topology_.max_context_tokens),
        groups_(world_, topology_),
        clients_(world_, topology_, oracle_),
        injector_(world_, clients_, topology_),
        workload_(world_, clients_, topology_) {
    world_.SetConnectionLimit(topology_.WindowBytes());
    world_.SetLatestData(topology_.calm ? topology_.times.latest_data_us : kLatestDataInStormUs);
    world_.SetClockSkew(topology_.clock_skew_us);
    world_.SetLonely(topology_.LonelyNode());
    world_.SetCalm(scenario.weather == Weather::kSlowNetwork ||
                   scenario.weather == Weather::kCalm || scenario.weather == Weather::kOverload);
    BuildNodes();
  }

  RunResult Run();

 private:
  void BuildNodes();
  void Examine();

  const Scenario& scenario_;
  const Topology topology_;
  World world_;
  Oracle oracle_;
  StageGroups groups_;
  Clients clients_;
  FaultInjector injector_;
  Workload workload_;
};

void Cluster::BuildNodes() {
  world_.dns().announced = topology_.announced;
  for (int i = 0; i < topology_.routers; ++i) {
    world_.AddNode(absl::StrCat("router-", i), [this](int node, uint64_t incarnation) {
      return std::make_unique<RouterProcess>(world_, topology_, clients_, node, incarnation);
    });
    world_.dns().listed.insert(i);
  }
  for (int node = topology_.DecodeNode(0); node < topology_.FirstMember(); ++node) {
    world_.AddNode(absl::StrCat(topology_.IsColocated(node) ? "colocated-" : "decode-", node),
                   [this](int node, uint64_t incarnation) -> std::unique_ptr<Process> {
                     if (topology_.IsFollower(node)) {
                       return std::make_unique<FollowerProcess>(world_, topology_, groups_, node,
                                                                incarnation);
                     }
                     return std::make_unique<DecodeProcess>(world_, topology_, oracle_, groups_,
                                                            node, incarnation);
                   });
  }
  for (int i = 0; i < topology_.chains * topology_.members(); ++i) {
    world_.AddNode(absl::StrCat("prefill-", topology_.FirstMember() + i),
                   [this](int node, uint64_t incarnation) {
                     return std::make_unique<PrefillProcess>(world_, topology_, oracle_, groups_,
                                                             node, incarnation);
                   });
  }
}

void Cluster::Examine() {
  for (int node = 0; node < world_.node_count(); ++node) {
    std::string why_not;
    if (!world_.process(node)->AtRest(why_not)) {
      world_.Violate(absl::StrCat("I5: ", world_.name(node), " is not at rest: ", why_not));
    }
  }
  int twins_answered = 0;
  for (const Client& client : clients_.all()) {
    if (client.request_id == "twin" && client.finished && client.status.ok()) ++twins_answered;
  }
  if (twins_answered > 1) world_.Violate("two requests ran at once under one id");
}

RunResult Cluster::Run() {
  injector_.Begin(scenario_);
  workload_.Begin(scenario_);
  int64_t next_check_us = 0;
  const int64_t end_us = workload_.ProbesUs() + kAfterProbesUs;
  while (world_.violation().empty() && world_.now_us() < end_us && world_.queue().Step()) {
    if (world_.queue().executed() > kEventLimit) world_.Violate("livelock: too many events");
    if (world_.now_us() < next_check_us) continue;
    next_check_us = world_.now_us() + 100'000;
    clients_.CheckDeadlines(kDeadlineSlackUs + injector_.late_us(), [this](int router) {
      return world_.alive(router) && !injector_.Excuses(router);
    });
  }
  if (world_.violation().empty()) {
    if (!clients_.AllDone()) world_.Violate("a client never heard an end");
    Examine();
  }
  RunResult result;
  result.hash = world_.queue().hash();
  result.events = world_.queue().executed();
  result.requests = static_cast<int>(clients_.all().size());
  CountRun(scenario_.weather);
  for (const Client& client : clients_.all()) {
    if (client.finished && !client.left) CountOutcome(client.status);
    result.succeeded += client.finished && client.status.ok() && !client.left ? 1 : 0;
  }
  result.violation = world_.violation();
  result.summary = scenario_.Summary();
  result.trace = world_.trace();
  return result;
}

}  // namespace

RunResult RunScenario(const Scenario& scenario, bool trace) {
  RunResult result = Cluster(scenario, trace).Run();
  result.seed = scenario.seed;
  return result;
}

RunResult RunSeed(uint64_t seed, bool trace) { return RunScenario(DrawScenario(seed), trace); }

}  // namespace baton::sim
