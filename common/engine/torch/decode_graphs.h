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
  // What Compute made of the batch's rows; valid until the next call. `input` is [rows,
  // input_columns] in pinned memory, or undefined.
  at::Tensor Run(const Batch& batch, const at::Tensor& input);

 private:
  struct Captured {
    int64_t rows = 0;
    at::Tensor output;
    std::unique_ptr<StepGraph> graph;
  };

  Captured Capture(int64_t rows, DeviceKernels& kernels, const Compute& compute) const;
  // The step of `rows` rows, in the memory that is uploaded to.
  TorchStep StepOf(int64_t rows) const;

  const TorchDevice device_;
  const Options options_;
  // For a size: tokens, positions, pages, slots, lengths, starts, one for each row; then the ids of
  // pages.
  at::Tensor host_;  // Pinned.
  at::Tensor numbers_;
  at::Tensor input_;
  std::vector<Captured> captured_;
};

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_DECODE_GRAPHS_H_
