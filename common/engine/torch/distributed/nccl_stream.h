// One rank of an NCCL communicator, its stream and the collectives on it. Built with --config=cuda
// alone.
//
// It calls NCCL directly. Rejected: libtorch's wrapper, c10d's ProcessGroupNCCL. Its watchdog ends
// the process when a rank is late or dead, its connecting waits without a bound, and it leaves a
// growing number of keys in the store; environment variables would have to turn all of that off.
// Only stream order would remain, and c10 has that.
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
  // `device` must exist. Throws what c10 throws.
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

  // Waits until NCCL has finished the call that returned `called`, until `deadline_us`, or until
  // `store` has ended.
  absl::Status Settle(ncclResult_t called, int64_t deadline_us, BootstrapStore* store);
  absl::Status Launched(ncclResult_t called);
  absl::Status BeginOnStream(const Collective& collective);
  absl::Status SumAll(const Collective& collective);
  absl::Status Says(ncclResult_t result) const;

  const GroupDescription group_;
  const c10::Device device_;
  const int64_t operation_timeout_ms_;
  const c10::cuda::CUDAStream stream_;
  ncclComm_t communicator_ = nullptr;
  std::deque<c10::Event> ends_;  // The ends of started collectives, oldest first.
};

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_DISTRIBUTED_NCCL_STREAM_H_
