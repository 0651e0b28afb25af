// The device that holds a stage model's tensors, and its queues: streams on a GPU; on a CPU the
// calling thread computes and there are none. It uses only the parts of libtorch that exist for
// every device, so CUDA's headers are not needed. Part of the plugin (README.md).
#ifndef COMMON_ENGINE_TORCH_TORCH_DEVICE_H_
#define COMMON_ENGINE_TORCH_TORCH_DEVICE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/memory.h"
#include "common/device/queue.h"

namespace baton {

// Whether this build's libtorch supports CUDA, even if there is no GPU.
bool LibtorchHasCuda();

class TorchDevice {
 public:
  // "cpu", "cuda" (the first) or "cuda:N". UNIMPLEMENTED if this libtorch supports the CPU alone,
  // FAILED_PRECONDITION if this host has no such device; both say what was asked for and what is
  // there. Throws what torch throws for a malformed name.
  static absl::StatusOr<TorchDevice> Open(const std::string& name);

  const c10::Device& device() const { return device_; }
  bool is_host() const { return device_.is_cpu(); }

  // While it exists, this thread's work goes to a queue.
  class Entered {
   public:
    Entered(const TorchDevice& device, Queue queue);

   private:
    c10::OptionalStreamGuard guard_;
  };
  [[nodiscard]] Entered Enter(Queue queue) const { return Entered(*this, queue); }
  // Returns when all work of the queue is done.
  void Finish(Queue queue) const;

  // Uninitialised host memory; pinned if the device is a GPU.
  at::Tensor AllocateStaging(size_t bytes) const;
  // Staging memory on the device, in order with the current queue's work; the host does not wait.
  // It must stay until that queue is done. The tensor itself if the device is a CPU.
  at::Tensor Upload(const at::Tensor& staging) const;
  // The same of `numbers`, which need not stay: their staging memory goes back to libtorch's pool,
  // which waits for copies from it.
  template <typename Number>
  at::Tensor UploadNumbers(const std::vector<Number>& numbers) const {
    const at::Tensor staging = AllocateStaging(numbers.size() * sizeof(Number))
                                   .view(c10::CppTypeToScalarType<Number>::value);
    std::copy(numbers.begin(), numbers.end(), staging.data_ptr<Number>());
    return Upload(staging);
  }
  // The tensor, computed by the queue of steps, where the host can read it; waits for that queue.
  at::Tensor ToHost(const at::Tensor& tensor) const;
  // The memory of such a tensor, for code without torch.
  MemorySpan StagingSpan(const at::Tensor& staging) const;
  // A view, for a communicator, of a contiguous float32 or bfloat16 tensor on this device.
  TensorView Lend(const at::Tensor& tensor) const;

 private:
  explicit TorchDevice(c10::Device device) : device_(device) {}
  const c10::Stream& StreamOf(Queue queue) const;

  c10::Device device_;
  // Set on a GPU only. Collectives use their communicator's stream.
  std::optional<c10::Stream> compute_;
  std::optional<c10::Stream> copy_;
};

// Calls `body`, which returns a Status or StatusOr, and turns what torch throws into statuses. Like
// GuardLibraries (common/engine/stage_model.h), but it recognizes torch's out-of-memory errors.
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
