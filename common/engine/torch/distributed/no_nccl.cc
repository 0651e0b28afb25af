// ConnectNccl of a torch plugin without CUDA.
#include "absl/strings/str_cat.h"
#include "common/engine/torch/plugin_interface.h"

namespace baton {

absl::StatusOr<std::unique_ptr<Communicator>> ConnectNccl(
    const GroupDescription& group, const NcclOptions& options,
    std::shared_ptr<BootstrapStore> /*store*/) {
  return absl::UnimplementedError(absl::StrCat(
      group.Describe(group.rank), " asked for NCCL on device ", options.device,
      "; this build connects ranks by Gloo, on CPUs alone: --config=cuda builds with NCCL"));
}

}  // namespace baton
