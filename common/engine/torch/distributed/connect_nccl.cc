// ConnectNccl of a torch plugin with CUDA.
#include <utility>

#include "common/base/status.h"
#include "common/collective/device_communicator.h"
#include "common/engine/torch/distributed/nccl_stream.h"
#include "common/engine/torch/plugin_interface.h"
#include "common/engine/torch/torch_device.h"

namespace baton {
namespace {

// Turns what c10 throws into a status.
class GuardedStream final : public CollectiveStream {
 public:
  explicit GuardedStream(std::unique_ptr<NcclStream> stream) : stream_(std::move(stream)) {}

  int device() const override { return stream_->device(); }
  absl::StatusOr<Point> Mark() override {
    return GuardTorch([&] { return stream_->Mark(); });
  }
  absl::Status Begin(const Collective& collective, const Point& point) override {
    return GuardTorch([&] { return stream_->Begin(collective, point); });
  }
  absl::StatusOr<bool> OldestDone() override {
    return GuardTorch([&] { return stream_->OldestDone(); });
  }
  void Abort() override {
    GuardTorch([&] {
      stream_->Abort();
      return absl::OkStatus();
    }).IgnoreError();  // A device that has failed accesses nothing.
  }

 private:
  const std::unique_ptr<NcclStream> stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> ConnectNccl(const GroupDescription& group,
                                                          const NcclOptions& options,
                                                          std::shared_ptr<BootstrapStore> store) {
  BATON_RETURN_IF_ERROR(ValidateGroup(group));
  return GuardTorch([&]() -> absl::StatusOr<std::unique_ptr<Communicator>> {
    const absl::StatusOr<TorchDevice> device = TorchDevice::Open(options.device);
    if (!device.ok()) {
      return Annotate(device.status(), absl::StrCat("NCCL for ", group.Describe(group.rank)));
    }
    if (device->is_host()) {
      return absl::InvalidArgumentError("NCCL is between GPUs, and device cpu is none");
    }
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<NcclStream> stream,
                           NcclStream::Connect(group, device->device(), options, *store));
    return DeviceCommunicator::Create(group, options.communicator,
                                      std::make_unique<GuardedStream>(std::move(stream)));
  });
}

}  // namespace baton
