#include "common/engine/native_linear.h"

#include <vector>

namespace baton {
namespace {

using kernels::Bf16;
using kernels::KernelTable;
using kernels::Packed;

void Multiply(const KernelTable& table, const Packed<float>& w, const float* x, int rows,
              int panel_begin, int panel_end, float* y) {
  table.linear(w, x, rows, panel_begin, panel_end, y, static_cast<size_t>(w.outputs));
}
void Multiply(const KernelTable& table, const Packed<Bf16>& w, const float* x, int rows,
              int panel_begin, int panel_end, float* y) {
  table.linear_bf16(w, x, rows, panel_begin, panel_end, y, static_cast<size_t>(w.outputs));
}

template <typename Element, ElementType kType>
class NativeLinear final : public Linear {
 public:
  NativeLinear(int outputs, int inputs, const KernelTable& table, ThreadPool& pool)
      : Linear(outputs, inputs, kType),
        table_(table),
        pool_(pool),
        panels_(kernels::PackedSize(outputs, inputs, table.panel_width)) {}

  void SetRows(const std::byte* rows, int row_begin, int row_count) override {
    kernels::PackRows(reinterpret_cast<const Element*>(rows), row_begin, row_count, inputs(),
                      table_.panel_width, panels_.data());
  }

  void Row(int row, float* out) const override {
    kernels::UnpackRow(matrix(), row, table_.panel_width, out);
  }

  void Apply(const float* x, int rows, float* y) const override {
    const int panels = (outputs() + table_.panel_width - 1) / table_.panel_width;
    pool_.ParallelFor(
        panels, [&](int begin, int end) { Multiply(table_, matrix(), x, rows, begin, end, y); });
  }

 private:
  Packed<Element> matrix() const { return {panels_.data(), outputs(), inputs()}; }

  const KernelTable& table_;
  ThreadPool& pool_;
  std::vector<Element> panels_;
};

}  // namespace

std::unique_ptr<Linear> MakeNativeLinear(int outputs, int inputs, ElementType weights,
                                         const KernelTable& table, ThreadPool& pool) {
  if (weights == ElementType::kBFloat16) {
    return std::make_unique<NativeLinear<Bf16, ElementType::kBFloat16>>(outputs, inputs, table,
                                                                        pool);
  }
  return std::make_unique<NativeLinear<float, ElementType::kFloat32>>(outputs, inputs, table, pool);
}

}  // namespace baton
