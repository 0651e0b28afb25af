// The device that a stage model's tensors lie on, and its queues: streams on a GPU, nothing on a
// CPU, where whoever calls computes. Written with what libtorch has for every device, so that none
// of CUDA's headers is needed. Part of the plugin (README.md).
#ifndef COMMON_ENGINE_TORCH_TORCH_DEVICE_H_
#define COMMON_ENGINE_TORCH_TORCH_DEVICE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <exception>
#include <new>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/memory.h"
#include "common/device/queue.h"

namespace baton {

// Whether this build's libtorch has CUDA, be there a GPU or not.
bool LibtorchHasCuda();

class TorchDevice {
 public:
  // "cpu", "cuda" (the first) or "cuda:N". UNIMPLEMENTED where this libtorch computes on the CPU
  // alone, FAILED_PRECONDITION where this host has no such device; both say what was asked for and
  // what is there. Throws what torch throws for the name of no device.
  static absl::StatusOr<TorchDevice> Open(const std::string& name);

  const c10::Device& device() const { return device_; }
  bool is_host() const { return device_.is_cpu(); }

  // While it lives, this thread's work goes to a queue.
  class Entered {
   public:
    Entered(const TorchDevice& device, Queue queue);

   private:
    c10::OptionalStreamGuard guard_;
  };
  [[nodiscard]] Entered Enter(Queue queue) const { return Entered(*this, queue); }
  // Returns when all work of the queue is done.
  void Finish(Queue queue) const;

  // Bytes of host memory, uninitialised: pinned, where a device copies from and to it.
  at::Tensor AllocateStaging(size_t bytes) const;
  // What such a tensor is to others.
  MemorySpan StagingSpan(const at::Tensor& staging) const;
  // What a contiguous matrix or stack of them on this device, of float32 or bfloat16, is to a
  // communicator.
  TensorView Lend(const at::Tensor& tensor) const;

 private:
  explicit TorchDevice(c10::Device device) : device_(device) {}
  const c10::Stream& StreamOf(Queue queue) const;

  c10::Device device_;
  // Of a GPU. Collectives have their communicator's.
  std::optional<c10::Stream> compute_;
  std::optional<c10::Stream> copy_;
};

// Calls `body`, which returns a Status or StatusOr, and makes statuses of what torch throws: as
// GuardLibraries (common/engine/guard.h), which does not know torch's words for memory.
template <typename Body>
auto GuardTorch(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return absl::InternalError(error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the executor is out of memory");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_TORCH_DEVICE_H_
