// The part of a stored tensor that a rank holds.
#ifndef COMMON_MODEL_WEIGHT_PART_H_
#define COMMON_MODEL_WEIGHT_PART_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "common/model/weight_names.h"
#include "common/types/kv_layout.h"

namespace baton {

// Rows and columns of a stored matrix, or elements of a stored vector, which is one column. Lives
// as long as the tensor's file. Elements of the part are counted row by row.
class StoredPart {
 public:
  // `tensor` is what FindWeight has found for `spec`.
  StoredPart(const WeightSpec& spec, const StoredTensor& tensor);

  DType dtype() const { return tensor_.dtype; }
  int64_t row_begin() const { return row_begin_; }        // In the stored tensor.
  int64_t column_begin() const { return column_begin_; }  // Likewise.
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t ElementCount() const { return rows_ * columns_; }

  // Fills `out` with the elements from `first` on, which must be the part's, as they are stored;
  // reads nothing else of the file. Errors are StoredTensor::Read's.
  absl::Status Read(int64_t first, std::span<std::byte> out) const;

 private:
  StoredTensor tensor_;
  int64_t stored_columns_ = 1;
  int64_t row_begin_ = 0;
  int64_t rows_ = 0;
  int64_t column_begin_ = 0;
  int64_t columns_ = 1;
};

// The type that a checkpoint's weights are computed from if no type is named (--dtype auto).

// What config.json's torch_dtype says, as Hugging Face reads it: bfloat16, or float32 for float32
// and float16, which float32 holds exactly and bfloat16 does not. Where it says nothing that Baton
// knows, the type of the stored embeddings. All stages of a chain see the same, whichever layers
// are theirs. Errors are FindWeight's.
absl::StatusOr<ElementType> StoredWeightType(WeightReader& reader, const ModelConfig& config);

// OK unless a matrix stored as `tensor` would lose bits as `type`; FP8 is kept as it is.
// InvalidArgument names the tensor and both types: a checkpoint of mixed types is an error until
// the user names the type. Vectors (norms, biases) are never refused: Baton's kernels keep them in
// float32.
absl::Status CheckStoredAs(const WeightSpec& spec, const StoredTensor& tensor, ElementType type);

}  // namespace baton

#endif  // COMMON_MODEL_WEIGHT_PART_H_
