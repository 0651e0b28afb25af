// Which layers, and how the KV of a page lies in memory and on the wire.
#ifndef COMMON_TYPES_KV_LAYOUT_H_
#define COMMON_TYPES_KV_LAYOUT_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace baton {

// Layers [begin, end) of the model.
struct LayerRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  auto operator<=>(const LayerRange&) const = default;
};

// A message of the hand-off carries at most so much; a page whose band of layers is larger travels
// in parts of this size. Both ends count parts, so it is part of the protocol. 4 MiB take 34 ms at
// 1 Gbit/s, which is what anything behind them waits for, and cost no bandwidth
// (docs/performance.md).
inline constexpr size_t kKvPartBytes = size_t{4} << 20;

// The KV of one page: [layer][K/V][head][token][dim], so that one stage's layers are one run.
struct KvLayout {
  int layers = 0;  // In the whole model.
  int kv_heads = 0;
  int head_dim = 0;
  int page_size = 0;  // Tokens.
  int bytes_per_element = 4;

  // Bytes of one layer of one page, K and V together.
  size_t BytesPerLayer() const {
    return size_t{2} * static_cast<size_t>(kv_heads) * static_cast<size_t>(page_size) *
           static_cast<size_t>(head_dim) * static_cast<size_t>(bytes_per_element);
  }
  // Bytes of `range`'s layers of one page.
  size_t BandBytes(LayerRange range) const {
    return BytesPerLayer() * static_cast<size_t>(range.size());
  }
  // The same with some of the heads.
  KvLayout WithHeads(int heads) const {
    KvLayout part = *this;
    part.kv_heads = heads;
    return part;
  }
  // Bytes of a whole page; nullopt if a field is not positive or the product exceeds `bytes_max`.
  // For values that a peer or a file claims.
  std::optional<int64_t> CheckedPageBytes(int64_t bytes_max) const {
    int64_t bytes = 2;
    for (const int factor : {layers, kv_heads, head_dim, page_size, bytes_per_element}) {
      if (factor < 1 || __builtin_mul_overflow(bytes, factor, &bytes) || bytes > bytes_max) {
        return std::nullopt;
      }
    }
    return bytes;
  }
  int PartsPerPage(LayerRange range, size_t part_bytes) const {
    return static_cast<int>((BandBytes(range) + part_bytes - 1) / part_bytes);
  }
  int PagesFor(int tokens) const { return (tokens + page_size - 1) / page_size; }
  auto operator<=>(const KvLayout&) const = default;
};

}  // namespace baton

#endif  // COMMON_TYPES_KV_LAYOUT_H_
