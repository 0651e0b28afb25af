// Baton's own kernels for a GPU, and graphs of steps: what saves a GPU's step most of its launches
// and of its reads and writes between products. A build without CUDA has none, and a model or GPU
// that they don't fit is computed by libtorch's operators alone. Part of the plugin (README.md).
#ifndef COMMON_ENGINE_TORCH_KERNELS_DEVICE_KERNELS_H_
#define COMMON_ENGINE_TORCH_KERNELS_DEVICE_KERNELS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "common/engine/torch/torch_device.h"

namespace baton {

// What kernels are compiled for: the heads of one rank.
struct KernelShape {
  int64_t head_dim = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t page_size = 0;
};

// Single tokens, each of a sequence of its own: int64, on the device.
struct PagedRows {
  at::Tensor lengths;  // [rows] Keys that a row sees, its own included; 0: none.
  at::Tensor starts;   // [rows] Where its pages are in `ids`.
  at::Tensor ids;      // Pages of all rows.
};

// Work that was captured, on the device. Its tensors stay where they are.
class StepGraph {
 public:
  virtual ~StepGraph() = default;
  // In order with the current queue's work.
  virtual void Replay() = 0;
};

// A point in a queue's work.
class QueuePoint {
 public:
  virtual ~QueuePoint() = default;
  // Returns when the work before it is done. Any thread that has entered the device. Throws what
  // the work has thrown.
  virtual void Await() = 0;
};

// Called by the thread that computes, in the queue that computes. All tensors are contiguous
// bfloat16 on the device unless their description says otherwise. Throws what torch throws.
class DeviceKernels {
 public:
  struct Normed {
    at::Tensor sum;     // x + added, as x.
    at::Tensor normed;  // As x.
  };
  struct Heads {
    at::Tensor query;  // [tokens, heads, head_dim]
    at::Tensor key;    // [tokens, kv_heads, head_dim]
  };
  // Weights of q and k norms are undefined for a model that has none.
  struct Placing {
    at::Tensor q_norm, k_norm;
    double eps = 0;
    at::Tensor cos, sin;                // [tokens, 1, head_dim / 2]
    at::Tensor page, slot;              // [tokens] int64; nothing is stored for a negative page.
    at::Tensor key_pages, value_pages;  // [pages, kv_heads, page_size, head_dim], pages strided.
  };
  // A part of a chunk's attention, or what some parts give together.
  struct Part {
    at::Tensor output;   // [tokens, heads, head_dim]; several together are float32.
    at::Tensor log_sum;  // [heads, tokens] float32
  };

  virtual ~DeviceKernels() = default;

  // Whether the kernels for heads fit this model: PlaceHeads, AttendPages and Merge may be called.
  virtual bool fits_heads() const = 0;
  // Whether cuDNN computes attention on this GPU.
  virtual bool has_cudnn() const = 0;
  // Whether libtorch's grouped products have a kernel for this GPU; they wait for the host, else.
  virtual bool has_grouped_products() const = 0;

  // RMSNorm over the last dimension, whose size is a multiple of 8. `added` may be undefined.
  virtual Normed AddNorm(const at::Tensor& x, const at::Tensor& added, const at::Tensor& weight,
                         double eps) const = 0;
  // silu(gate) * up of [rows, 2 * columns], columns a multiple of 8.
  virtual at::Tensor Gate(const at::Tensor& gate_up) const = 0;
  // Whether Multiply and MultiplyGated take these rows [rows, k] and this weight [columns, k]: they
  // take a few rows, on GPUs of compute capability 9.0 and later.
  virtual bool Multiplies(const at::Tensor& rows, const at::Tensor& weight) const = 0;
  // As at::linear. `bias` may be undefined.
  virtual at::Tensor Multiply(const at::Tensor& rows, const at::Tensor& weight,
                              const at::Tensor& bias) const = 0;
  // Gate(Multiply(rows, gate_up)).
  virtual at::Tensor MultiplyGated(const at::Tensor& rows, const at::Tensor& gate_up) const = 0;
  // Cosines and sines [2, tokens, 1, half] of int64 positions [tokens] times float32 frequencies
  // [1, half], both times `magnitude`.
  virtual at::Tensor Angles(const at::Tensor& positions, const at::Tensor& frequencies,
                            double magnitude) const = 0;
  // Normalises and turns the heads of [tokens, (heads + 2 * kv_heads) * head_dim] and stores keys
  // and values in their pages.
  virtual Heads PlaceHeads(const at::Tensor& qkv, const Placing& placing) const = 0;
  // Attention of [rows, heads, head_dim] to keys in pages. `window`: keys that a row sees; 0: all.
  virtual at::Tensor AttendPages(const at::Tensor& query, const PagedRows& rows,
                                 const at::Tensor& key_pages, const at::Tensor& value_pages,
                                 double scale, int64_t window) const = 0;
  // Adds `part` to `sum`, which is float32 after that.
  virtual void Merge(const Part& part, Part& sum) const = 0;

  // Captures what `work` does on the current queue, without doing it. `work` must have run once
  // before, must not wait for the device, and leaves its results in tensors that it keeps.
  virtual std::unique_ptr<StepGraph> Capture(const std::function<void()>& work) = 0;

  // Behind the current queue's work so far.
  virtual std::unique_ptr<QueuePoint> Mark() const = 0;
};

// nullptr if this build or GPU (before sm_80) has none.
std::unique_ptr<DeviceKernels> CreateDeviceKernels(const TorchDevice& device,
                                                   const KernelShape& shape);

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_KERNELS_DEVICE_KERNELS_H_
