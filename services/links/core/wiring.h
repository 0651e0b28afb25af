// The decisions of a chain's stage 0 about it: wires it when routers list all of its members,
// watches it, and breaks it as a whole when a link ends, a member is silent or another one has its
// place. That a router does not list a member says nothing of one that is linked. Every wiring is a
// new epoch. Where stages are several processes, "stage 0" is its rank 0, the chain's member 0;
// members are counted as hello.h says. What members work at, and what they report of it, is their
// owners' matter: a report passes here unread, if it is of today's epoch.
//
// DOWN -(members whole, stage 0 has begun)-> LINKING -(every member ready)-> UP -> DOWN, with a
// growing pause before the next try. A member with other ranks beside it is ready when they have
// formed a group; they find one another here (group_rendezvous.h), stage 0's own rank among them.
//
// Epochs must grow across restarts of stage 0, which keeps nothing on disk: the wall clock does,
// mostly. Where it has been set back, or stage 0 moved to a host that is behind, the later stages
// refuse the epoch and say the newest that they know, and the next try goes past it.
#ifndef SERVICES_LINKS_CORE_WIRING_H_
#define SERVICES_LINKS_CORE_WIRING_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/collective/rendezvous.h"
#include "services/links/core/group_rendezvous.h"
#include "services/links/core/hello.h"
#include "services/worker/core/peer_worker.h"

namespace baton::links {

struct WiringOptions {
  ChainPlace place;    // Stage 0's.
  int page_count = 0;  // Stage 0's.
  int max_plan_tokens = 0;
  int activation_credits = 0;
  ChainTimes times;
};

// ---- Events. `member` >= 1; what comes of an older epoch's links is ignored. ----
struct MembersSeen {
  std::vector<worker::PeerWorker> members;  // If two have one place, the first (newest) counts.
};
struct OwnEpochTried {  // The answer to TryOwnEpoch: stage 0 has begun, or can't yet.
  absl::Status status;
};
// A rendezvous's messages. Member 0's are those of stage 0's own rank.
struct GroupJoinHeard {
  int member = 0;
  uint64_t epoch = 0;
};
struct GroupEntryHeard {
  int member = 0;
  uint64_t epoch = 0;
  Rendezvous::Entry entry;
};
struct GroupConnectedHeard {
  int member = 0;
  uint64_t epoch = 0;
};
struct OwnGroupFormed {  // The answer to FormOwnGroup.
  uint64_t epoch = 0;
  absl::Status status;
};
struct StageHeard {  // A message that says no more than that.
  int member = 0;
  uint64_t epoch = 0;
};
struct StageReady {
  int member = 0;
  uint64_t epoch = 0;
  int page_count = 0;
};
struct StageRefused {  // The stage knows a newer epoch.
  int member = 0;
  uint64_t epoch = 0;
  uint64_t newest_epoch = 0;
};
struct ReportHeard {  // On a member's work; the shell holds the message.
  int member = 0;
  uint64_t epoch = 0;
};
struct StageLinkEnded {  // Also for a message that made no sense.
  int member = 0;
  uint64_t epoch = 0;
  absl::Status status;  // Not OK.
};
struct ChainFailed {  // By stage 0, which is to blame if the status names no instance.
  absl::Status status;
};
struct WiringStopped {};  // Breaks, and wires no more.
struct WiringTick {
  uint64_t wall_clock_us = 0;
};
using WiringEvent =
    std::variant<MembersSeen, OwnEpochTried, GroupJoinHeard, GroupEntryHeard, GroupConnectedHeard,
                 OwnGroupFormed, StageHeard, StageReady, StageRefused, ReportHeard, StageLinkEnded,
                 ChainFailed, WiringStopped, WiringTick>;

// ---- Actions ----
struct TryOwnEpoch {  // Answered by OwnEpochTried before any other event.
  Hello hello;
};
struct OpenLinks {  // One to each member, beginning with hello.
  Hello hello;
  std::vector<worker::PeerWorker> members;  // From member 1 on, in order.
};
struct FormOwnGroup {  // Stage 0's own rank, with its stage's others; answered by OwnGroupFormed.
  Hello hello;
};
struct TellGroup {  // Over the member's link; member 0 is stage 0's own rank.
  int member = 0;
  Rendezvous::Message message;
};
struct PingStages {
  int64_t sequence = 0;
};
struct CloseLinks {};  // All of the epoch; what they still receive is ignored.
struct ReportChainUp {
  uint64_t epoch = 0;
  int page_count = 0;  // The smallest of all members.
};
struct ReportChainDown {  // The epoch that OwnEpochTried began is over.
  absl::Status status;
};
struct PassReport {  // That in hand counts: of a chain that is up.
  int stage = 0;
  int rank = 0;
  uint64_t epoch = 0;
};
// After a report of stage 1: tells stage 0's stage how far the next one is, as pings do elsewhere.
struct TellOwnStage {
  uint64_t epoch = 0;
};
using WiringAction =
    std::variant<TryOwnEpoch, OpenLinks, FormOwnGroup, TellGroup, PingStages, CloseLinks,
                 ReportChainUp, ReportChainDown, PassReport, TellOwnStage>;

class Wiring {
 public:
  explicit Wiring(WiringOptions options);
  Wiring(const Wiring&) = delete;
  Wiring& operator=(const Wiring&) = delete;

  void Handle(const WiringEvent& event, int64_t now_us, std::vector<WiringAction>& actions);
  // When a WiringTick is due; kNeverUs: not before something else happens.
  int64_t NextDeadlineUs() const;

  uint64_t epoch() const { return epoch_; }  // The newest that was begun; 0: none yet.
  bool up() const { return phase_ == Phase::kUp; }
  absl::Status CheckInvariants() const;  // For tests; defined in testing/.

 private:
  enum class Phase { kDown, kLinking, kUp, kStopped };
  struct Link {
    worker::PeerWorker member;
    bool ready = false;
    int page_count = 0;
    int64_t last_heard_us = 0;  // While the chain is up.
  };

  void Emit(WiringAction action) { actions_->push_back(std::move(action)); }

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

  bool wired() const { return phase_ == Phase::kLinking || phase_ == Phase::kUp; }
  bool whole() const { return !members_.empty() || options_.place.members() == 1; }
  Link* Find(int member, uint64_t of_epoch);
  Link* Hear(int member, uint64_t of_epoch);
  bool HearGroup(int member, uint64_t of_epoch);
  void TellGroups();
  void BecomeUpIfReady();
  void TryToWire(uint64_t wall_clock_us);
  void BecomeUp();
  void Watch();
  void Break(const absl::Status& reason);

  const WiringOptions options_;
  const ChainTimes& times_ = options_.times;
  Phase phase_ = Phase::kDown;
  std::vector<worker::PeerWorker> members_;  // Listed, from member 1 on, in order; whole or empty.
  std::vector<worker::PeerWorker> tried_;    // Members of the last epoch that was begun.
  std::vector<Link> links_;                  // In the current epoch; member i at i - 1.
  GroupRendezvous groups_{options_.place};
  bool own_ready_ = false;       // Stage 0's own rank.
  std::optional<Hello> trying_;  // Until stage 0 says whether it has begun.
  uint64_t epoch_ = 0;
  uint64_t newest_elsewhere_ = 0;  // Epoch that a stage has refused an older one for.
  int64_t retry_at_us_ = 0;
  int64_t backoff_us_ = 0;
  int64_t linking_since_us_ = 0;
  int64_t up_since_us_ = 0;
  bool worked_ = false;  // In this epoch.
  int64_t next_ping_us_ = 0;
  int64_t ping_sequence_ = 0;

  // For the event that is being handled.
  int64_t now_us_ = 0;
  std::vector<WiringAction>* actions_ = nullptr;
};

}  // namespace baton::links

#endif  // SERVICES_LINKS_CORE_WIRING_H_
