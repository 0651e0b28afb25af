// A communicator between processes: the core, a transport, and threads that wait for it.
//
// One thread for each peer waits for its messages (Gloo can wait for one thing at a time), and one
// looks at the clock. Whoever brings something, a peer's thread or the one that submits, runs the
// core under a lock and sends what it says at once. Rejected: an event loop that owns the core. Two
// all-reduces a layer wait for each hand-over between threads, and a submission that sends by
// itself has none; what runs under the lock is short, a block's sum at most.
#ifndef COMMON_COLLECTIVE_THREADED_COMMUNICATOR_H_
#define COMMON_COLLECTIVE_THREADED_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "common/collective/collective_core.h"
#include "common/collective/communicator.h"
#include "common/collective/message_transport.h"

namespace baton {

class ThreadedCommunicator final : public Communicator {
 public:
  // Over a transport whose ranks are connected. Returns when every rank has said that it takes the
  // same for the group; the status of what is wrong with that, or DEADLINE_EXCEEDED with who has
  // not within `form_timeout_ms`.
  static absl::StatusOr<std::unique_ptr<ThreadedCommunicator>> Create(
      const GroupDescription& group, const collective::CoreOptions& options,
      std::unique_ptr<MessageTransport> transport, int64_t form_timeout_ms);

  // Leaves the group if it has not ended, waits (at most 300 ms) until every rank has heard the
  // end, since a connection that closes early can take what it carried with it, and joins. Not on a
  // completion.
  ~ThreadedCommunicator() override;

  void Submit(const Collective& collective, Done done) override;
  void Abort(absl::Status why) override;
  const GroupDescription& group() const override { return group_; }

 private:
  // What lies between this rank and one other; no entry for itself.
  struct Link {
    std::vector<std::vector<std::byte>> receive_rooms;
    std::vector<std::vector<std::byte>> send_rooms;
    std::deque<size_t> posted;  // Of receive_rooms, in order.
    std::deque<size_t> kept;    // By the core.
    uint64_t messages_sent = 0;
    uint64_t messages_out = 0;  // Of them, those that are out of their rooms.
    bool broken = false;        // By a send.
  };
  enum class Phase { kForming, kFormed, kEnded, kQuiet };

  ThreadedCommunicator(const GroupDescription& group, const collective::CoreOptions& options,
                       std::unique_ptr<MessageTransport> transport);
  void Start();
  absl::Status AwaitFormed(int64_t timeout_ms);

  void ReceiveFrom(int peer);
  void WatchClock();
  // Everything that follows from an event, and then the completions, unlocked.
  void Settle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool SendSome() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SendOne(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Post(int peer, size_t room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PostRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Lose(int peer, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Complete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ShowPhase() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const GroupDescription group_;
  std::unique_ptr<MessageTransport> transport_;
  const int64_t clock_period_us_;

  Mutex mutex_;
  collective::CollectiveCore core_ ABSL_GUARDED_BY(mutex_);
  std::vector<Link> links_ ABSL_GUARDED_BY(mutex_);
  bool completing_ ABSL_GUARDED_BY(mutex_) = false;

  // Apart from mutex_, whose every unlocking would wake who waits here.
  Mutex phase_mutex_;
  Phase phase_ ABSL_GUARDED_BY(phase_mutex_) = Phase::kForming;
  bool stopping_ ABSL_GUARDED_BY(phase_mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace baton

#endif  // COMMON_COLLECTIVE_THREADED_COMMUNICATOR_H_
