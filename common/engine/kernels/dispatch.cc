#include <bit>
#include <cmath>
#include <limits>

#include "common/engine/kernels/kernels.h"

namespace baton::kernels {

namespace scalar {
extern const KernelTable kTable;
}
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}

std::vector<const KernelTable*> AvailableKernels() {
  std::vector<const KernelTable*> tables = {&scalar::kTable};
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2) tables.push_back(&avx2::kTable);
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    tables.push_back(&avx512::kTable);
  }
  return tables;
}

const KernelTable* FindKernels(std::string_view name) {
  const std::vector<const KernelTable*> tables = AvailableKernels();
  if (name.empty()) return tables.back();
  for (const KernelTable* table : tables) {
    if (table->name == name) return table;
  }
  return nullptr;
}

size_t PackedSize(int outputs, int inputs, int panel_width) {
  const auto width = static_cast<size_t>(panel_width);
  const size_t panels = (static_cast<size_t>(outputs) + width - 1) / width;
  return panels * width * static_cast<size_t>(inputs);
}

namespace {

// The index in a panel's column of the panel's output `output`.
size_t PlaceInColumn(const float* /*panels*/, size_t output, size_t /*width*/) { return output; }
// What is narrower than a float is widened two vectors at a time: both halves' outputs in turn.
template <typename Narrow>
size_t PlaceInColumn(const Narrow* /*panels*/, size_t output, size_t width) {
  const size_t half = width / 2;
  return output < half ? 2 * output : 2 * (output - half) + 1;
}

// The index in the panels of the first element of a matrix's row; the next elements are `width`
// apart.
template <typename Element>
size_t PlaceOfRow(const Element* panels, size_t row, size_t inputs, size_t width) {
  return row / width * inputs * width + PlaceInColumn(panels, row % width, width);
}

float Widen(float x) { return x; }
float Widen(Bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

template <typename Element>
void Unpack(const Packed<Element>& w, int row, int panel_width, float* out) {
  const auto width = static_cast<size_t>(panel_width);
  const auto inputs = static_cast<size_t>(w.inputs);
  const Element* from = w.panels + PlaceOfRow(w.panels, static_cast<size_t>(row), inputs, width);
  for (size_t i = 0; i < inputs; ++i) out[i] = Widen(from[i * width]);
}

}  // namespace

template <typename Element>
void PackRows(const Element* rows, int row_begin, int row_count, int inputs, int panel_width,
              Element* panels) {
  const auto width = static_cast<size_t>(panel_width);
  const auto columns = static_cast<size_t>(inputs);
  for (int row = 0; row < row_count; ++row) {
    const size_t output = static_cast<size_t>(row_begin) + static_cast<size_t>(row);
    Element* to = panels + PlaceOfRow(panels, output, columns, width);
    const Element* source = rows + static_cast<size_t>(row) * columns;
    for (size_t i = 0; i < columns; ++i) to[i * width] = source[i];
  }
}
template void PackRows(const float*, int, int, int, int, float*);
template void PackRows(const Bf16*, int, int, int, int, Bf16*);
template void PackRows(const E4m3*, int, int, int, int, E4m3*);

void UnpackRow(const PackedMatrix& w, int row, int panel_width, float* out) {
  Unpack(w, row, panel_width, out);
}

void UnpackRow(const PackedBf16Matrix& w, int row, int panel_width, float* out) {
  Unpack(w, row, panel_width, out);
}

float Widened(E4m3 value) {
  const int magnitude = value.bits & 0x7f;
  const int exponent = magnitude >> 3;
  const int mantissa = magnitude & 7;
  if (magnitude == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                   : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (value.bits & 0x80) != 0 ? -size : size;
}

void UnpackRow(const PackedE4m3Matrix& w, int row, int panel_width, float* out) {
  const auto width = static_cast<size_t>(panel_width);
  const auto place = static_cast<size_t>(row);
  const E4m3* from = w.panels + PlaceOfRow(w.panels, place, static_cast<size_t>(w.inputs), width);
  const float* scales =
      w.scales + PlaceOfRow(w.scales, place, static_cast<size_t>(w.blocks()), width);
  for (int i = 0; i < w.inputs; ++i) {
    const auto block = static_cast<size_t>((i + w.offset) / kScaleBlock);
    out[i] = Widened(from[static_cast<size_t>(i) * width]) * scales[block * width];
  }
}

}  // namespace baton::kernels
