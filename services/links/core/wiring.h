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
#include <memory>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/collective/rendezvous.h"
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
  ~Wiring();

  void Handle(const WiringEvent& event, int64_t now_us, std::vector<WiringAction>& actions);
  // When a WiringTick is due; kNeverUs: not before something else happens.
  int64_t NextDeadlineUs() const;

  uint64_t epoch() const;  // The newest that was begun; 0: none yet.
  bool up() const;
  absl::Status CheckInvariants() const;  // For tests; defined in testing/.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baton::links

#endif  // SERVICES_LINKS_CORE_WIRING_H_
