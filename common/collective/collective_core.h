// One rank of a group: which collective is under way, what has to be sent to which rank, and which
// rank is at fault if there is no progress. A state machine without threads, clock or sockets. A
// shell passes it frames (frame.h) and the time, and takes frames and completions from it:
//
//   submit, offer, lost, tick, abort  ->  core  ->  NextFrame, TakeReleased, TakeCompletions
//
// After every event the shell calls NextFrame for each peer, until no peer has a frame. Tests run
// the core over the virtual network of testing/in_process_group.h, processes over Gloo.
//
// Flow control. A rank sends another at most `window_frames` data frames that have not been
// acknowledged as read. Every frame carries the number of frames that its sender has read; without
// a frame in that direction, a credit frame does. So a shell needs `window_frames` buffers to send
// to a peer and kControlFramesMax more to receive, and neither side ever waits for buffers.
//
// End. The first reason ends the group: every collective is done with it, each peer is sent one
// kAbort with the same message, and a peer that receives one ends too and forwards it. So all ranks
// report the same rank at fault, even those that only see an innocent survivor close its
// connection.
//
// Fault. If one rank stops in the middle of a collective, others get stuck behind it, and a third
// rank misses data from all of them. So a rank that has waited for 7/8 of the timeout asks the
// others which ranks they wait for. A rank that waits for another one is innocent; a rank that does
// not answer is not.
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

// Frames beyond the window that may lie unread between two ranks: a hello, two credits (each
// acknowledges half a window), a question, an answer and a farewell.
inline constexpr size_t kControlFramesMax = 6;

struct CoreOptions {
  CommunicatorOptions communicator;
  // The bytes of data in one frame; a multiple of 4, equal on all ranks. Large enough to make
  // system calls and wake-ups cheap compared with their copies, small enough for a sum to find its
  // block in the L2 cache. Times the window it is what is under way to a peer: 2 MiB saturate
  // loopback on a busy host (with 512 KiB Gloo took two to three times as long) and cost 7 MiB of
  // buffers per peer.
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

  // A message from `peer`, in order; it may be longer than the frame in it. True if the core keeps
  // reading it: the memory must then stay valid until TakeReleased counts it, oldest first.
  [[nodiscard]] bool Offer(int peer, std::span<const std::byte> message, int64_t now_us);
  // `peer` can neither send nor receive any more.
  void Lost(int peer, const absl::Status& why, int64_t now_us);
  void Tick(int64_t now_us);
  void Abort(absl::Status why);
  // Ends the group for this rank alone. The others complete what they have all data for, and fail
  // the rest.
  void Leave();

  // Writes the next message for `peer` into `room`; returns its bytes, or 0 if there is none now.
  size_t NextFrame(int peer, std::span<std::byte> room, int64_t now_us);
  // How many of the messages that Offer kept are no longer read, since the last call. After the end
  // of the group no message is read.
  size_t TakeReleased(int peer);
  // In the order of submission.
  std::vector<Completion> TakeCompletions();

  // When to call Tick; kNeverUs while nothing is under way.
  int64_t deadline_us() const { return !run_ ? kNeverUs : asked_ ? deadline_us_ : ask_at_us_; }
  // Whether every rank has confirmed that it is in the same group.
  bool formed() const;
  // The status with which to abort a group that has not formed in time. The rank at fault is one
  // that has not sent its hello.
  absl::Status Unformed(int64_t timeout_ms) const;
  // Why the group has ended; OK while it has not.
  const absl::Status& ended() const { return ended_; }
  // The group has ended, every rank has been told why, and this rank waits for no message.
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
    bool silent = false;  // It is lost, or has sent its farewell.
    bool ask_due = false;
    bool answer_due = false;
    bool asks = false;                  // Answered once this rank waits for data itself.
    std::optional<uint64_t> waits_for;  // Its answer: a set of ranks.
    std::optional<absl::Status> left;
    std::deque<Frame> offered;
    size_t released = 0;
    uint64_t frames_sent = 0;  // Data frames, like the three below.
    uint64_t frames_acknowledged = 0;
    uint64_t frames_read = 0;
    uint64_t frames_told = 0;
    uint64_t sends = 0;  // Started with this peer, like receives.
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
  // Ends the group if `peer` is at a collective that this rank has already finished.
  void CheckPassed(int peer);
  absl::Status Disagreement(const FrameHeader& own, int peer, const FrameHeader& theirs) const;

  FrameHeader NewHeader(FrameKind kind, int peer);
  size_t WriteData(int peer, std::span<std::byte> room);
  size_t WriteFarewell(int peer, std::span<std::byte> room);
  bool HasCredit(const Peer& peer) const;
  // The ranks that the current collective waits for.
  uint64_t Missing() const;
  // The ranks in Missing(), or that those wait for, that wait for no other rank.
  uint64_t Suspects() const;
  absl::Status Overdue() const;

  const GroupDescription group_;
  const CoreOptions options_;
  const uint64_t group_hash_;
  std::vector<Peer> peers_;  // By rank; this rank's own is not used.

  std::deque<Submitted> submitted_;  // The first is under way while `run_` is there.
  std::vector<Step> steps_;          // The first one's.
  size_t step_ = 0;
  std::unique_ptr<StepRun> run_;
  FrameHeader current_;  // The header of the first one's data frames.
  FrameHeader passed_;   // That of the last finished collective in which all ranks took part.
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
