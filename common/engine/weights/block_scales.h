// FP8 matrices with scales: of blocks of kFp8Block rows and columns, of rows, or of all.
#ifndef COMMON_ENGINE_WEIGHTS_BLOCK_SCALES_H_
#define COMMON_ENGINE_WEIGHTS_BLOCK_SCALES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/safetensors.h"
#include "common/model/weight_names.h"
#include "common/model/weight_part.h"

namespace baton {

// A rank's part of a matrix that is stored as FP8, with its scales.
class ScaledPart {
 public:
  // `part` is of the matrix `spec`. FindWeight's errors for the scales; InvalidArgument, naming
  // them, for one that is not finite.
  static absl::StatusOr<ScaledPart> Find(WeightReader& reader, const WeightSpec& spec,
                                         const StoredPart& part);

  // Columns of the first block before the part's.
  int offset() const { return static_cast<int>(part_.column_begin() % kFp8Block); }
  int blocks() const {
    return static_cast<int>((offset() + part_.columns() + kFp8Block - 1) / kFp8Block);
  }

  // The numbers of rows [row, row + rows), a byte for each; InvalidArgument, naming the matrix, for
  // one that is NaN.
  absl::Status ReadRows(int64_t row, int64_t rows, std::span<std::byte> out) const;
  // The scales of a row's blocks, which may be all the same; out has blocks() elements.
  void ScalesOfRow(int64_t row, std::span<float> out) const;
  // What the numbers of these rows are worth, in float32.
  absl::Status ReadValues(int64_t row, int64_t rows, std::span<float> out) const;

 private:
  ScaledPart(std::string name, const StoredPart& part) : name_(std::move(name)), part_(part) {}

  std::string name_;
  StoredPart part_;
  std::vector<float> scales_;  // The whole matrix's, [.., scale_columns_].
  int64_t scale_columns_ = 1;  // For all blocks of columns; 1: for all columns.
  int64_t scale_rows_ = 0;     // Rows of the matrix that share scales.
};

}  // namespace baton

#endif  // COMMON_ENGINE_WEIGHTS_BLOCK_SCALES_H_
