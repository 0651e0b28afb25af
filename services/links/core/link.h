// A member's side of its chain: accepts an epoch from stage 0, begins it when its own work of the
// last one is over and its neighbours are connected, is ready when its stage's ranks, if it has
// several, have formed a group, and drops it when stage 0 is lost or silent. One link at a time; a
// newer epoch replaces the old one.
#ifndef SERVICES_LINKS_CORE_LINK_H_
#define SERVICES_LINKS_CORE_LINK_H_

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "services/links/core/hello.h"

namespace baton::links {

// ---- Events. `link` is the shell's number of a stream, never 0. ----
struct HelloArrived {
  uint64_t link = 0;
  Hello hello;
};
struct PingHeard {
  uint64_t link = 0;
  int64_t sequence = 0;
  uint64_t next_stage_done = 0;  // Plans, as stage 0 knows.
};
struct WorkHeard {  // The shell has it in hand.
  uint64_t link = 0;
  uint64_t epoch = 0;   // The work's.
  absl::Status status;  // Not OK: it makes no sense.
};
struct LinkGone {  // Stage 0 has ended the stream, or it broke.
  uint64_t link = 0;
};
struct EpochTried {  // The answer to TryEpoch: the stage has begun, or can't yet.
  absl::Status status;
};
// The answer to FormGroup: this rank is in its stage's group, or never will be in this epoch.
struct GroupFormed {
  uint64_t epoch = 0;
  absl::Status status;
};
struct StageFailed {  // Ends the epoch, whether it has begun or not.
  absl::Status status;
};
struct LinkTick {};
using LinkEvent = std::variant<HelloArrived, PingHeard, WorkHeard, LinkGone, EpochTried,
                               GroupFormed, StageFailed, LinkTick>;

// ---- Actions ----
struct TryEpoch {  // Answered by EpochTried before any other event.
  Hello hello;
};
struct FormGroup {  // With the other ranks of this stage; answered by one GroupFormed.
  uint64_t link = 0;
  Hello hello;
};
struct SendReady {
  uint64_t link = 0;
  uint64_t epoch = 0;
};
struct SendPong {
  uint64_t link = 0;
  int64_t sequence = 0;
};
struct TakeWork {};  // That in hand: the member is to have it.
struct PassNextStageDone {
  uint64_t epoch = 0;
  uint64_t number = 0;
};
struct DropEpoch {   // One that EpochTried began: what runs of it is of no use.
  absl::Status why;  // CANCELLED, with what ended it: the leader decides who is to blame.
};
struct RefuseLink {
  uint64_t link = 0;
  uint64_t epoch = 0;         // From its hello.
  uint64_t newest_epoch = 0;  // If the hello's epoch is too old; else 0.
  absl::Status status;
};
struct EndLink {
  uint64_t link = 0;
  uint64_t epoch = 0;
  absl::Status status;
};
using LinkAction = std::variant<TryEpoch, FormGroup, SendReady, SendPong, TakeWork,
                                PassNextStageDone, DropEpoch, RefuseLink, EndLink>;

class Link {
 public:
  explicit Link(ChainPlace place, const ChainTimes& times = {});
  ~Link();

  void Handle(const LinkEvent& event, int64_t now_us, std::vector<LinkAction>& actions);
  // When a LinkTick is due; kNeverUs: not before something else happens.
  int64_t NextDeadlineUs() const;

  // The link that stands; 0: none does. What comes on another one is not for this stage.
  uint64_t standing() const;
  bool Stands(uint64_t link) const { return link != 0 && link == standing(); }
  bool begun() const;          // EpochTried has begun it.
  const Hello& hello() const;  // The current link's.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baton::links

#endif  // SERVICES_LINKS_CORE_LINK_H_
