// How another member of a simulated chain or decode service than member 0 is linked to that: the
// real link with its witness, over a call that breaks. Plays services/prefill/chain/stage_link.
#ifndef TESTS_SIM_SIM_LINK_H_
#define TESTS_SIM_SIM_LINK_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "common/base/serial_events.h"
#include "common/collective/rendezvous.h"
#include "services/links/core/link.h"
#include "services/links/core/wiring.h"
#include "services/prefill/core/chain_planner.h"
#include "tests/sim/link_witness.h"
#include "tests/sim/sim_alarm.h"
#include "tests/sim/sim_group.h"
#include "tests/sim/stage_groups.h"
#include "tests/sim/stale_events.h"
#include "tests/sim/world.h"

namespace baton::sim {

class SimLink {
 public:
  struct Options {
    links::ChainPlace place;
    int page_count = 0;
    const char* alarm = "link tick";
    // Work is told again in a later epoch too, not only the end of a group.
    bool keeps_work = true;
  };
  // As StageLink's.
  struct Callbacks {
    std::function<absl::Status(const links::Hello&)> try_epoch;
    std::function<void(const absl::Status&)> drop_epoch;
    std::function<void(uint64_t epoch, uint64_t number)> next_stage_done;
    std::function<uint64_t()> newest_generation = {};  // May be null.
  };
  SimLink(World& world, const Topology& topology, StageGroups& groups, SimGroup& group, int node,
          const Options& options, Callbacks callbacks);

  void Raise(const links::LinkEvent& event) { events_.Raise(event); }

  // From member 0, on a link, which is that call.
  void HearHello(uint64_t call, const links::Hello& hello);
  void HearGroup(uint64_t call, const Rendezvous::Message& message);
  // `take` does the work, if it is to be done.
  void HearWork(uint64_t call, uint64_t epoch, std::function<void()> take);

  // To member 0, unless the epoch is over.
  void Report(uint64_t epoch, const char* label, const prefill::PlannerEvent& report);
  bool Stands(uint64_t call) const { return core_.Stands(call); }

 private:
  void Handle(const links::LinkEvent& event);
  void Perform(const links::TryEpoch& action);
  void Perform(const links::FormGroup& action);
  void Perform(const links::SendReady& action);
  void Perform(const links::SendPong& action);
  void Perform(const links::TakeWork& action);
  void Perform(const links::PassNextStageDone& action) {
    callbacks_.next_stage_done(action.epoch, action.number);
  }
  void Perform(const links::DropEpoch& action) { callbacks_.drop_epoch(action.why); }
  void Perform(const links::RefuseLink& action);
  void Perform(const links::EndLink& action) { world_.BreakCall(action.link); }
  void Tell(uint64_t call, const char* label, const links::WiringEvent& event);
  void TellStale(const links::LinkEvent& event);
  const InstanceRef& self() const { return options_.place.self.instance; }

  World& world_;
  const Topology& topology_;
  StageGroups& groups_;
  SimGroup& group_;
  const int node_;
  const Options options_;
  const int member_;
  const Callbacks callbacks_;
  links::Link core_;
  LinkWitness witness_;
  SerialEvents<links::LinkEvent> events_{[this](const links::LinkEvent& event) { Handle(event); }};
  SimAlarm alarm_;
  std::function<void()> arriving_;  // From the WorkHeard being handled.
  StaleEvents<links::LinkEvent> stale_;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_SIM_LINK_H_
