#include "tests/sim/cluster.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/planted_bug_switch.h"
#include "tests/sim/clients.h"
#include "tests/sim/decode_process.h"
#include "tests/sim/prefill_process.h"
#include "tests/sim/router_process.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {
namespace {

constexpr int64_t kSecond = 1'000'000;
constexpr int64_t kFaultsEndUs = 12 * kSecond;
constexpr int64_t kProbesUs = 22 * kSecond;  // Leases, rewiring and views have settled by then.
constexpr int64_t kDeadlineSlackUs = kSecond;
constexpr uint64_t kEventLimit = 2'000'000;  // A run that needs more is a livelock.

class Cluster {
 public:
  Cluster(uint64_t seed, bool trace) : world_(seed, trace), clients_(world_) {
    topology_ = DrawTopology(world_.random());
    world_.SetConnectionLimit(topology_.WindowBytes());
    DrawFaults();
    BuildNodes();
  }

  RunResult Run();

 private:
  void DrawFaults();
  void BuildNodes();
  void ScheduleWorkload();
  void ScheduleFaults();
  void ScheduleDrains();
  void Drain(int node);
  void ScheduleProbes();
  void Submit(int64_t at_us, Client client);
  void Heal();
  void Examine();
  void Kill(int node);
  void StartLater(int node, int64_t soonest_us, int64_t latest_us);
  void ScheduleRouterFaults();
  int DrawRouter();
  int DrawWorker();

  World world_;
  Clients clients_;
  Topology topology_;
  NetworkFaults faults_;
  int kill_budget_ = 0;
  int pause_budget_ = 0;
  int drain_budget_ = 0;
  int kills_ = 0;
  int duplicates_ = 0;
  int late_router_ = -1;           // Starts only while requests run.
  int64_t excused_until_us_ = -1;  // A router stood still until then.
};

void Cluster::DrawFaults() {
  Random& random = world_.random();
  const auto sometimes = [&random](double chance, double most) {
    return random.Chance(chance) ? random.Uniform() * most : 0.0;
  };
  faults_.delay_us_max = random.Chance(0.3) ? 5000 : 500;
  faults_.spike = sometimes(0.5, 0.05);
  faults_.control_drop = sometimes(0.4, 0.02);
  faults_.notice_lost = sometimes(0.3, 0.5);
  faults_.notice_late = sometimes(0.3, 0.5);
  faults_.plan_repeat = sometimes(0.1, 0.1);
  faults_.data_fail = sometimes(0.3, 0.02);
  faults_.data_lost = sometimes(0.2, 0.02);
  faults_.data_slow = sometimes(0.4, 0.1);
  faults_.data_corrupt = sometimes(0.2, 0.02);
  faults_.connect_fail = sometimes(0.2, 0.3);
  // A slow network and nothing else: a full window takes up to four seconds, more than a lease.
  // Else it's fast enough for requests to end in time.
  const auto window = static_cast<int64_t>(topology_.WindowBytes());
  if (random.Chance(0.05)) {
    faults_ =
        NetworkFaults{.bytes_per_ms = std::max<int64_t>(1, window / random.Between(50, 4000))};
    world_.SetCalm(true);
    return;
  }
  if (topology_.routers > 1 && random.Chance(0.3)) {
    faults_ = NetworkFaults{.delay_us_max = faults_.delay_us_max};
    topology_.first_router_stands = true;
    topology_.undisturbed = true;
    kill_budget_ = static_cast<int>(random.Between(1, 5));
    return;
  }
  if (random.Chance(0.2)) {
    faults_.bytes_per_ms = std::max<int64_t>(1, window / random.Between(1, 20));
  }
  if (random.Chance(0.15)) {
    faults_ = NetworkFaults{.delay_us_max = faults_.delay_us_max, .spike = faults_.spike};
    drain_budget_ = static_cast<int>(random.Between(1, 6));
    topology_.only_drains = true;
    // What a drain hands back is no attempt, which shows where there is but one.
    if (random.Chance(0.5)) topology_.max_attempts = 1;
    topology_.undisturbed = faults_.spike == 0;
    clients_.PromiseDrains();
    return;
  }
  drain_budget_ = random.Chance(0.3) ? static_cast<int>(random.Between(1, 3)) : 0;
  kill_budget_ = random.Chance(0.6) ? static_cast<int>(random.Below(4)) : 0;
  pause_budget_ = random.Chance(0.4) ? static_cast<int>(random.Below(3)) : 0;
  topology_.undisturbed = pause_budget_ == 0 && faults_.spike == 0 && faults_.control_drop == 0 &&
                          faults_.notice_lost == 0 && faults_.notice_late == 0 &&
                          faults_.connect_fail == 0;
}

void Cluster::BuildNodes() {
  for (int i = 0; i < topology_.routers; ++i) {
    world_.AddNode(absl::StrCat("router-", i), [this](int node, uint64_t incarnation) {
      return std::make_unique<RouterProcess>(world_, topology_, clients_, node, incarnation);
    });
    world_.dns().listed.insert(i);
  }
  for (int i = 0; i < topology_.decodes; ++i) {
    world_.AddNode(absl::StrCat("decode-", topology_.DecodeNode(i)),
                   [this](int node, uint64_t incarnation) {
                     return std::make_unique<DecodeProcess>(world_, topology_, node, incarnation);
                   });
  }
  for (int i = 0; i < topology_.chains * topology_.stages; ++i) {
    world_.AddNode(absl::StrCat("prefill-", topology_.StageNode(0, 0) + i),
                   [this](int node, uint64_t incarnation) {
                     return std::make_unique<PrefillProcess>(world_, topology_, node, incarnation);
                   });
  }
}

void Cluster::Submit(int64_t at_us, Client client) {
  client.submit_us = at_us;
  const uint64_t id = clients_.Add(std::move(client));
  world_.queue().At(at_us, [this, id] {
    Client& c = clients_.Get(id);
    if (!world_.alive(c.router)) {
      c.finished = true;
      c.status = absl::UnavailableError("no router");
      return;
    }
    c.submitted = true;
    world_.After(c.router, 10, "client request", [this, id, router = c.router] {
      static_cast<RouterProcess*>(world_.process(router))->Submit(id);
    });
  });
}

void Cluster::ScheduleWorkload() {
  Random& random = world_.random();
  const int requests = static_cast<int>(random.Between(4, 24));
  const int longest = topology_.page_size * topology_.prefill_pages;
  for (int i = 0; i < requests; ++i) {
    Client client;
    client.prompt_id = random.Next();
    // Mostly short, some that fill much of the pool, now and then one larger than it.
    client.prompt_tokens =
        static_cast<int>(random.Chance(0.7)   ? random.Between(1, int64_t{topology_.page_size} * 4)
                         : random.Chance(0.9) ? random.Between(1, longest * 3 / 4)
                                              : random.Between(longest, longest + 100));
    client.max_tokens = static_cast<int>(random.Between(1, 40));
    const int64_t at_us = random.Between(2 * kSecond, kFaultsEndUs);
    client.deadline_us = at_us + (random.Chance(0.8) ? random.Between(3, 8) * kSecond
                                                     : random.Between(1000, 200'000));
    client.request_id = absl::StrCat("request-", i);
    client.router = static_cast<int>(random.Below(static_cast<uint64_t>(topology_.routers)));
    if (random.Chance(0.1) && i > 0) {  // Duplicate of a request that may still run.
      client.request_id = absl::StrCat("request-", i - 1);
      client.router = clients_.all().back().router;  // Elsewhere it would be another request.
      client.submit_us = 0;
      ++duplicates_;
    }
    const bool cancels = random.Chance(0.2);
    const int64_t cancel_us = at_us + random.Between(0, 400'000);
    const uint64_t id = clients_.all().size();
    Submit(at_us, std::move(client));
    if (!cancels) continue;
    world_.queue().At(cancel_us, [this, id] {
      const int router = clients_.Get(id).router;
      if (!world_.alive(router) || clients_.Get(id).finished) return;
      clients_.Get(id).cancelled = true;
      world_.After(router, 10, "client leaves", [this, id, router] {
        static_cast<RouterProcess*>(world_.process(router))->Cancel(id);
      });
    });
  }
  // The same id twice at the same moment: one of the two must be refused.
  if (random.Chance(0.5)) {
    for (int twin = 0; twin < 2; ++twin) {
      Client client;
      client.request_id = "twin";
      client.prompt_id = random.Next();
      client.prompt_tokens = topology_.page_size * 2;
      client.max_tokens = 20;
      client.deadline_us = 9 * kSecond;
      Submit(5 * kSecond + twin, std::move(client));
    }
  }
}

void Cluster::StartLater(int node, int64_t soonest_us, int64_t latest_us) {
  const int64_t at_us = world_.now_us() + world_.random().Between(soonest_us, latest_us);
  world_.queue().At(at_us, [this, node] {
    if (!world_.alive(node)) world_.Start(node);
  });
}

void Cluster::Kill(int node) {
  if (!world_.alive(node)) return;
  ++kills_;
  world_.Kill(node);
  if (topology_.IsRouter(node)) clients_.RouterDied(node);
  StartLater(node, 50'000, 3 * kSecond);
}

// As an upgrade does it.
void Cluster::Drain(int node) {
  if (!world_.alive(node) || world_.paused(node)) return;
  const int64_t drain_us = world_.random().Chance(0.3) ? world_.random().Between(0, 300'000)
                                                       : world_.random().Between(1, 6) * kSecond;
  const int64_t settle_us = world_.random().Chance(0.5) ? 0 : world_.random().Between(0, kSecond);
  world_.After(node, 1, "told to stop", [=, this, process = world_.process(node)] {
    if (topology_.IsRouter(node)) {
      static_cast<RouterProcess*>(process)->Drain(settle_us, drain_us);
    } else if (topology_.IsDecode(node)) {
      static_cast<DecodeProcess*>(process)->Drain(drain_us);
    } else {
      static_cast<PrefillProcess*>(process)->Drain(drain_us);
    }
  });
}

void Cluster::ScheduleDrains() {
  world_.SetExitHandler([this](int node) {
    world_.Kill(node);
    if (clients_.AnyRuns(node)) world_.Violate("a drained router leaves requests without an end");
    clients_.RouterDied(node);  // Of those that were on their way to it.
    StartLater(node, 20'000, 2 * kSecond);
  });
  Random& random = world_.random();
  for (int i = 0; i < drain_budget_; ++i) {
    int node = random.Chance(0.2) ? DrawRouter() : DrawWorker();
    if (random.Chance(0.3)) {  // Of the few that there are beside all the stages.
      node = topology_.DecodeNode(
          static_cast<int>(random.Below(static_cast<uint64_t>(topology_.decodes))));
    }
    // Mostly while a request is being set up, or its KV is under way.
    const int64_t submit_us = clients_.all()[random.Below(clients_.all().size())].submit_us;
    const int64_t late_us = random.Between(0, random.Chance(0.5) ? 1500 : 30'000);
    const int64_t at_us = submit_us > 0 && random.Chance(0.8)
                              ? submit_us + late_us
                              : random.Between(2 * kSecond, kFaultsEndUs);
    const bool by_router = !topology_.IsRouter(node) && random.Chance(0.3);
    world_.queue().At(at_us, [this, node, by_router] {
      if (!by_router || !world_.alive(0)) return Drain(node);
      world_.After(0, 1, "drain request", [this, node] {
        static_cast<RouterProcess*>(world_.process(0))->DrainWorker(world_.name(node));
      });
    });
  }
}

void Cluster::ScheduleFaults() {
  Random& random = world_.random();
  for (int i = 0; i < kill_budget_; ++i) {
    // The router holds every client's connection, so it dies less often than the workers.
    const bool router = topology_.first_router_stands || random.Chance(0.15);
    const int node = router ? DrawRouter() : DrawWorker();
    int64_t at_us = random.Between(2 * kSecond, kFaultsEndUs);
    // Half of the routers die while a request is being set up: between its ticket and its stream.
    if (router && random.Chance(0.5)) {
      const auto& clients = clients_.all();
      const int64_t submit_us = clients[random.Below(clients.size())].submit_us;
      if (submit_us > 0) at_us = submit_us + random.Between(100, 3000);
    }
    world_.queue().At(at_us, [this, node] { Kill(node); });
  }
  for (int i = 0; i < pause_budget_; ++i) {
    const int node = DrawWorker();
    const int64_t duration_us = random.Between(10'000, 6 * kSecond);
    world_.queue().At(random.Between(2 * kSecond, kFaultsEndUs), [this, node, duration_us] {
      if (world_.alive(node) && !world_.paused(node)) world_.Pause(node, duration_us);
    });
  }
  if (topology_.routers > 1) ScheduleRouterFaults();
  world_.queue().At(kFaultsEndUs, [this] { Heal(); });
}

// The first one is spared where it must stand.
int Cluster::DrawRouter() {
  const int spared = topology_.first_router_stands ? 1 : 0;
  return static_cast<int>(world_.random().Between(spared, topology_.routers - 1));
}

int Cluster::DrawWorker() {
  return static_cast<int>(world_.random().Between(topology_.routers, topology_.NodeCount() - 1));
}

// DNS that fails, loses a router for a while or is slow; a router that stands still.
void Cluster::ScheduleRouterFaults() {
  Random& random = world_.random();
  const auto during = [this, &random](int64_t longest_us, const std::function<void(bool)>& set) {
    const int64_t from_us = random.Between(0, kFaultsEndUs - kSecond);
    world_.queue().At(from_us, [set] { set(true); });
    world_.queue().At(std::min(kFaultsEndUs, from_us + random.Between(kSecond, longest_us)),
                      [set] { set(false); });
  };
  if (random.Chance(0.3)) {
    during(8 * kSecond, [this](bool fails) { world_.dns().fails = fails; });
  }
  if (random.Chance(0.3)) world_.dns().slowest_us = 3 * kSecond;
  if (random.Chance(0.3)) {
    const int router = DrawRouter();
    during(10 * kSecond, [this, router](bool lost) {
      if (lost) {
        world_.dns().listed.erase(router);
      } else {
        world_.dns().listed.insert(router);
      }
    });
  }
  if (topology_.routers > 1 && pause_budget_ > 0 && random.Chance(0.5)) {
    const int router = DrawRouter();
    const int64_t duration_us = random.Between(kSecond / 2, 6 * kSecond);
    world_.queue().At(random.Between(2 * kSecond, kFaultsEndUs), [this, router, duration_us] {
      if (!world_.alive(router) || world_.paused(router)) return;
      world_.Pause(router, duration_us);
      excused_until_us_ = world_.now_us() + duration_us + kDeadlineSlackUs;
    });
  }
}

void Cluster::Heal() {
  world_.faults() = NetworkFaults{};
  for (int node = 0; node < world_.node_count(); ++node) {
    if (!world_.alive(node)) world_.Start(node);
  }
}

void Cluster::ScheduleProbes() {
  for (int i = 0; i < 3 * topology_.routers; ++i) {
    Client client;
    client.router = i / 3;
    client.request_id = absl::StrCat("probe-", i);
    client.prompt_id = world_.random().Next();
    client.prompt_tokens = topology_.page_size * 3 + 1;
    client.max_tokens = 10;
    client.deadline_us = kProbesUs + 10 * kSecond;
    client.must_succeed = true;
    Submit(kProbesUs, std::move(client));
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
  if (topology_.routers > 1 && world_.random().Chance(0.4)) late_router_ = topology_.routers - 1;
  for (int node = 0; node < world_.node_count(); ++node) {
    if (node != late_router_) world_.Start(node);
  }
  if (late_router_ >= 0) {
    world_.queue().At(world_.random().Between(3, 11) * kSecond, [this] {
      if (!world_.alive(late_router_)) world_.Start(late_router_);
    });
  }
  world_.faults() = faults_;
  ScheduleWorkload();
  ScheduleFaults();
  ScheduleDrains();
  ScheduleProbes();
  const int64_t end_us = kProbesUs + 14 * kSecond;
  int64_t next_check_us = 0;
  while (world_.violation().empty() && world_.now_us() < end_us && world_.queue().Step()) {
    if (world_.queue().executed() > kEventLimit) world_.Violate("livelock: too many events");
    if (world_.now_us() < next_check_us) continue;
    next_check_us = world_.now_us() + 100'000;
    clients_.CheckDeadlines(kDeadlineSlackUs, [this](int router) {
      return world_.alive(router) && world_.now_us() > excused_until_us_;
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
  for (const Client& client : clients_.all()) {
    result.succeeded += client.finished && client.status.ok() && !client.cancelled ? 1 : 0;
  }
  result.kills = kills_;
  result.violation = world_.violation();
  result.summary = absl::StrCat(
      "routers=", topology_.routers, topology_.first_router_stands ? "!" : "",
      " P=", topology_.stages, " chains=", topology_.chains, " layers=", topology_.layers,
      " page=", topology_.page_size, " chunk=", topology_.chunk_tokens,
      " pages=", topology_.prefill_pages, "/", topology_.decode_pages, " kills=", kills_,
      " pauses=", pause_budget_, " drains=", drain_budget_, " drop=", faults_.control_drop,
      " lost=", faults_.notice_lost, " late=", faults_.notice_late, " fail=", faults_.data_fail,
      " vanished=", faults_.data_lost, " slow=", faults_.data_slow,
      " corrupt=", faults_.data_corrupt, " bytes/ms=", faults_.bytes_per_ms);
  result.trace = world_.trace();
  return result;
}

}  // namespace

RunResult RunSeed(uint64_t seed, Bug bug, bool trace) {
  PlantBug(bug);
  Cluster cluster(seed, trace);
  RunResult result = cluster.Run();
  result.seed = seed;
  PlantBug(Bug::kNone);
  return result;
}

}  // namespace baton::sim
