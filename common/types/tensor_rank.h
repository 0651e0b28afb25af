// The place of a process among those that share the layers of a stage or a decode service.
#ifndef COMMON_TYPES_TENSOR_RANK_H_
#define COMMON_TYPES_TENSOR_RANK_H_

#include <compare>

namespace baton {

// A set of ranks is 64 bits.
inline constexpr int kMaxTensorRanks = 64;

// One of `size` tensor-parallel ranks; one alone holds everything.
struct TensorRank {
  int rank = 0;
  int size = 1;
  bool alone() const { return size == 1; }
  auto operator<=>(const TensorRank&) const = default;
};

// [begin, end) of a model's heads, columns or tokens.
struct IndexRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  bool Contains(int index) const { return begin <= index && index < end; }
  auto operator<=>(const IndexRange&) const = default;
};

// The KV heads that a rank holds, of a model's: its part of them, or the one that it shares with
// its neighbours where there are more ranks than heads. One of the two divides the other.
inline IndexRange KvHeadsOf(int kv_heads, TensorRank rank) {
  const int sharing = rank.size > kv_heads ? rank.size / kv_heads : 1;  // Ranks of one head.
  const int part = sharing > 1 ? 1 : kv_heads / rank.size;
  const int first = rank.rank / sharing * part;
  return {first, first + part};
}

}  // namespace baton

#endif  // COMMON_TYPES_TENSOR_RANK_H_
