// The part of a stored tensor that a rank holds.
#ifndef COMMON_MODEL_WEIGHT_PART_H_
#define COMMON_MODEL_WEIGHT_PART_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/model/safetensors.h"
#include "common/model/weight_names.h"

namespace baton {

// Rows and columns of a stored matrix, or elements of a stored vector, which is one column. Lives
// as long as the tensor's file. Elements of the part are counted row by row.
class StoredPart {
 public:
  // `tensor` is what FindWeight has found for `spec`.
  StoredPart(const WeightSpec& spec, const StoredTensor& tensor);

  DType dtype() const { return tensor_.dtype; }
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

}  // namespace baton

#endif  // COMMON_MODEL_WEIGHT_PART_H_
