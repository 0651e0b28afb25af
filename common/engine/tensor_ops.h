// What the executor asks of the tensor library besides matrix products. No torch in this header.
#ifndef COMMON_ENGINE_TENSOR_OPS_H_
#define COMMON_ENGINE_TENSOR_OPS_H_

#include <cstdint>
#include <memory>
#include <span>

#include "common/model/safetensors.h"

namespace baton {

// Converts out.size() F32, BF16 or F16 elements, from element `first` of `tensor` on.
void ConvertToFloat(const TensorView& tensor, int64_t first, std::span<float> out);

// Rows of a [vocab, hidden] table that stays in its file's mapping and dtype. The mapping must
// outlive it.
class EmbeddingTable {
 public:
  explicit EmbeddingTable(const TensorView& table);
  ~EmbeddingTable();

  // out [tokens.size(), hidden] float32; ids must be inside the vocabulary.
  void Gather(std::span<const int32_t> tokens, float* out) const;

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

// Threads that the library's own operators may use.
void SetTensorThreads(int threads);

}  // namespace baton

#endif  // COMMON_ENGINE_TENSOR_OPS_H_
