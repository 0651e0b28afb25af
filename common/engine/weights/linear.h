// A loaded weight matrix that multiplies activations, whatever the backend.
#ifndef COMMON_ENGINE_WEIGHTS_LINEAR_H_
#define COMMON_ENGINE_WEIGHTS_LINEAR_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "common/types/kv_layout.h"

namespace baton {

class Linear {
 public:
  // `blocks`: of FP8, the blocks of inputs that share a scale in each row.
  Linear(int outputs, int inputs, ElementType weights, int blocks = 0)
      : outputs_(outputs), inputs_(inputs), weights_(weights), blocks_(blocks) {}
  virtual ~Linear() = default;
  Linear(const Linear&) = delete;
  Linear& operator=(const Linear&) = delete;

  int outputs() const { return outputs_; }
  int inputs() const { return inputs_; }
  // The type of the weights in memory; float32 of FP8. Products use their float32 values.
  ElementType weights() const { return weights_; }
  int blocks() const { return blocks_; }

  // While loading: sets rows [row_begin, row_begin + row_count) of [outputs, inputs] from elements
  // of type weights(), aligned for it; of FP8 from a byte for each element (kernels::E4m3 says what
  // they are worth), and from `scales`, [row_count, blocks()]. Others have no scales.
  virtual void SetRows(const std::byte* rows, const float* scales, int row_begin,
                       int row_count) = 0;

  // Row `row` of W, [inputs], exactly. For tied embeddings.
  virtual void Row(int row, float* out) const = 0;

  // y[r] = W x[r] for `rows` rows; x is [rows, inputs], y is [rows, outputs].
  virtual void Apply(const float* x, int rows, float* y) const = 0;

 private:
  const int outputs_;
  const int inputs_;
  const ElementType weights_;
  const int blocks_;
};

// A matrix for each head, multiplied on the calling thread alone: heads are what threads share out.
class HeadLinear {
 public:
  explicit HeadLinear(ElementType weights) : weights_(weights) {}
  virtual ~HeadLinear() = default;
  HeadLinear(const HeadLinear&) = delete;
  HeadLinear& operator=(const HeadLinear&) = delete;

  ElementType weights() const { return weights_; }

  // While loading: [outputs, inputs] of one head, as elements of type weights(), aligned for it.
  virtual void SetHead(int head, const std::byte* matrix) = 0;

  // y[r] = W_head x[r] for `rows` rows; x is [rows, inputs], y has `stride` floats a row.
  virtual void Apply(int head, const float* x, int rows, float* y, size_t stride) const = 0;

 private:
  const ElementType weights_;
};

using HeadLinearFactory =
    std::function<std::unique_ptr<HeadLinear>(int heads, int outputs, int inputs, ElementType)>;

// Makes an empty Linear of FP8 whose first block lacks its first `offset` inputs.
using ScaledLinearFactory =
    std::function<std::unique_ptr<Linear>(int outputs, int inputs, int offset)>;

// Makes an empty Linear of the chosen backend.
using LinearFactory = std::function<std::unique_ptr<Linear>(int outputs, int inputs)>;

}  // namespace baton

#endif  // COMMON_ENGINE_WEIGHTS_LINEAR_H_
