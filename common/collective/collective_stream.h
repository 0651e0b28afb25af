// Collectives of a library that runs them on a device, such as NCCL: what a DeviceCommunicator
// needs of it. NCCL's is nccl/, in the torch plugin.
#ifndef COMMON_COLLECTIVE_COLLECTIVE_STREAM_H_
#define COMMON_COLLECTIVE_COLLECTIVE_STREAM_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

}  // namespace baton

#endif  // COMMON_COLLECTIVE_COLLECTIVE_STREAM_H_
