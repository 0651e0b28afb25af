#include "tests/sim/fault_injector.h"

#include <algorithm>
#include <set>

#include "tests/sim/coverage.h"
#include "tests/sim/decode_rank.h"
#include "tests/sim/prefill_process.h"
#include "tests/sim/router_process.h"

namespace baton::sim {

void FaultInjector::Begin(const Scenario& scenario) {
  excused_until_us_.assign(static_cast<size_t>(topology_.routers), -1);
  std::set<int> late;
  for (const Fault& fault : scenario.faults) {
    if (fault.kind == FaultKind::kLateStart) late.insert(fault.node);
  }
  for (int node = 0; node < world_.node_count(); ++node) {
    if (!late.contains(node)) world_.Start(node);
  }
  world_.faults() = scenario.network;
  world_.SetExitHandler([this](int node) { Exited(node); });
  for (const Fault& fault : scenario.faults) Schedule(fault);
  world_.queue().At(kFaultsEndUs, [this] { Heal(); });
}

void FaultInjector::Schedule(const Fault& fault) {
  world_.queue().At(fault.at_us, [this, fault] { Happens(fault); });
}

void FaultInjector::Happens(const Fault& fault) {
  if (fault.node < 0 || world_.alive(fault.node) || fault.kind == FaultKind::kLateStart) {
    CountFault(fault.kind);
  }
  const auto later = [&](const std::function<void()>& run) {
    world_.queue().At(world_.now_us() + fault.lasts_us, run);
  };
  switch (fault.kind) {
    case FaultKind::kKill:
      return Kill(fault);
    case FaultKind::kPause:
      return Pause(fault);
    case FaultKind::kLate:
      late_us_ = std::max(late_us_, fault.extra_us);
      return BeLate(fault.node, fault.extra_us, world_.now_us() + fault.lasts_us);
    case FaultKind::kDrain:
      return Drain(fault);
    case FaultKind::kAskToDrain:
      if (!world_.alive(0)) return Drain(fault);
      return world_.After(0, 1, "drain request", [this, node = fault.node] {
        static_cast<RouterProcess*>(world_.process(0))->DrainWorker(world_.name(node));
      });
    case FaultKind::kLateStart:
      return StartLater(fault.node, 0);
    case FaultKind::kUnlisted:
      world_.dns().listed.erase(fault.node);
      return later([this, node = fault.node] { world_.dns().listed.insert(node); });
    case FaultKind::kAlias:
      world_.dns().aliased.insert(fault.node);
      return later([this, node = fault.node] { world_.dns().aliased.erase(node); });
    case FaultKind::kDnsFails:
      world_.dns().fails = true;
      return later([this] { world_.dns().fails = false; });
    case FaultKind::kDnsSlow:
      world_.dns().slowest_us = fault.extra_us;
      return;
    case FaultKind::kStrangers:
      world_.dns().strangers = true;
      return later([this] { world_.dns().strangers = false; });
    case FaultKind::kPartition:
      world_.Partition(fault.other, fault.node, fault.lasts_us);
      [[fallthrough]];
    case FaultKind::kOneWay:
      return world_.Partition(fault.node, fault.other, fault.lasts_us);
    case FaultKind::kClockStep:
      return world_.StepClock(fault.node, fault.extra_us);
    case FaultKind::kMailboxFull:
      return world_.FillMailbox(fault.node, fault.lasts_us);
  }
}

void FaultInjector::StartLater(int node, int64_t after_us) {
  world_.queue().At(world_.now_us() + after_us, [this, node] {
    if (!world_.alive(node)) world_.Start(node);
  });
}

void FaultInjector::Kill(const Fault& fault) {
  if (!world_.alive(fault.node)) return;
  world_.Kill(fault.node);
  if (topology_.IsRouter(fault.node)) clients_.RouterDied(fault.node);
  StartLater(fault.node, fault.lasts_us);
}

void FaultInjector::Pause(const Fault& fault) {
  if (!world_.alive(fault.node) || world_.paused(fault.node)) return;
  world_.Pause(fault.node, fault.lasts_us);
  if (!topology_.IsRouter(fault.node)) return;
  excused_until_us_[static_cast<size_t>(fault.node)] = world_.now_us() + fault.lasts_us + kSecond;
}

// What comes meanwhile is handled at the end, in order, and then it is late again.
void FaultInjector::BeLate(int node, int64_t late_us, int64_t until_us) {
  if (world_.now_us() >= until_us) return;
  if (world_.alive(node) && !world_.paused(node)) world_.Pause(node, late_us);
  world_.queue().At(world_.now_us() + late_us + 1, [=, this] { BeLate(node, late_us, until_us); });
}

void FaultInjector::Drain(const Fault& fault) {
  const int node = fault.node;
  if (!world_.alive(node) || world_.paused(node)) return;
  world_.After(node, 1, "told to stop", [this, fault, process = world_.process(node)] {
    if (topology_.IsRouter(fault.node)) {
      static_cast<RouterProcess*>(process)->Drain(fault.extra_us, fault.lasts_us);
    } else if (topology_.IsDecode(fault.node)) {
      static_cast<DecodeRank*>(process)->Drain(fault.lasts_us);
    } else {
      static_cast<PrefillProcess*>(process)->Drain(fault.lasts_us);
    }
  });
}

void FaultInjector::Exited(int node) {
  world_.Kill(node);
  if (topology_.IsRouter(node)) {
    if (clients_.AnyRuns(node)) world_.Violate("a drained router leaves requests without an end");
    clients_.RouterDied(node);  // Ends the requests that were on their way to it.
  }
  const int64_t latest_us = world_.now_us() < kFaultsEndUs ? 2 * kSecond : 40'000;
  StartLater(node, world_.random().Between(20'000, latest_us));
}

void FaultInjector::Heal() {
  world_.faults() = NetworkFaults{};
  world_.dns().slowest_us = World::Dns{}.slowest_us;
  for (int node = 0; node < world_.node_count(); ++node) {
    if (!world_.alive(node)) world_.Start(node);
  }
}

}  // namespace baton::sim
