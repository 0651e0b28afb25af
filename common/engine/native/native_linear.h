// Matrix products with Baton's own kernels.
#ifndef COMMON_ENGINE_NATIVE_NATIVE_LINEAR_H_
#define COMMON_ENGINE_NATIVE_NATIVE_LINEAR_H_

#include <memory>

#include "common/engine/kernels/bf16_products.h"
#include "common/engine/kernels/kernels.h"
#include "common/engine/native/thread_pool.h"
#include "common/engine/weights/linear.h"

namespace baton {

// Packs the matrix into panels of type `weights` and multiplies with `table`'s kernel. Batch
// invariant; both types give the same bits for the same weights. `table` and `pool` must outlive
// it.
std::unique_ptr<Linear> MakeNativeLinear(int outputs, int inputs, ElementType weights,
                                         const kernels::KernelTable& table, ThreadPool& pool);

// The same for bfloat16 weights by `products`. Batch invariant, with bits of its own.
std::unique_ptr<Linear> MakePairedLinear(int outputs, int inputs,
                                         const kernels::Bf16Products& products,
                                         const kernels::KernelTable& table, ThreadPool& pool);

// MakeNativeLinear's of FP8 weights with scales, which are kept as they are. The bits are those of
// the float32 values that they are worth.
std::unique_ptr<Linear> MakeNativeScaledLinear(int outputs, int inputs, int offset,
                                               const kernels::KernelTable& table, ThreadPool& pool);

// The same by `products`, which multiply FP8: batch invariant, with bits of their own. `offset` is
// even.
std::unique_ptr<Linear> MakePairedScaledLinear(int outputs, int inputs, int offset,
                                               const kernels::Bf16Products& products,
                                               const kernels::KernelTable& table, ThreadPool& pool);

// The same for a matrix of each head, [outputs, inputs].
std::unique_ptr<HeadLinear> MakeNativeHeadLinear(int heads, int outputs, int inputs,
                                                 ElementType weights,
                                                 const kernels::KernelTable& table);

}  // namespace baton

#endif  // COMMON_ENGINE_NATIVE_NATIVE_LINEAR_H_
