// When a chain is wired and broken by time alone, held against what wiring.h and chain_times.h
// promise: how long stage 0 waits before it wires anew, whom it pings and when, and how long it
// waits for who is silent or not ready. A second account that shares no code with the core. Of
// decode services of several ranks as well.
#ifndef TESTS_SIM_WIRING_WITNESS_H_
#define TESTS_SIM_WIRING_WITNESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/types/ticket.h"
#include "services/links/core/wiring.h"
#include "tests/sim/world.h"

namespace baton::sim {

class WiringWitness {
 public:
  WiringWitness(World& world, links::WiringOptions options);

  // After every Handle.
  void Saw(const links::WiringEvent& event, const std::vector<links::WiringAction>& actions,
           const links::Wiring& core);

 private:
  enum class Phase { kDown, kTrying, kLinking, kUp, kStopped };
  // From member 1 on; empty unless all are known.
  using Members = std::vector<InstanceRef>;

  void Hear(const links::OwnEpochTried& event);
  void Hear(const links::ViewSeen& event);
  void Hear(const links::StageRefused& event);
  void Hear(const links::WiringStopped&) { phase_ = Phase::kStopped; }
  void Hear(const links::GroupJoinHeard& event) { Lives(event.member, event.epoch); }
  void Hear(const links::GroupEntryHeard& event) { Lives(event.member, event.epoch); }
  void Hear(const links::GroupConnectedHeard& event) { Lives(event.member, event.epoch); }
  void Hear(const links::StageHeard& event) { Lives(event.member, event.epoch); }
  void Hear(const links::StageReady& event) { Lives(event.member, event.epoch); }
  void Hear(const links::ReportHeard& event) { Lives(event.member, event.epoch); }
  template <typename Other>
  void Hear(const Other&) {}

  void See(const links::TryOwnEpoch& action);
  void See(const links::ReportChainUp& action);
  void See(const links::ReportChainDown& action);
  void See(const links::PassReport& action);
  void See(const links::PingStages&) { ++pings_; }
  template <typename Other>
  void See(const Other&) {}

  void Lives(int member, uint64_t epoch);
  bool wired() const { return phase_ == Phase::kLinking || phase_ == Phase::kUp; }
  bool whole() const { return !members_.empty() || options_.place.members() == 1; }
  bool TimeIsOver() const;  // Of who has to say something.
  Members Find(const std::vector<worker::PeerWorker>& view) const;
  void CheckTick(Phase before, bool over);
  void CheckSleep(const links::Wiring& core);
  void Complain(const std::string& what);

  World& world_;
  const links::WiringOptions options_;
  const links::ChainTimes times_;
  Phase phase_ = Phase::kDown;
  uint64_t epoch_ = 0;
  Members members_;
  Members tried_;  // Of the last epoch that stage 0 began.
  std::vector<int64_t> heard_us_;
  int64_t since_us_ = 0;  // Of linking, or of being up.
  bool worked_ = false;   // The last stage has reported.
  int64_t backoff_us_ = 0;
  int64_t retry_us_ = 0;
  int64_t ping_us_ = 0;  // When the next one is due.

  // Of the event that is looked at.
  int pings_ = 0;
  bool tries_ = false;
  bool broken_ = false;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_WIRING_WITNESS_H_
