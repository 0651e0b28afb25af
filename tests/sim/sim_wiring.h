// How member 0 of a simulated chain or decode service is linked to the others: the real wiring with
// its witness, over calls that break, and wall clocks that are set back. Plays
// services/prefill/chain/chain_links.cc.
#ifndef TESTS_SIM_SIM_WIRING_H_
#define TESTS_SIM_SIM_WIRING_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/base/serial_events.h"
#include "services/links/core/wiring.h"
#include "services/prefill/core/chain_planner.h"
#include "tests/sim/sim_alarm.h"
#include "tests/sim/sim_group.h"
#include "tests/sim/stage_groups.h"
#include "tests/sim/stale_events.h"
#include "tests/sim/wiring_witness.h"
#include "tests/sim/world.h"

namespace baton::sim {

class SimWiring {
 public:
  // As ChainShell's.
  struct Callbacks {
    std::function<absl::Status(const links::Hello&)> begin_own;
    std::function<void(uint64_t epoch, int page_count)> on_up;
    std::function<void(const absl::Status&)> on_down;
    std::function<void(const prefill::PlannerEvent&)> on_report;
    std::function<uint64_t(int stage)> plans_done;
    std::function<void(uint64_t epoch)> tell_own_stage;
    // Spoils what a member says; true: that was told in its place. May be null.
    std::function<bool(const links::WiringEvent&)> strikes = {};
  };
  // `keeps_reports`: of a member's words those on its work are told again later too, not only those
  // on groups.
  SimWiring(World& world, const Topology& topology, StageGroups& groups, SimGroup& group, int node,
            const links::WiringOptions& options, bool keeps_reports, Callbacks callbacks);

  void OnMembers(std::vector<worker::PeerWorker> view);
  void Raise(const links::WiringEvent& event) { events_.Raise(event); }
  void BreakAt(int stage, int rank, const absl::Status& status);
  // Whether it was a link.
  bool CallBroken(uint64_t call);

  // From the other members.
  void Hear(const links::WiringEvent& event);
  void HearReady(const links::StageReady& ready, uint64_t newest_generation);
  void HearReport(int member, uint64_t epoch, const prefill::PlannerEvent& report);

  bool up() const { return core_.up(); }
  uint64_t epoch() const { return core_.epoch(); }
  const std::map<int, uint64_t>& links() const { return links_; }  // Call by member.
  uint64_t newest_generation() const { return newest_generation_; }
  absl::Status CheckInvariants() const { return core_.CheckInvariants(); }

 private:
  void Handle(const links::WiringEvent& event);
  void Perform(const links::TryOwnEpoch& action);
  void Perform(const links::OpenLinks& action);
  void Perform(const links::FormOwnGroup& action);
  void Perform(const links::TellGroup& action);
  void Perform(const links::PingStages& action);
  void Perform(const links::CloseLinks& action);
  void Perform(const links::ReportChainUp& action);
  void Perform(const links::ReportChainDown& action) { callbacks_.on_down(action.status); }
  void Perform(const links::PassReport& action);
  void Perform(const links::TellOwnStage& action) { callbacks_.tell_own_stage(action.epoch); }
  void TellStale(const links::WiringEvent& event);

  World& world_;
  const Topology& topology_;
  StageGroups& groups_;
  SimGroup& group_;
  const int node_;
  const links::ChainPlace place_;
  const bool keeps_reports_;
  const Callbacks callbacks_;
  links::Wiring core_;
  WiringWitness witness_;
  SerialEvents<links::WiringEvent> events_{
      [this](const links::WiringEvent& event) { Handle(event); }};
  SimAlarm alarm_;
  links::Hello hello_;  // What the last links were opened with.
  std::map<int, uint64_t> links_;
  uint64_t newest_generation_ = 0;                 // That members have been granted KV under.
  std::optional<prefill::PlannerEvent> arriving_;  // From the ReportHeard being handled.
  StaleEvents<links::WiringEvent> stale_;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_SIM_WIRING_H_
