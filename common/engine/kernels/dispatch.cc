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

void PackRows(const float* rows, int row_begin, int row_count, int inputs, int panel_width,
              float* panels) {
  const auto width = static_cast<size_t>(panel_width);
  const auto columns = static_cast<size_t>(inputs);
  for (int row = 0; row < row_count; ++row) {
    const size_t output = static_cast<size_t>(row_begin) + static_cast<size_t>(row);
    float* column = panels + output / width * columns * width + output % width;
    const float* source = rows + static_cast<size_t>(row) * columns;
    for (size_t i = 0; i < columns; ++i) column[i * width] = source[i];
  }
}

}  // namespace baton::kernels
