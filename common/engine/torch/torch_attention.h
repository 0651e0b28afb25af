// Attention without a mask over the context: keys in blocks, and what the blocks give merged by the
// logarithms of their sums. Masks exist only where a block has keys that some rows see and others
// don't: on the diagonal of a chunk and at the edges of a window. libtorch 1.13 to 2.15 are tested.
// Part of the plugin.
#ifndef COMMON_ENGINE_TORCH_TORCH_ATTENTION_H_
#define COMMON_ENGINE_TORCH_TORCH_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

namespace baton {

// What some keys give to some rows.
struct Attended {
  at::Tensor output;   // [.., group, rows, value_dim]
  at::Tensor log_sum;  // [.., group, rows, 1] float32: of the exponentials of the scores.
};

// What becomes of the products of queries and keys.
struct ScoreForm {
  double scale = 1;
  double softcap = 0;  // Scaled scores become softcap * tanh(score / softcap); 0: they stay.
};

// `query` is [.., group, rows, key_dim]; `keys` and `values` are [.., length, key_dim or value_dim]
// of the same type and leading dimensions. `unseen`, if it is defined, can be broadcast to
// [.., group, rows, length] and is true where a row sees nothing; a row that sees nothing at all
// counts for nothing when it is merged. `merged`: whether the sum is needed.
Attended AttendBlock(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                     const at::Tensor& unseen, const ScoreForm& form, bool merged);

// Adds `more` to `sum`, which is undefined at first. Several parts together are float32.
void Merge(Attended more, Attended& sum);

// Keys and values of [begin, end) of a sequence: [kv_heads, tokens, key_dim or value_dim].
using KeyBlock = std::pair<at::Tensor, at::Tensor>;
using GetKeys = std::function<KeyBlock(int64_t begin, int64_t end)>;

// A run of tokens of one sequence, and what it may see.
struct ChunkShape {
  int64_t prefix = 0;  // Tokens before it.
  int64_t tokens = 0;
  int64_t window = 0;     // Keys that a row sees, its own included; 0: all.
  int64_t page_size = 1;  // Blocks of the prefix begin at pages.
  ScoreForm form = {};

  // The first key that any of its tokens sees, or one before it: the first of a page.
  int64_t first_key() const {
    const int64_t lowest = window > 0 ? std::max<int64_t>(0, prefix + 1 - window) : 0;
    return lowest / page_size * page_size;
  }
};

// `query` is [kv_heads, group, tokens, key_dim], `own` the chunk's keys and values; `prefix` is
// called for blocks of what is before it. Returns [kv_heads, group, tokens, value_dim] of the
// query's type.
at::Tensor AttendChunk(const ChunkShape& shape, const at::Tensor& query, const KeyBlock& own,
                       const GetKeys& prefix);

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_TORCH_ATTENTION_H_
