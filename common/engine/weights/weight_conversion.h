// Converts weights from the files' types (F32, BF16 or F16, any alignment) to the types that
// products use.
#ifndef COMMON_ENGINE_WEIGHTS_WEIGHT_CONVERSION_H_
#define COMMON_ENGINE_WEIGHTS_WEIGHT_CONVERSION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/model/safetensors.h"
#include "common/types/kv_layout.h"

namespace baton {

// Converts out.size() elements of F32, BF16 or F16 at `bytes`, which need no alignment.
void ConvertToFloat(DType dtype, std::span<const std::byte> bytes, std::span<float> out);

// The same to elements of `type`: to float32 exactly, to bfloat16 rounded to nearest even. `out` is
// aligned for `type` and has room for exactly the elements of `bytes`.
void ConvertWeights(DType dtype, std::span<const std::byte> bytes, ElementType type,
                    std::span<std::byte> out);

// Whether `dtype` and `type` are the same format, so that no conversion is needed.
constexpr bool SameFormat(DType dtype, ElementType type) {
  return (dtype == DType::kF32 && type == ElementType::kFloat32) ||
         (dtype == DType::kBF16 && type == ElementType::kBFloat16);
}

// A [vocab, hidden] table of embeddings that owns its memory.
class EmbeddingTable {
 public:
  EmbeddingTable(DType dtype, int64_t vocab, int64_t hidden)
      : dtype_(dtype),
        hidden_(static_cast<size_t>(hidden)),
        bytes_(static_cast<size_t>(vocab) * hidden_ * DTypeBytes(dtype)) {}

  // While loading: the bytes of the whole table, row by row, to fill.
  std::span<std::byte> bytes() { return bytes_; }

  // out [tokens.size(), hidden] float32; ids must be inside the vocabulary.
  void Gather(std::span<const int32_t> tokens, float* out) const;

 private:
  const DType dtype_;
  const size_t hidden_;
  std::vector<std::byte> bytes_;
};

}  // namespace baton

#endif  // COMMON_ENGINE_WEIGHTS_WEIGHT_CONVERSION_H_
