// A communicator for ranks whose tensors are on GPUs: a library's collectives (CollectiveStream),
// and one thread that starts them in order, waits for their ends and watches the clock.
//
// It differs from communicator.h, since the library does the exchange. It can't tell ranks that
// disagree from ranks that are late, so both end with the deadline. A rank that ends the group
// tells no other rank: each ends by its own deadline or by the library's error, and no rank is
// named as at fault (RankOf). A chain still learns of the end, from the first rank whose step
// fails.
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

// A library's collectives on a device, such as NCCL's (common/engine/torch/distributed), as a
// DeviceCommunicator needs them. All calls but Mark come from one thread. The ranks of the group
// are connected.
class CollectiveStream {
 public:
  using Point = std::shared_ptr<const void>;

  // Leaves the group. All started collectives are done or have been aborted.
  virtual ~CollectiveStream() = default;

  // The CUDA device that holds its tensors.
  virtual int device() const = 0;

  // Called on the submitting thread. Marks the end of all work that this thread has given the
  // device.
  virtual absl::StatusOr<Point> Mark() = 0;
  // Starts a collective that has passed ValidateCollective, after `point` and after all collectives
  // started before. It waits for other ranks no longer than the group's operation timeout.
  virtual absl::Status Begin(const Collective& collective, const Point& point) = 0;
  // Whether the oldest collective that has not been reported as done is done. An error ends the
  // group.
  virtual absl::StatusOr<bool> OldestDone() = 0;
  // Ends all started collectives. Returns when they no longer access a tensor. No call follows.
  virtual void Abort() = 0;
};

class DeviceCommunicator final : public Communicator {
 public:
  // ValidateGroup's errors.
  static absl::StatusOr<std::unique_ptr<DeviceCommunicator>> Create(
      const GroupDescription& group, const CommunicatorOptions& options,
      std::unique_ptr<CollectiveStream> stream);
  // Ends what is pending with CANCELLED. Not within a completion.
  ~DeviceCommunicator() override;

  // Views must be in memory of the stream's device. Runs after all work that the calling thread has
  // given the device before; later work has to wait for `done`.
  void Submit(const Collective& collective, Done done) override;
  // Returns when everything pending is done, unless a completion calls it.
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
  // Starts submitted collectives and checks for ends; the status that has ended the group, if any.
  absl::Status Advance();
  absl::Status BeginSubmitted();
  absl::Status CompleteDone();
  absl::Status CheckDeadline() const;
  // Completes everything pending with the status that has ended the group.
  void FailAll();
  void Finish(Submitted submitted, const absl::Status& status);

  const GroupDescription group_;
  const CommunicatorOptions options_;
  const int device_;
  // The thread's, except for Mark. begun_ has the started collectives, oldest first;
  // first_since_us_ is when the first one became the oldest.
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
