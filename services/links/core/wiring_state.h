// The state of Wiring, shared by its source files; no other file includes it.
#ifndef SERVICES_LINKS_CORE_WIRING_STATE_H_
#define SERVICES_LINKS_CORE_WIRING_STATE_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "services/links/core/group_rendezvous.h"
#include "services/links/core/wiring.h"

namespace baton::links {
namespace wiring_internal {

enum class Phase { kDown, kLinking, kUp, kStopped };

struct Link {
  worker::PeerWorker member;
  bool ready = false;
  int page_count = 0;
  int64_t last_heard_us = 0;  // While the chain is up.
};

}  // namespace wiring_internal

struct Wiring::State {
  explicit State(WiringOptions wiring_options) : options(std::move(wiring_options)) {}

  const WiringOptions options;
  const ChainTimes& times = options.times;
  wiring_internal::Phase phase = wiring_internal::Phase::kDown;
  std::vector<worker::PeerWorker> members;   // Listed, from member 1 on, in order; whole or empty.
  std::vector<worker::PeerWorker> tried;     // Members of the last epoch that was begun.
  std::vector<wiring_internal::Link> links;  // In the current epoch; member i at i - 1.
  GroupRendezvous groups{options.place};
  bool own_ready = false;       // Stage 0's own rank.
  std::optional<Hello> trying;  // Until stage 0 says whether it has begun.
  uint64_t epoch = 0;
  uint64_t newest_elsewhere = 0;  // Epoch that a stage has refused an older one for.
  int64_t retry_at_us = 0;
  int64_t backoff_us = 0;
  int64_t linking_since_us = 0;
  int64_t up_since_us = 0;
  bool worked = false;  // In this epoch.
  int64_t next_ping_us = 0;
  int64_t ping_sequence = 0;

  // For the event that is being handled.
  int64_t now_us = 0;
  std::vector<WiringAction>* actions = nullptr;

  void Emit(WiringAction action) { actions->push_back(std::move(action)); }

  void On(const MembersSeen& event);
  void On(const OwnEpochTried& event);
  void On(const GroupJoinHeard& event);
  void On(const GroupEntryHeard& event);
  void On(const GroupConnectedHeard& event);
  void On(const OwnGroupFormed& event);
  void On(const StageHeard& event);
  void On(const StageReady& event);
  void On(const StageRefused& event);
  void On(const ReportHeard& event);
  void On(const StageLinkEnded& event);
  void On(const ChainFailed& event);
  void On(const WiringStopped& event);
  void On(const WiringTick& event);

  bool wired() const {
    return phase == wiring_internal::Phase::kLinking || phase == wiring_internal::Phase::kUp;
  }
  bool whole() const { return !members.empty() || options.place.members() == 1; }
  wiring_internal::Link* Find(int member, uint64_t of_epoch);
  wiring_internal::Link* Hear(int member, uint64_t of_epoch);
  bool HearGroup(int member, uint64_t of_epoch);
  void TellGroups();
  void BecomeUpIfReady();
  void TryToWire(uint64_t wall_clock_us);
  void BecomeUp();
  void Watch();
  void Break(const absl::Status& reason);
};

}  // namespace baton::links

#endif  // SERVICES_LINKS_CORE_WIRING_STATE_H_
