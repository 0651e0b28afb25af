#include "common/engine/native_linear.h"

#include <vector>

namespace baton {
namespace {

class NativeLinear final : public Linear {
 public:
  NativeLinear(int outputs, int inputs, const kernels::KernelTable& table, ThreadPool& pool)
      : Linear(outputs, inputs),
        table_(table),
        pool_(pool),
        panels_(kernels::PackedSize(outputs, inputs, table.panel_width)) {}

  void SetRows(const float* rows, int row_begin, int row_count) override {
    kernels::PackRows(rows, row_begin, row_count, inputs(), table_.panel_width, panels_.data());
  }

  void Apply(const float* x, int rows, float* y) const override {
    const kernels::PackedMatrix matrix = {panels_.data(), outputs(), inputs()};
    const int panels = (outputs() + table_.panel_width - 1) / table_.panel_width;
    pool_.ParallelFor(panels, [&](int begin, int end) {
      table_.linear(matrix, x, rows, begin, end, y, static_cast<size_t>(outputs()));
    });
  }

 private:
  const kernels::KernelTable& table_;
  ThreadPool& pool_;
  std::vector<float> panels_;
};

}  // namespace

std::unique_ptr<Linear> MakeNativeLinear(int outputs, int inputs, const kernels::KernelTable& table,
                                         ThreadPool& pool) {
  return std::make_unique<NativeLinear>(outputs, inputs, table, pool);
}

}  // namespace baton
