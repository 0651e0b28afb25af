#include "common/model/weight_part.h"

#include <algorithm>

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

}  // namespace baton
