// What goes wrong besides the network, and when.
#include <algorithm>

#include "tests/sim/scenario.h"

namespace baton::sim {
namespace {

class FaultDrawer {
 public:
  FaultDrawer(Random& random, Scenario& scenario)
      : random_(random), scenario_(scenario), topology_(scenario.topology) {}

  void Draw() {
    switch (scenario_.weather) {
      case Weather::kCalm:
      case Weather::kSlowNetwork:
      case Weather::kLateMessages:
      case Weather::kOverload:
        return;
      case Weather::kDrains:
        return Repeat(1, 6, [this] { Drain(); });
      case Weather::kLateRouters:
        return LateRouter();
      case Weather::kRouters:
        Repeat(1, 5, [this] { KillRouter(); });
        return RouterFaults();
      case Weather::kStorm:
        if (random_.Chance(0.4)) Repeat(1, 4, [this] { Drain(); });
        if (random_.Chance(0.45)) Repeat(1, 3, [this] { KillAny(); });
        if (random_.Chance(0.4)) {
          Repeat(1, 3, [this] { Pause(); });
          if (random_.Chance(0.3)) LateRouter();
        }
        if (random_.Chance(0.25)) Repeat(1, 3, [this] { Partition(); });
        if (random_.Chance(0.15)) Repeat(1, 3, [this] { KillBehindPartition(); });
        if (random_.Chance(0.15)) Repeat(1, 3, [this] { StepClock(); });
        if (random_.Chance(0.15)) Repeat(1, 4, [this] { FillMailbox(); });
        if (topology_.routers > 1) RouterFaults();
    }
  }

 private:
  template <typename One>
  void Repeat(int64_t least, int64_t most, const One& one) {
    const int64_t times = random_.Between(least, most);
    for (int64_t i = 0; i < times; ++i) one();
  }

  int DrawWorker() {
    return static_cast<int>(random_.Between(topology_.routers, topology_.NodeCount() - 1));
  }
  // The first one is spared where it must stand.
  int DrawRouter() {
    const int spared = scenario_.weather == Weather::kRouters ? 1 : 0;
    return static_cast<int>(random_.Between(spared, topology_.routers - 1));
  }
  int64_t DrawTime() { return random_.Between(kFaultsBeginUs, kFaultsEndUs); }
  // While a request is being set up, or its KV is under way.
  int64_t DrawTimeOfRequest(int64_t soonest_us, int64_t latest_us) {
    const auto& clients = scenario_.clients;
    const int64_t submit_us = clients[random_.Below(clients.size())].submit_us;
    return submit_us + random_.Between(soonest_us, latest_us);
  }

  // Never two draws in one call: compilers differ in the order of arguments.
  void Add(FaultKind kind, int node, int64_t at_us, int64_t lasts_us = 0, int64_t extra_us = 0) {
    scenario_.faults.push_back(
        Fault{kind, std::min(at_us, kFaultsEndUs), lasts_us, extra_us, node});
  }

  void KillRouter() {
    const int node = DrawRouter();
    // Half of the routers die while a request is being set up: between its ticket and its stream.
    const int64_t at_us = random_.Chance(0.5) ? DrawTimeOfRequest(100, 3000) : DrawTime();
    Add(FaultKind::kKill, node, at_us, random_.Between(50'000, 3 * kSecond));
  }

  // The router holds every client's connection, so it dies less often than the workers.
  void KillAny() {
    if (random_.Chance(0.15)) return KillRouter();
    const int node = DrawWorker();
    const int64_t at_us = random_.Chance(0.5) ? DrawTimeOfRequest(0, 100'000) : DrawTime();
    // Now and then it is back before what it sent has arrived.
    Add(FaultKind::kKill, node, at_us,
        random_.Between(1000, random_.Chance(0.3) ? 50'000 : 3 * kSecond));
  }

  void Pause() {
    const bool router = random_.Chance(0.15);
    const int node = router ? DrawRouter() : DrawWorker();
    const int64_t at_us = random_.Chance(0.5) ? DrawTimeOfRequest(0, 100'000) : DrawTime();
    const int64_t longest_us = std::max<int64_t>(kFaultsEndUs - at_us, 10'000);
    Add(FaultKind::kPause, node, at_us, std::min(random_.Between(10'000, 6 * kSecond), longest_us));
  }

  // For one pause, or for all the time that is left.
  void LateRouter() {
    // In calm weather so that decode still sees a ticket's stream in time, and workers that find
    // the router silent come back within what it grants them once.
    const Timings& times = topology_.times;
    const int64_t latest_us = scenario_.weather == Weather::kStorm
                                  ? 3 * kSecond
                                  : std::min(times.stream_lease_us * 2 / 3, times.lease_us);
    const int64_t late_us = random_.Between(200'000, latest_us);
    const int64_t at_us = random_.Between(kFaultsBeginUs, 6 * kSecond);
    const int64_t lasts_us = random_.Chance(0.3) ? late_us : kFaultsEndUs - late_us - at_us;
    Add(FaultKind::kLate, DrawRouter(), at_us, lasts_us, late_us);
  }

  int DrawNode() { return static_cast<int>(random_.Between(0, topology_.NodeCount() - 1)); }

  // Partitions any two nodes that talk to each other.
  void Partition() {
    const int node = DrawNode();
    const int other = (node + static_cast<int>(random_.Between(1, topology_.NodeCount() - 1))) %
                      topology_.NodeCount();
    const FaultKind kind = random_.Chance(0.5) ? FaultKind::kPartition : FaultKind::kOneWay;
    const int64_t at_us =
        std::min(random_.Chance(0.5) ? DrawTimeOfRequest(0, 100'000) : DrawTime(), kFaultsEndUs);
    const int64_t lasts_us = random_.Chance(0.5) ? random_.Between(10'000, kSecond)
                                                 : random_.Between(kSecond, 9 * kSecond);
    Add(kind, node, at_us, std::min(lasts_us, kFaultsEndUs - at_us), 0);
    scenario_.faults.back().other = other;
  }

  // What a worker's former life has said comes when its successor has begun to speak.
  void KillBehindPartition() {
    const int node = DrawWorker();
    const int64_t at_us = std::min(DrawTime(), kFaultsEndUs - 2 * kSecond);
    const int64_t beat_us = topology_.times.membership.heartbeat_us;
    const int64_t lasts_us = random_.Between(beat_us, topology_.times.lease_us);
    Add(FaultKind::kOneWay, node, at_us, lasts_us);
    scenario_.faults.back().other = DrawRouter();
    const int64_t down_us = random_.Between(100, beat_us / 4);
    const int64_t before_us = random_.Between(1000, beat_us / 2);
    Add(FaultKind::kKill, node, at_us + lasts_us - before_us, down_us);
  }

  // By NTP, by hand, or by a machine that has slept.
  void StepClock() {
    const int64_t by_us = random_.Between(-100, 100) * kSecond;
    const int64_t at_us = DrawTime();
    Add(FaultKind::kClockStep, DrawWorker(), at_us, 0, by_us);
  }

  void FillMailbox() {
    const int node = DrawNode();
    const int64_t at_us = random_.Chance(0.5) ? DrawTimeOfRequest(0, 3000) : DrawTime();
    Add(FaultKind::kMailboxFull, node, at_us, random_.Between(100, 300'000));
  }

  // Or a colocated chain's first.
  int DrawDecode() {
    const int services = topology_.decodes + topology_.colocated;
    return topology_.DecodeNode(static_cast<int>(random_.Below(static_cast<uint64_t>(services))));
  }

  // As an upgrade does it, or an operator through a router.
  void Drain() {
    int node = random_.Chance(0.2) ? DrawRouter() : DrawWorker();
    if (random_.Chance(0.3)) {  // A decode service: there are few beside all the stages.
      node = DrawDecode();
    }
    // Or one in the middle of its work and with no time for it: the planner, or a decode service.
    const bool at_once = random_.Chance(0.35);
    if (at_once && random_.Chance(0.6)) {
      node = topology_.StageNode(
          static_cast<int>(random_.Below(static_cast<uint64_t>(topology_.chains))), 0);
    } else if (at_once) {
      node = DrawDecode();
    }
    const int64_t latest_us = at_once || random_.Chance(0.5) ? 3000 : 30'000;
    int64_t at_us = random_.Chance(0.8) ? DrawTimeOfRequest(0, latest_us) : DrawTime();
    const int64_t drain_us = at_once ? random_.Between(0, topology_.IsDecode(node) ? 20'000 : 3000)
                             : random_.Chance(0.3) ? random_.Between(0, 300'000)
                                                   : random_.Between(1, 6) * kSecond;
    const int64_t settle_us = random_.Chance(0.5) ? 0 : random_.Between(0, kSecond);
    const bool asked = !topology_.IsRouter(node) && random_.Chance(0.3);
    // All of its time is over when the faults end.
    const int64_t ends_us = kFaultsEndUs - (asked ? topology_.times.asked_drain_us : 0);
    at_us = std::min(at_us, ends_us);
    Add(asked ? FaultKind::kAskToDrain : FaultKind::kDrain, node, at_us,
        asked ? 0 : std::min(drain_us, ends_us - at_us), settle_us);
  }

  // DNS that fails, loses a router for a while or is slow; a router that starts late.
  void RouterFaults() {
    const auto during = [this](FaultKind kind, int node, int64_t longest_us) {
      const int64_t from_us = random_.Between(0, kFaultsEndUs - kSecond);
      const int64_t lasts_us = random_.Between(kSecond, longest_us);
      Add(kind, node, from_us, std::min(lasts_us, kFaultsEndUs - from_us));
    };
    if (random_.Chance(0.3)) during(FaultKind::kDnsFails, -1, 8 * kSecond);
    if (random_.Chance(0.3)) Add(FaultKind::kDnsSlow, -1, 0, 0, kSlowestDnsUs);
    if (random_.Chance(0.3)) during(FaultKind::kAlias, DrawRouter(), 10 * kSecond);
    if (random_.Chance(0.3)) during(FaultKind::kUnlisted, DrawRouter(), 10 * kSecond);
    if (random_.Chance(0.4)) {
      Add(FaultKind::kLateStart, topology_.routers - 1, random_.Between(3, 11) * kSecond);
    }
  }

  Random& random_;
  Scenario& scenario_;
  const Topology& topology_;
};

}  // namespace

void DrawFaults(Random& random, Scenario& scenario) { FaultDrawer(random, scenario).Draw(); }

}  // namespace baton::sim
