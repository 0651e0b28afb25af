#include "common/engine/torch/torch_device.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton {
namespace {

std::string WhatIsThere(int count) {
  if (count == 0) return "finds no GPU on this host";
  if (count == 1) return "finds cuda:0 alone on this host";
  return absl::StrCat("finds cuda:0 to cuda:", count - 1, " on this host");
}

}  // namespace

bool LibtorchHasCuda() { return c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA); }

absl::StatusOr<TorchDevice> TorchDevice::Open(const std::string& name) {
  const c10::Device asked(name);
  if (asked.is_cpu()) return TorchDevice(asked);
  if (!asked.is_cuda() || !LibtorchHasCuda()) {
    return absl::UnimplementedError(absl::StrCat(
        "asked for device ", name, "; libtorch ", TORCH_VERSION, " of this build computes on the ",
        LibtorchHasCuda() ? "CPU and on CUDA devices"
                          : "CPU alone: --config=cuda builds with CUDA"));
  }
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  const int count = cuda.deviceCount();
  const int index = asked.has_index() ? asked.index() : 0;
  if (index >= count) {
    return absl::FailedPreconditionError(absl::StrCat("asked for device ", name, "; libtorch ",
                                                      TORCH_VERSION, " with CUDA ",
                                                      WhatIsThere(count)));
  }
  TorchDevice device(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)));
  // Computation has a higher priority than copies.
  device.compute_ = cuda.getStreamFromGlobalPool(device.device_, /*isHighPriority=*/true);
  device.copy_ = cuda.getStreamFromGlobalPool(device.device_, /*isHighPriority=*/false);
  return device;
}

const c10::Stream& TorchDevice::StreamOf(Queue queue) const {
  BATON_CHECK(queue != Queue::kCommunication) << "a communicator has its own stream";
  return queue == Queue::kCompute ? *compute_ : *copy_;
}

TorchDevice::Entered::Entered(const TorchDevice& device, Queue queue) {
  if (!device.is_host()) guard_.reset_stream(device.StreamOf(queue));
}

void TorchDevice::Finish(Queue queue) const {
  if (!is_host()) StreamOf(queue).synchronize();
}

at::Tensor TorchDevice::AllocateStaging(size_t bytes) const {
  return at::empty({static_cast<int64_t>(bytes)},
                   at::TensorOptions(at::kByte).pinned_memory(!is_host()));
}

at::Tensor TorchDevice::Upload(const at::Tensor& staging) const {
  return is_host() ? staging : staging.to(device_, /*non_blocking=*/true);
}

at::Tensor TorchDevice::ToHost(const at::Tensor& tensor) const {
  if (is_host()) return tensor;
  const at::Tensor host =
      AllocateStaging(tensor.nbytes()).view(tensor.scalar_type()).view(tensor.sizes());
  host.copy_(tensor, /*non_blocking=*/true);
  Finish(Queue::kCompute);
  return host;
}

MemorySpan TorchDevice::StagingSpan(const at::Tensor& staging) const {
  return {static_cast<std::byte*>(staging.data_ptr()), staging.nbytes(),
          is_host() ? MemoryKind::kHost : MemoryKind::kPinned};
}

TensorView TorchDevice::Lend(const at::Tensor& tensor) const {
  const bool wide = tensor.scalar_type() == at::kFloat;
  BATON_CHECK(tensor.is_contiguous() && (wide || tensor.scalar_type() == at::kBFloat16))
      << tensor.toString();
  const MemorySpan span = {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes(),
                           is_host() ? MemoryKind::kHost : MemoryKind::kCuda,
                           is_host() ? 0 : device_.index()};
  const int64_t columns = tensor.size(-1);
  return {span, wide ? ElementType::kFloat32 : ElementType::kBFloat16, tensor.numel() / columns,
          columns};
}

}  // namespace baton
