// A communicator between processes: the core, a transport, and threads that wait for it.
//
// One thread per peer waits for its messages (Gloo can wait for one thing at a time), and one
// watches the clock. The thread that brings an event, a peer's thread or the submitting one, runs
// the core under a lock and sends the resulting frames at once. Rejected: an event loop that owns
// the core. Each layer waits for two all-reduces, so each hand-over between threads counts, and a
// submission that sends by itself has none. Work under the lock is short, a block's sum at most.
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
#include "common/collective/bootstrap_store.h"
#include "common/collective/collective_core.h"
#include "common/collective/communicator.h"
#include "common/collective/message_transport.h"

namespace baton {

class ThreadedCommunicator final : public Communicator {
 public:
  // `transport` must be connected to all ranks. Returns when every rank has confirmed that it is in
  // the same group. Otherwise the status of the disagreement, or DEADLINE_EXCEEDED, naming the
  // ranks that have not confirmed within `form_timeout_ms`, or why `store` has ended, if there is
  // one: the group is given up, and the other ranks may have left it before they connected.
  static absl::StatusOr<std::unique_ptr<ThreadedCommunicator>> Create(
      const GroupDescription& group, const collective::CoreOptions& options,
      std::unique_ptr<MessageTransport> transport, int64_t form_timeout_ms,
      BootstrapStore* store = nullptr);

  // Leaves the group if it has not ended, and waits at most 300 ms until every rank has been told:
  // a connection that is closed early can lose data that was sent. Then joins its threads. Not
  // within a completion.
  ~ThreadedCommunicator() override;

  void Submit(const Collective& collective, Done done) override;
  void Abort(absl::Status why) override;
  const GroupDescription& group() const override { return group_; }

 private:
  // The buffers between this rank and one other; the own rank's entry is empty.
  struct Link {
    std::vector<std::vector<std::byte>> receive_rooms;
    std::vector<std::vector<std::byte>> send_rooms;
    std::deque<size_t> posted;  // Indices of receive_rooms, in order.
    std::deque<size_t> kept;    // Those that the core still reads.
    uint64_t messages_sent = 0;
    uint64_t messages_out = 0;  // How many of them have left their buffers.
    bool broken = false;        // A send has failed.
  };
  enum class Phase { kForming, kFormed, kEnded, kQuiet };

  ThreadedCommunicator(const GroupDescription& group, const collective::CoreOptions& options,
                       std::unique_ptr<MessageTransport> transport);
  void Start();
  absl::Status AwaitFormed(int64_t timeout_ms, BootstrapStore* store);

  void ReceiveFrom(int peer);
  void WatchClock();
  // Handles everything that follows from an event, then runs the completions, unlocked.
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

  // A separate mutex: every unlocking of mutex_ would wake the threads that wait for a phase.
  Mutex phase_mutex_;
  Phase phase_ ABSL_GUARDED_BY(phase_mutex_) = Phase::kForming;
  bool stopping_ ABSL_GUARDED_BY(phase_mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace baton

#endif  // COMMON_COLLECTIVE_THREADED_COMMUNICATOR_H_
