// When a chain is wired and broken, held against what wiring.h and hello.h promise: who its
// members are and what they are told, by what epoch, when it is up and with how many pages, whose
// fault its end is; and how long stage 0 waits before it wires anew, whom it pings and when, and
// how long it waits for who is silent or not ready. A second account that shares no code with the
// core. Of decode services of several ranks as well.
#ifndef TESTS_SIM_WIRING_WITNESS_H_
#define TESTS_SIM_WIRING_WITNESS_H_

#include <cstdint>
#include <optional>
#include <set>
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
  using Members = std::vector<worker::PeerWorker>;

  // What must come of it.
  void Hear(const links::MembersSeen& event);
  void Hear(const links::OwnEpochTried& event);
  void Hear(const links::GroupJoinHeard& event) { Lives(event.member, event.epoch); }
  void Hear(const links::GroupEntryHeard& event) { Lives(event.member, event.epoch); }
  void Hear(const links::GroupConnectedHeard& event) { Lives(event.member, event.epoch); }
  void Hear(const links::OwnGroupFormed& event);
  void Hear(const links::StageHeard& event) { Lives(event.member, event.epoch); }
  void Hear(const links::StageReady& event);
  void Hear(const links::StageRefused& event);
  void Hear(const links::ReportHeard& event);
  void Hear(const links::StageLinkEnded& event);
  void Hear(const links::ChainFailed& event);
  void Hear(const links::WiringStopped& event);
  void Hear(const links::WiringTick& event);
  // And what it says of the next try, which counts more than the break that it causes.
  void HearAfter(const links::MembersSeen& event);
  void HearAfter(const links::StageRefused& event);
  void HearAfter(const links::WiringStopped&) { phase_ = Phase::kStopped; }
  template <typename Other>
  void HearAfter(const Other&) {}

  void See(const links::TryOwnEpoch& action);
  void See(const links::ReportChainUp& action);
  void See(const links::ReportChainDown& action);
  void See(const links::PassReport& action);
  void See(const links::PingStages& action);
  template <typename Other>
  void See(const Other&) {}

  // Whether it is of the epoch that is wired, and so counts.
  bool Counts(uint64_t epoch) const { return wired() && epoch == epoch_; }
  void Lives(int member, uint64_t epoch);
  bool wired() const { return phase_ == Phase::kLinking || phase_ == Phase::kUp; }
  bool whole() const { return !members_.empty() || options_.place.members() == 1; }
  const std::string& NameOf(int member) const;
  void MustBreak(const std::set<std::string>& to_blame);
  void MustBeUpIfReady();
  void MustEndWhoIsLate();
  Members Find(const std::vector<worker::PeerWorker>& view) const;
  void CheckDone(const std::vector<links::WiringAction>& actions);
  void CheckTick(Phase before, bool over);
  void CheckSleep(const links::Wiring& core);
  bool TimeIsOver() const;  // Whether a peer has missed its deadline.
  void Complain(const std::string& what);

  World& world_;
  const links::WiringOptions options_;
  const links::ChainTimes times_;
  Phase phase_ = Phase::kDown;
  uint64_t epoch_ = 0;
  Members members_;
  Members tried_;  // The members of the last epoch that stage 0 began.
  std::optional<links::Hello> trying_;
  std::set<int> ready_;     // Members of this epoch; 0: stage 0's own rank has its group.
  int pages_ = 0;           // The fewest of those.
  uint64_t elsewhere_ = 0;  // Epoch that a stage has refused an older one for.
  uint64_t clock_us_ = 0;
  int64_t pings_sent_ = 0;
  std::vector<int64_t> heard_us_;
  int64_t since_us_ = 0;  // Start of linking, or of being up.
  bool worked_ = false;   // The last stage has reported.
  int64_t backoff_us_ = 0;
  int64_t retry_us_ = 0;
  int64_t ping_us_ = 0;  // When the next one is due.

  // State for the event being checked.
  std::vector<std::string> expected_;  // Actions, in their order.
  std::set<std::string> to_blame_;     // One of these, if there are any.
  int pings_ = 0;
  bool tries_ = false;
  bool broken_ = false;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_WIRING_WITNESS_H_
