// Baton's own matrix product.
#ifndef COMMON_ENGINE_NATIVE_LINEAR_H_
#define COMMON_ENGINE_NATIVE_LINEAR_H_

#include <memory>

#include "common/engine/kernels/kernels.h"
#include "common/engine/linear.h"
#include "common/engine/thread_pool.h"

namespace baton {

// Packed panels and the table's kernel: batch invariant. `table` and `pool` must outlive it.
std::unique_ptr<Linear> MakeNativeLinear(int outputs, int inputs, const kernels::KernelTable& table,
                                         ThreadPool& pool);

}  // namespace baton

#endif  // COMMON_ENGINE_NATIVE_LINEAR_H_
