// A member's side of its chain: accepts an epoch from stage 0, begins it when its own work of the
// last one is over and its neighbours are connected, is ready when its stage's ranks, if it has
// several, have formed a group, and drops it when stage 0 is lost or silent. One link at a time; a
// newer epoch replaces the old one.
#ifndef SERVICES_LINKS_CORE_LINK_H_
#define SERVICES_LINKS_CORE_LINK_H_

#include <cstdint>
#include <utility>
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
  explicit Link(ChainPlace place, const ChainTimes& times = {})
      : place_(std::move(place)), times_(times) {}

  void Handle(const LinkEvent& event, int64_t now_us, std::vector<LinkAction>& actions);
  // When a LinkTick is due; kNeverUs: not before something else happens.
  int64_t NextDeadlineUs() const;

  // The link that stands; 0: none does. What comes on another one is not for this stage.
  uint64_t standing() const { return link_; }
  bool Stands(uint64_t link) const { return link != 0 && link == link_; }
  bool begun() const { return begun_; }          // EpochTried has begun it.
  const Hello& hello() const { return hello_; }  // The current link's.

 private:
  void Emit(LinkAction action) { actions_->push_back(std::move(action)); }
  void On(const HelloArrived& event);
  void On(const PingHeard& event);
  void On(const WorkHeard& event);
  void On(const LinkGone& event);
  void On(const EpochTried& event);
  void On(const GroupFormed& event);
  void On(const StageFailed& event) { End(event.status); }
  void On(const LinkTick& event);
  absl::Status CheckStage0(const InstanceRef& claimant) const;
  void Try();
  void End(const absl::Status& status);

  const ChainPlace place_;
  const ChainTimes times_;
  uint64_t link_ = 0;
  Hello hello_;
  bool begun_ = false;
  bool forming_ = false;  // Begun, and its group has not formed.
  bool trying_ = false;
  uint64_t newest_epoch_ = 0;
  int64_t begin_by_us_ = 0;
  int64_t retry_at_us_ = 0;
  int64_t last_heard_us_ = 0;
  // For the event that is being handled.
  int64_t now_us_ = 0;
  std::vector<LinkAction>* actions_ = nullptr;
};

}  // namespace baton::links

#endif  // SERVICES_LINKS_CORE_LINK_H_
