// Weights as files hold them (F32, BF16 or F16, any alignment), read as float32.
#ifndef COMMON_ENGINE_WEIGHT_CONVERSION_H_
#define COMMON_ENGINE_WEIGHT_CONVERSION_H_

#include <cstdint>
#include <span>

#include "common/model/safetensors.h"

namespace baton {

// Converts out.size() F32, BF16 or F16 elements, from element `first` of `tensor` on.
void ConvertToFloat(const TensorView& tensor, int64_t first, std::span<float> out);

// Rows of a [vocab, hidden] table that stays in its file's mapping and dtype. The mapping must
// outlive it.
class EmbeddingTable {
 public:
  explicit EmbeddingTable(const TensorView& table) : table_(table) {}

  // out [tokens.size(), hidden] float32; ids must be inside the vocabulary.
  void Gather(std::span<const int32_t> tokens, float* out) const;

 private:
  const TensorView table_;
};

}  // namespace baton

#endif  // COMMON_ENGINE_WEIGHT_CONVERSION_H_
