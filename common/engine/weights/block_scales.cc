#include "common/engine/weights/block_scales.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/engine/kernels/kernels.h"
#include "common/engine/weights/weight_conversion.h"

namespace baton {

static_assert(kFp8Block == kernels::kScaleBlock);

absl::StatusOr<ScaledPart> ScaledPart::Find(WeightReader& reader, const WeightSpec& spec,
                                            const StoredPart& part) {
  BATON_ASSIGN_OR_RETURN(const StoredTensor stored, FindScales(reader, spec));
  std::vector<std::byte> bytes(stored.byte_count);
  BATON_RETURN_IF_ERROR(stored.Read(0, bytes));
  ScaledPart scaled(spec.name, part);
  scaled.scales_.resize(static_cast<size_t>(stored.ElementCount()));
  if (scaled.scales_.size() == 1) {
    scaled.scale_rows_ = spec.shape[0];
  } else if (stored.shape == Fp8Blocks(spec.shape)) {
    scaled.scale_rows_ = kFp8Block;
    scaled.scale_columns_ = stored.shape[1];
  } else {
    scaled.scale_rows_ = 1;
  }
  ConvertToFloat(stored.dtype, bytes, scaled.scales_);
  if (std::ranges::all_of(scaled.scales_, [](float scale) { return std::isfinite(scale); })) {
    return scaled;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", spec.scale, " has a scale that is not finite"));
}

absl::Status ScaledPart::ReadRows(int64_t row, int64_t rows, std::span<std::byte> out) const {
  BATON_RETURN_IF_ERROR(
      part_.Read(row * part_.columns(), out.first(static_cast<size_t>(rows * part_.columns()))));
  const bool numbers = std::ranges::none_of(
      out, [](std::byte code) { return (code & std::byte{0x7f}) == std::byte{0x7f}; });
  if (numbers) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor ", name_, " has an element that is NaN"));
}

void ScaledPart::ScalesOfRow(int64_t row, std::span<float> out) const {
  const auto first = scales_.begin() + (part_.row_begin() + row) / scale_rows_ * scale_columns_;
  if (scale_columns_ == 1) {
    std::ranges::fill(out, *first);
  } else {
    std::copy_n(first + part_.column_begin() / kFp8Block, out.size(), out.begin());
  }
}

absl::Status ScaledPart::ReadValues(int64_t row, int64_t rows, std::span<float> out) const {
  static const std::array<float, 256> kValues = [] {
    std::array<float, 256> values{};
    for (size_t code = 0; code < values.size(); ++code) {
      values[code] = kernels::Widened({static_cast<uint8_t>(code)});
    }
    return values;
  }();
  std::vector<std::byte> codes(static_cast<size_t>(rows * part_.columns()));
  BATON_RETURN_IF_ERROR(ReadRows(row, rows, codes));
  std::vector<float> scales(static_cast<size_t>(blocks()));
  const auto columns = static_cast<size_t>(part_.columns());
  const auto before = static_cast<size_t>(offset());
  for (int64_t i = 0; i < rows; ++i) {
    ScalesOfRow(row + i, scales);
    const size_t begin = static_cast<size_t>(i) * columns;
    for (size_t column = 0; column < columns; ++column) {
      out[begin + column] = kValues[static_cast<size_t>(codes[begin + column])] *
                            scales[(column + before) / kFp8Block];
    }
  }
  return absl::OkStatus();
}

}  // namespace baton
