// A loaded weight matrix that multiplies activations, whichever backend holds it.
#ifndef COMMON_ENGINE_LINEAR_H_
#define COMMON_ENGINE_LINEAR_H_

#include <cstddef>
#include <memory>

#include "common/engine/executor.h"
#include "common/engine/kernels/kernels.h"
#include "common/engine/thread_pool.h"

namespace baton {

class Linear {
 public:
  Linear(int outputs, int inputs) : outputs_(outputs), inputs_(inputs) {}
  virtual ~Linear() = default;
  Linear(const Linear&) = delete;
  Linear& operator=(const Linear&) = delete;

  int outputs() const { return outputs_; }
  int inputs() const { return inputs_; }

  // While loading: rows [row_begin, row_begin + row_count) of [outputs, inputs].
  virtual void SetRows(const float* rows, int row_begin, int row_count) = 0;

  // y[r] = W x[r] for `rows` rows; x is [rows, inputs], y is [rows, outputs].
  virtual void Apply(const float* x, int rows, float* y) const = 0;

 private:
  const int outputs_;
  const int inputs_;
};

// Packed panels and the table's kernel: batch invariant. `table` and `pool` must outlive it.
std::unique_ptr<Linear> MakeNativeLinear(int outputs, int inputs, const kernels::KernelTable& table,
                                         ThreadPool& pool);

// libtorch's matrix product, which is not batch invariant: its library picks kernels by shape. Kept
// to check the native one and as the way onto libraries that know an accelerator.
std::unique_ptr<Linear> MakeTorchLinear(int outputs, int inputs);

}  // namespace baton

#endif  // COMMON_ENGINE_LINEAR_H_
