// One rank of an NCCL communicator, its stream and what runs on it. Built with --config=cuda alone.
//
// NCCL itself rather than c10d's ProcessGroupNCCL, with which libtorch wraps it: that one's
// watchdog ends the process where a rank is late or dead, connecting waits without a bound, and it
// keeps its words in the store under keys that grow, all of which would have to be turned off by
// the environment. What is left of it beside the calls below is stream order, which c10 has.
#ifndef COMMON_ENGINE_TORCH_DISTRIBUTED_NCCL_STREAM_H_
#define COMMON_ENGINE_TORCH_DISTRIBUTED_NCCL_STREAM_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <cstdint>
#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/collective/bootstrap_store.h"
#include "common/collective/communicator.h"
#include "common/collective/device_communicator.h"
#include "common/engine/torch/plugin_interface.h"

namespace baton {

class NcclStream final : public CollectiveStream {
 public:
  // On a device that is there. Throws what c10 throws.
  static absl::StatusOr<std::unique_ptr<NcclStream>> Connect(const GroupDescription& group,
                                                             c10::Device device,
                                                             const NcclOptions& options,
                                                             BootstrapStore& store);
  ~NcclStream() override;

  int device() const override { return device_.index(); }
  absl::StatusOr<Point> Mark() override;
  absl::Status Begin(const Collective& collective, const Point& point) override;
  absl::StatusOr<bool> OldestDone() override;
  void Abort() override;

 private:
  NcclStream(const GroupDescription& group, c10::Device device, int64_t operation_timeout_ms);

  // Waits until NCCL is no longer at what it was called for, or `deadline_us`; or `store` has
  // ended.
  absl::Status Settle(ncclResult_t called, int64_t deadline_us, BootstrapStore* store);
  absl::Status Launched(ncclResult_t called);
  absl::Status BeginOnStream(const Collective& collective);
  absl::Status SumAll(const Collective& collective);
  absl::Status SumParts(const Collective& collective);
  absl::Status Says(ncclResult_t result) const;

  const GroupDescription group_;
  const c10::Device device_;
  const int64_t operation_timeout_ms_;
  const c10::cuda::CUDAStream stream_;
  ncclComm_t communicator_ = nullptr;
  std::deque<c10::Event> ends_;  // Of what was begun, oldest first.
};

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_DISTRIBUTED_NCCL_STREAM_H_
