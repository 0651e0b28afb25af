// A communicator of ranks whose tensors are on GPUs: a library's collectives (collective_stream.h),
// and one thread that begins them in their order, looks for their ends and at the clock.
//
// What differs from communicator.h, since the library does the exchanging: ranks that disagree are
// not told from ranks that are late, so both end with the deadline; and who ends a group tells no
// other rank, each of which comes to its own end by its own deadline or the library's word, and
// blames nobody (RankOf). A chain hears of it all the same, by the first rank whose step fails.
#ifndef COMMON_COLLECTIVE_DEVICE_COMMUNICATOR_H_
#define COMMON_COLLECTIVE_DEVICE_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "common/collective/communicator.h"

namespace baton {

// One thread, but for Mark. The ranks of a group are connected.
class CollectiveStream {
 public:
  using Point = std::shared_ptr<const void>;

  // Leaves the group. What was begun is done, or has been aborted.
  virtual ~CollectiveStream() = default;

  // Which of the host's CUDA devices its tensors are on.
  virtual int device() const = 0;

  // On the thread that submits: the point behind all that it has given the device to do.
  virtual absl::StatusOr<Point> Mark() = 0;
  // Begins a collective that ValidateCollective has let through, behind `point` and all that were
  // begun before. Does not wait for other ranks for longer than the group's operations may take.
  virtual absl::Status Begin(const Collective& collective, const Point& point) = 0;
  // Whether the oldest that was begun, and of which this was not true yet, is done. An error is
  // the group's end.
  virtual absl::StatusOr<bool> OldestDone() = 0;
  // Ends what was begun; returns when nothing of it touches a tensor any more. Nothing follows.
  virtual void Abort() = 0;
};

class DeviceCommunicator final : public Communicator {
 public:
  // ValidateGroup's errors.
  static absl::StatusOr<std::unique_ptr<DeviceCommunicator>> Create(
      const GroupDescription& group, const CommunicatorOptions& options,
      std::unique_ptr<CollectiveStream> stream);
  // Ends what is pending with CANCELLED. Not on a completion.
  ~DeviceCommunicator() override;

  // Views are in memory of the stream's device. Ordered behind what the calling thread has given
  // the device to do before; what it gives later has to wait for `done`.
  void Submit(const Collective& collective, Done done) override;
  // Returns when whatever was pending is done, unless it is called by a completion.
  void Abort(absl::Status why) override;
  const GroupDescription& group() const override { return group_; }

 private:
  struct Submitted {
    Collective collective;
    CollectiveStream::Point point;
    Done done;
    uint64_t number = 0;
  };

  DeviceCommunicator(const GroupDescription& group, const CommunicatorOptions& options,
                     std::unique_ptr<CollectiveStream> stream);
  absl::Status Take(const Collective& collective, Done& done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();
  // Begins what has been submitted and looks for ends; the group's end if it has come.
  absl::Status Advance();
  absl::Status BeginSubmitted();
  absl::Status CompleteDone();
  absl::Status CheckDeadline() const;
  // Everything that is pending is done with what has ended the group.
  void FailAll();
  void Finish(Submitted submitted, const absl::Status& status);

  const GroupDescription group_;
  const CommunicatorOptions options_;
  const int device_;
  // The thread's, but for Mark; and its collectives, oldest first, and since when the first is it.
  const std::unique_ptr<CollectiveStream> stream_;
  std::deque<Submitted> begun_;
  int64_t first_since_us_ = 0;

  Mutex mutex_;
  std::deque<Submitted> submitted_ ABSL_GUARDED_BY(mutex_);
  uint64_t submissions_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t pending_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace baton

#endif  // COMMON_COLLECTIVE_DEVICE_COMMUNICATOR_H_
