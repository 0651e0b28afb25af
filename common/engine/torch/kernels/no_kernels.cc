#include "common/engine/torch/kernels/device_kernels.h"

namespace baton {

std::unique_ptr<DeviceKernels> CreateDeviceKernels(const TorchDevice& /*device*/,
                                                   const KernelShape& /*shape*/) {
  return nullptr;
}

}  // namespace baton
