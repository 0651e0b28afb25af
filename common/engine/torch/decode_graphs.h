// Steps of single tokens alone, captured as graphs for some batch sizes: a GPU then starts a step's
// hundreds of kernels by one call. A step takes the next larger size; the rows that it does not
// need see no keys and store nothing. Part of the plugin.
#ifndef COMMON_ENGINE_TORCH_DECODE_GRAPHS_H_
#define COMMON_ENGINE_TORCH_DECODE_GRAPHS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/engine/stage_model.h"
#include "common/engine/torch/kernels/device_kernels.h"
#include "common/engine/torch/torch_device.h"
#include "common/engine/torch/torch_step.h"

namespace baton {

class DecodeGraphs {
 public:
  struct Options {
    int most_rows = 0;
    int64_t page_size = 0;
    int64_t window = 0;
    int64_t input_columns = 0;  // 0 on the first stage, whose input is tokens.
  };
  // The layers: what they make of a step's rows, on the device, without waiting for it.
  using Compute = std::function<at::Tensor(TorchStep& step, const at::Tensor& input)>;

  // Captures all sizes. `kernels` must outlive it.
  DecodeGraphs(const TorchDevice& device, DeviceKernels& kernels, const Options& options,
               const Compute& compute);

  // Sizes that are captured: powers of two up to `most_rows`, and `most_rows`.
  static std::vector<int> Sizes(int most_rows);

  // Whether this batch is of single tokens alone, of which there are not too many, nor their pages.
  bool Takes(const Batch& batch) const;
  // What Compute made of the batch's rows, on the device; the next call's work writes over it.
  // `input` is [rows, input_columns] in pinned memory, or undefined. `drawn` are the tokens, int64
  // on the device, that slices follow (SequenceSlice::follows); undefined if none does. The host
  // waits for nothing: work of the call before the last must be done.
  at::Tensor Run(const Batch& batch, const at::Tensor& input, const at::Tensor& drawn);

 private:
  struct Captured {
    int64_t rows = 0;
    at::Tensor output;
    std::unique_ptr<StepGraph> graph;
  };

  void Capture(DeviceKernels& kernels, const Compute& compute, Captured& captured) const;
  // The step of `rows` rows, in the memory that is uploaded to.
  TorchStep StepOf(int64_t rows) const;

  const TorchDevice device_;
  const Options options_;
  // For a size: tokens, positions, pages, slots, lengths, starts, what is followed, one for each
  // row; then the ids of pages.
  at::Tensor numbers_;
  at::Tensor host_[2];  // Pinned. One is written while the other may be read.
  int turn_ = 0;
  at::Tensor input_;
  std::vector<Captured> captured_;
};

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_DECODE_GRAPHS_H_
