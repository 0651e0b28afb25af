// One rank of a group: which collective is under way, what has to be said to whom, who is blamed
// when it does not go on. A state machine without threads, clock or sockets; a shell brings it
// frames (frame.h) and the time, and takes frames and completions away:
//
//   submit, offer, lost, tick, abort  ->  core  ->  NextFrame, TakeReleased, TakeCompletions
//
// After every event, and until nothing moves any more, the shell asks NextFrame for each peer.
// Tests and simulation run it over the virtual network of in_process_group.h, processes over Gloo.
//
// Flow. A rank sends another at most `window_frames` data frames that it does not know to be read;
// every frame carries how many the sender has read, and a frame of its own does where none goes
// that way. So a shell has `window_frames` buffers for what it sends to a peer and
// kControlFramesMax more for what it receives, and neither ever waits for room.
//
// Ends. The first reason ends the group: every collective is done with it, each peer gets one
// kAbort with the same words, and a peer that gets one ends in turn and passes it on. So all blame
// the same rank, even those that see no more than an innocent survivor closing its connection.
//
// Blame. Behind one rank that stands still in the middle of a collective others get stuck, and a
// third misses data from all of them. So who has waited for 7/8 of its time asks the others whom
// they wait for: who waits for somebody else is innocent, who does not answer is not.
#ifndef COMMON_COLLECTIVE_COLLECTIVE_CORE_H_
#define COMMON_COLLECTIVE_COLLECTIVE_CORE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/collective/communicator.h"
#include "common/collective/exchange.h"
#include "common/collective/frame.h"

namespace baton::collective {

// Frames beyond the window that may lie unread between two ranks: a hello, two credits (each tells
// of half a window), a question, an answer and a farewell.
inline constexpr size_t kControlFramesMax = 6;

struct CoreOptions {
  CommunicatorOptions communicator;
  // Of data in one frame, a multiple of 4, equal on all ranks: large enough to make system calls
  // and wakings cheap beside their copies, small enough for a sum to find its block in the L2
  // cache. With the window, what is under way to a peer: 2 MiB keep loopback on a busy host busy
  // (Gloo took two to three times as long with 512 KiB), and cost 7 MiB of buffers a peer.
  size_t block_bytes = size_t{256} << 10;
  size_t window_frames = 8;
};

class CollectiveCore {
 public:
  struct Completion {
    Communicator::Done done;
    absl::Status status;
  };

  // `group` must be valid.
  CollectiveCore(GroupDescription group, CoreOptions options);

  // The largest frame, and so the size of a shell's buffers.
  size_t frame_bytes_max() const;

  void Submit(const Collective& collective, Communicator::Done done, int64_t now_us);

  // A message of `peer`'s, in its order. True if the core goes on reading it: the memory must stay
  // until TakeReleased counts it, oldest first. It may be longer than the frame in it.
  [[nodiscard]] bool Offer(int peer, std::span<const std::byte> message, int64_t now_us);
  // Nothing comes from `peer` any more, nor reaches it.
  void Lost(int peer, const absl::Status& why, int64_t now_us);
  void Tick(int64_t now_us);
  void Abort(absl::Status why);
  // Ends the group for this rank alone: the others go on with what they have from it, and fail with
  // what they have not.
  void Leave();

  // Writes the next message for `peer` into `room`; 0 if there is none now.
  size_t NextFrame(int peer, std::span<std::byte> room, int64_t now_us);
  // How many of the messages that Offer kept are not read any more since the last call. None is
  // once the group has ended.
  size_t TakeReleased(int peer);
  // In the order of their submission.
  std::vector<Completion> TakeCompletions();

  // When to call Tick; kNeverUs while nothing is under way.
  int64_t deadline_us() const { return !run_ ? kNeverUs : asked_ ? deadline_us_ : ask_at_us_; }
  // Every rank has said that it takes the same for the group.
  bool formed() const;
  // What to abort a group with that has not formed in time: it blames who has not said hello.
  absl::Status Unformed(int64_t timeout_ms) const;
  // Why the group has ended; OK while it has not.
  const absl::Status& ended() const { return ended_; }
  // Ended, everybody has heard why, and nobody here waits for anybody's word.
  bool quiet() const;
  const GroupDescription& group() const { return group_; }

 private:
  struct Submitted {
    Collective collective;
    Communicator::Done done;
  };
  struct Peer {
    bool hello_sent = false;
    bool hello_seen = false;
    bool farewell_sent = false;
    bool silent = false;  // It is lost, or has said its last.
    bool ask_due = false;
    bool answer_due = false;
    bool asks = false;                  // Answered once this rank waits for something itself.
    std::optional<uint64_t> waits_for;  // Its answer, as a set of ranks.
    std::optional<absl::Status> left;
    std::deque<Frame> offered;
    size_t released = 0;
    uint64_t frames_sent = 0;  // Of data, like those below.
    uint64_t frames_acknowledged = 0;
    uint64_t frames_read = 0;
    uint64_t frames_told = 0;
    uint64_t sends = 0;  // Begun to this peer.
    uint64_t receives = 0;
  };

  bool has_ended() const { return !ended_.ok(); }
  void End(absl::Status why, FrameKind farewell);
  void Fail(absl::Status why) { End(std::move(why), FrameKind::kAbort); }

  void TakeHello(int peer, const Frame& frame);
  void TakeFarewell(int peer, const Frame& frame);
  bool TakeFrame(int peer, const Frame& frame);

  void Advance(int64_t now_us);
  void BeginNext(int64_t now_us);
  void RestartWaiting(int64_t now_us);
  bool TakeOffered();
  void TakeData(int peer);
  void FinishFirst();
  // Ends the group if `peer` means something that this rank has behind it.
  void CheckPassed(int peer);
  absl::Status Disagreement(const FrameHeader& own, int peer, const FrameHeader& theirs) const;

  FrameHeader NewHeader(FrameKind kind, int peer);
  size_t WriteData(int peer, std::span<std::byte> room);
  size_t WriteFarewell(int peer, std::span<std::byte> room);
  bool HasCredit(const Peer& peer) const;
  // The ranks that the collective under way waits for.
  uint64_t Missing() const;
  // Those of them, or behind them, who wait for nobody else.
  uint64_t Suspects() const;
  absl::Status Overdue() const;

  const GroupDescription group_;
  const CoreOptions options_;
  const uint64_t group_hash_;
  std::vector<Peer> peers_;  // By rank; this rank's own is not used.

  std::deque<Submitted> submitted_;  // The first is under way while `run_` is there.
  std::vector<Step> steps_;          // Of the first.
  size_t step_ = 0;
  std::unique_ptr<StepRun> run_;
  FrameHeader current_;  // Of the first: what its data frames say.
  FrameHeader passed_;   // Of the last of all ranks' that is done.
  uint64_t collectives_begun_ = 0;
  int64_t ask_at_us_ = kNeverUs;
  int64_t deadline_us_ = kNeverUs;
  bool asked_ = false;

  std::vector<Completion> completions_;
  absl::Status ended_;
  FrameKind farewell_ = FrameKind::kAbort;
};

}  // namespace baton::collective

#endif  // COMMON_COLLECTIVE_COLLECTIVE_CORE_H_
