// Sums the ranks' contributions, element by element in the order of the calls: ((x0 + x1) + x2) +
// ... in float32. The result does not depend on the block that an element is in.
#ifndef COMMON_COLLECTIVE_RANK_ORDER_SUM_H_
#define COMMON_COLLECTIVE_RANK_ORDER_SUM_H_

#include <cstddef>
#include <span>
#include <vector>

#include "common/types/kv_layout.h"

namespace baton {

// Sums one block at a time: the first Add begins it, Store ends it. Memory for Add and Store need
// not be aligned.
class RankOrderSum {
 public:
  // Takes whole elements, equally many in each call of a block.
  void Add(ElementType type, std::span<const std::byte> contribution);
  // Writes the sums; bfloat16 is rounded to nearest even, and NaN stays NaN.
  void Store(ElementType type, std::span<std::byte> sums);

 private:
  bool begun_ = false;
  std::vector<float> sums_;  // As long as the largest block so far.
};

}  // namespace baton

#endif  // COMMON_COLLECTIVE_RANK_ORDER_SUM_H_
