// Where a row of a packed batch belongs, and how a page keeps what is computed of it.
#ifndef COMMON_ENGINE_NATIVE_ROW_PLACE_H_
#define COMMON_ENGINE_NATIVE_ROW_PLACE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/engine/kernels/kernels.h"

namespace baton {

// The slice of the batch, and the position in its sequence.
struct RowPlace {
  int slice;
  int position;
};

// The elements of so many rows.
inline size_t Floats(int64_t rows, int64_t columns) { return static_cast<size_t>(rows * columns); }

// Stores a row of keys or values in a page, in the pages' type.
inline void Keep(const kernels::KernelTable& /*table*/, const float* from, size_t count,
                 float* to) {
  std::copy_n(from, count, to);
}
inline void Keep(const kernels::KernelTable& table, const float* from, size_t count,
                 kernels::Bf16* to) {
  table.to_bf16(from, count, to);
}

}  // namespace baton

#endif  // COMMON_ENGINE_NATIVE_ROW_PLACE_H_
