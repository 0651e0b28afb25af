// Which layers, and how the KV of a page lies in memory and on the wire.
#ifndef COMMON_TYPES_KV_LAYOUT_H_
#define COMMON_TYPES_KV_LAYOUT_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

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

// The KV of one page: [layer][plane][head][token][row], so that one stage's layers are one run.
// Planes are keys and values, or one of rows that both are computed from (latent attention).
struct KvLayout {
  int layers = 0;  // In the whole model.
  int kv_heads = 0;
  int head_dim = 0;   // Elements of a row.
  int page_size = 0;  // Tokens.
  int bytes_per_element = 4;
  int planes = 2;

  // Bytes of one layer of one page, all planes together.
  size_t BytesPerLayer() const {
    return static_cast<size_t>(planes) * static_cast<size_t>(kv_heads) *
           static_cast<size_t>(page_size) * static_cast<size_t>(head_dim) *
           static_cast<size_t>(bytes_per_element);
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
    int64_t bytes = 1;
    for (const int factor : {layers, kv_heads, head_dim, page_size, bytes_per_element, planes}) {
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

// How numbers lie in memory and on the wire: weights, keys and values, activations. Not how they
// are computed with, which is the executor's matter.
enum class ElementType : uint8_t {
  kFloat32,
  kBFloat16,  // The upper half of a float32: widening it is exact.
};

inline constexpr ElementType kElementTypes[] = {ElementType::kFloat32, ElementType::kBFloat16};

constexpr size_t ElementBytes(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }

// As options, logs and fingerprints write it; config.json's torch_dtype says the same.
constexpr const char* ElementTypeName(ElementType type) {
  return type == ElementType::kFloat32 ? "float32" : "bfloat16";
}

constexpr std::optional<ElementType> ParseElementType(std::string_view name) {
  for (const ElementType type : kElementTypes) {
    if (name == ElementTypeName(type)) return type;
  }
  return std::nullopt;
}

// What must agree before KV may pass between two workers.

// The hashes are common/model's to compute (fingerprint.h), the rest a worker's options.
struct ModelFingerprint {
  uint64_t config_hash = 0;              // The keys of config.json that decide what is computed.
  std::map<int, uint64_t> layer_hashes;  // Layer -> names, shapes, types and bytes of its weights.
  uint64_t embedding_hash = 0;           // 0: not held, as everywhere but on layer 0's stage.
  uint64_t head_hash = 0;                // Final norm and head; 0: not held.
  std::string dtype;                     // For weights and activations; KV's is in kv_layout.
  std::string numerics;                  // Products with bits of their own; "": exact ones.
  KvLayout kv_layout;
  uint32_t protocol_version = 0;         // The newest that it speaks,
  uint32_t oldest_protocol_version = 0;  // and the oldest; not above it.
  bool operator==(const ModelFingerprint&) const = default;
};

}  // namespace baton

#endif  // COMMON_TYPES_KV_LAYOUT_H_
