// Sums of the ranks' contributions, element by element in the order in which they are added:
// ((x0 + x1) + x2) + ... in float32, which is the same whatever the block that an element is in.
#ifndef COMMON_COLLECTIVE_RANK_ORDER_SUM_H_
#define COMMON_COLLECTIVE_RANK_ORDER_SUM_H_

#include <cstddef>
#include <span>
#include <vector>

#include "common/types/element_type.h"

namespace baton {

// One block at a time: the first Add begins it, Store ends it. The memory that Add and Store take
// need not be aligned.
class RankOrderSum {
 public:
  // Of whole elements, equally many in each call of a block.
  void Add(ElementType type, std::span<const std::byte> contribution);
  // Writes the sums, bfloat16 rounded to nearest even; not-a-number stays one.
  void Store(ElementType type, std::span<std::byte> sums);

 private:
  bool begun_ = false;
  std::vector<float> sums_;  // Of the largest block so far.
};

}  // namespace baton

#endif  // COMMON_COLLECTIVE_RANK_ORDER_SUM_H_
