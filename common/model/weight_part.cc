#include "common/model/weight_part.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton {

StoredPart::StoredPart(const WeightSpec& spec, const StoredTensor& tensor)
    : tensor_(tensor), stored_columns_(tensor.shape.size() == 2 ? tensor.shape[1] : 1) {
  const IndexRange rows = spec.rows.value_or(IndexRange{0, static_cast<int>(tensor.shape[0])});
  const IndexRange columns =
      spec.columns.value_or(IndexRange{0, static_cast<int>(stored_columns_)});
  row_begin_ = rows.begin;
  rows_ = rows.size();
  column_begin_ = columns.begin;
  columns_ = columns.size();
}

absl::Status StoredPart::Read(int64_t first, std::span<std::byte> out) const {
  const auto element_bytes = static_cast<int64_t>(DTypeBytes(tensor_.dtype));
  // Whole rows lie one behind the other.
  const bool whole_rows = columns_ == stored_columns_;
  while (!out.empty()) {
    const int64_t row = first / columns_;
    const int64_t column = first % columns_;
    const int64_t wanted = static_cast<int64_t>(out.size()) / element_bytes;
    const int64_t count = whole_rows ? wanted : std::min(columns_ - column, wanted);
    const int64_t at = (row_begin_ + row) * stored_columns_ + column_begin_ + column;
    const auto bytes = static_cast<size_t>(count * element_bytes);
    BATON_RETURN_IF_ERROR(tensor_.Read(static_cast<size_t>(at * element_bytes), out.first(bytes)));
    out = out.subspan(bytes);
    first += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<ElementType> StoredWeightType(WeightReader& reader, const ModelConfig& config) {
  if (config.torch_dtype == "float16") return ElementType::kFloat32;
  if (const auto said = ParseElementType(config.torch_dtype)) return *said;
  BATON_ASSIGN_OR_RETURN(const StoredTensor embeddings,
                         FindWeight(reader, EmbeddingWeight(config)));
  return embeddings.dtype == DType::kBF16 ? ElementType::kBFloat16 : ElementType::kFloat32;
}

absl::Status CheckStoredAs(const WeightSpec& spec, const StoredTensor& tensor, ElementType type) {
  const bool exact = type == ElementType::kFloat32 || tensor.dtype == DType::kBF16 ||
                     tensor.dtype == DType::kF8E4M3;
  if (exact || spec.shape.size() < 2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "tensor ", spec.name, " is stored as ", DTypeName(tensor.dtype), ", while the checkpoint is ",
      ElementTypeName(type), " by its config.json or its embeddings; say --dtype=float32 to keep ",
      "all of it, or --dtype=", ElementTypeName(type), " to round this"));
}

}  // namespace baton
