#include "common/engine/native/native_linear.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/device/memory.h"

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

// Zeroed memory. A product of one row reads all of it in order; large pages make that a tenth
// faster than a vector's memory. Throws bad_alloc like a vector.
MemoryBuffer Zeroed(size_t bytes) {
  absl::StatusOr<MemoryBuffer> memory = AllocateHost(bytes);
  if (!memory.ok()) throw std::bad_alloc();
  if (bytes > 0) std::memset(memory->span().data, 0, bytes);
  return *std::move(memory);
}

template <typename Element, ElementType kType>
class NativeLinear final : public Linear {
 public:
  NativeLinear(int outputs, int inputs, const KernelTable& table, ThreadPool& pool)
      : Linear(outputs, inputs, kType),
        table_(table),
        pool_(pool),
        memory_(Zeroed(kernels::PackedSize(outputs, inputs, table.panel_width) * sizeof(Element))),
        panels_(reinterpret_cast<Element*>(memory_.span().data)) {}

  void SetRows(const std::byte* rows, int row_begin, int row_count) override {
    kernels::PackRows(reinterpret_cast<const Element*>(rows), row_begin, row_count, inputs(),
                      table_.panel_width, panels_);
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
  Packed<Element> matrix() const { return {panels_, outputs(), inputs()}; }

  const KernelTable& table_;
  ThreadPool& pool_;
  const MemoryBuffer memory_;
  Element* const panels_;
};

// x rounded, as Bf16Products take it; until the calling thread's next call.
const Bf16* PackRounded(const float* x, int rows, int inputs, const KernelTable& table,
                        ThreadPool& pool) {
  const auto columns = static_cast<size_t>(kernels::PaddedInputs(inputs));
  const auto given = static_cast<size_t>(inputs);
  // One for all matrices that a thread multiplies by; it is as large as the largest input.
  thread_local std::vector<Bf16> packed;
  packed.resize(std::max(packed.size(), static_cast<size_t>(rows) * columns));
  Bf16* const to = packed.data();
  pool.ParallelFor(rows, [&](int begin, int end) {
    thread_local std::vector<Bf16> rounded;
    rounded.resize(std::max(rounded.size(), given));
    for (int row = begin; row < end; ++row) {
      table.to_bf16(x + static_cast<size_t>(row) * given, given, rounded.data());
      kernels::PackPairedInput(rounded.data(), row, rows, inputs, to);
    }
  });
  return to;
}

class PairedLinear final : public Linear {
 public:
  PairedLinear(int outputs, int inputs, const kernels::Bf16Products& products,
               const KernelTable& table, ThreadPool& pool)
      : Linear(outputs, inputs, ElementType::kBFloat16),
        products_(products),
        table_(table),
        pool_(pool),
        memory_(Zeroed(kernels::PairedSize(outputs, inputs) * sizeof(Bf16))),
        panels_(reinterpret_cast<Bf16*>(memory_.span().data)) {}

  void SetRows(const std::byte* rows, int row_begin, int row_count) override {
    kernels::PackPairedRows(reinterpret_cast<const Bf16*>(rows), row_begin, row_count, inputs(),
                            panels_);
  }

  void Row(int row, float* out) const override { kernels::UnpackPairedRow(matrix(), row, out); }

  void Apply(const float* x, int rows, float* y) const override {
    const Bf16* const packed = PackRounded(x, rows, inputs(), table_, pool_);
    const int panels = (outputs() + kernels::kPairPanel - 1) / kernels::kPairPanel;
    pool_.ParallelFor(panels, [&](int begin, int end) {
      products_.linear(matrix(), packed, rows, begin, end, y, static_cast<size_t>(outputs()));
    });
  }

 private:
  kernels::PairedMatrix matrix() const { return {panels_, outputs(), inputs()}; }

  const kernels::Bf16Products& products_;
  const KernelTable& table_;
  ThreadPool& pool_;
  const MemoryBuffer memory_;
  Bf16* const panels_;
};

int BlocksOf(int inputs, int offset) {
  return kernels::PackedE4m3Matrix{nullptr, 0, inputs, nullptr, offset}.blocks();
}

class NativeScaledLinear final : public ScaledLinear {
 public:
  NativeScaledLinear(int outputs, int inputs, int offset, const KernelTable& table,
                     ThreadPool& pool)
      : ScaledLinear(outputs, inputs, BlocksOf(inputs, offset)),
        offset_(offset),
        table_(table),
        pool_(pool),
        memory_(Zeroed(kernels::PackedSize(outputs, inputs, table.panel_width))),
        scales_(kernels::PackedSize(outputs, blocks(), table.panel_width)) {}

  void SetRows(const std::byte* /*rows*/, int /*row_begin*/, int /*row_count*/) override {
    BATON_CHECK(false) << "rows without scales";
  }

  void SetScaledRows(const std::byte* rows, const float* scales, int row_begin,
                     int row_count) override {
    kernels::PackRows(reinterpret_cast<const kernels::E4m3*>(rows), row_begin, row_count, inputs(),
                      table_.panel_width, reinterpret_cast<kernels::E4m3*>(memory_.span().data));
    kernels::PackScales(scales, row_begin, row_count, blocks(), table_.panel_width, scales_.data());
  }

  void Row(int row, float* out) const override {
    kernels::UnpackRow(matrix(), row, table_.panel_width, out);
  }

  void Apply(const float* x, int rows, float* y) const override {
    const int panels = (outputs() + table_.panel_width - 1) / table_.panel_width;
    pool_.ParallelFor(panels, [&](int begin, int end) {
      table_.linear_e4m3(matrix(), x, rows, begin, end, y, static_cast<size_t>(outputs()));
    });
  }

 private:
  kernels::PackedE4m3Matrix matrix() const {
    return {reinterpret_cast<const kernels::E4m3*>(memory_.span().data), outputs(), inputs(),
            scales_.data(), offset_};
  }

  const int offset_;
  const KernelTable& table_;
  ThreadPool& pool_;
  const MemoryBuffer memory_;
  std::vector<float> scales_;
};

class PairedScaledLinear final : public ScaledLinear {
 public:
  PairedScaledLinear(int outputs, int inputs, int offset, const kernels::Bf16Products& products,
                     const KernelTable& table, ThreadPool& pool)
      : ScaledLinear(outputs, inputs, BlocksOf(inputs, offset)),
        offset_(offset),
        products_(products),
        table_(table),
        pool_(pool),
        memory_(Zeroed(kernels::PairedSize(outputs, inputs))),
        scales_(kernels::PackedSize(outputs, blocks(), kernels::kPairPanel)) {}

  void SetRows(const std::byte* /*rows*/, int /*row_begin*/, int /*row_count*/) override {
    BATON_CHECK(false) << "rows without scales";
  }

  void SetScaledRows(const std::byte* rows, const float* scales, int row_begin,
                     int row_count) override {
    kernels::PackPairedRows(reinterpret_cast<const kernels::E4m3*>(rows), row_begin, row_count,
                            inputs(), reinterpret_cast<kernels::E4m3*>(memory_.span().data));
    kernels::PackScales(scales, row_begin, row_count, blocks(), kernels::kPairPanel,
                        scales_.data());
  }

  void Row(int row, float* out) const override { kernels::UnpackPairedRow(matrix(), row, out); }

  void Apply(const float* x, int rows, float* y) const override {
    const Bf16* const packed = PackRounded(x, rows, inputs(), table_, pool_);
    const int panels = (outputs() + kernels::kPairPanel - 1) / kernels::kPairPanel;
    pool_.ParallelFor(panels, [&](int begin, int end) {
      products_.linear_e4m3(matrix(), packed, rows, begin, end, y, static_cast<size_t>(outputs()));
    });
  }

 private:
  kernels::PairedE4m3Matrix matrix() const {
    return {reinterpret_cast<const kernels::E4m3*>(memory_.span().data), outputs(), inputs(),
            scales_.data(), offset_};
  }

  const int offset_;
  const kernels::Bf16Products& products_;
  const KernelTable& table_;
  ThreadPool& pool_;
  const MemoryBuffer memory_;
  std::vector<float> scales_;
};

template <typename Element, ElementType kType>
class NativeHeadLinear final : public HeadLinear {
 public:
  NativeHeadLinear(int heads, int outputs, int inputs, const KernelTable& table)
      : HeadLinear(kType),
        outputs_(outputs),
        inputs_(inputs),
        table_(table),
        size_(kernels::PackedSize(outputs, inputs, table.panel_width)),
        memory_(Zeroed(static_cast<size_t>(heads) * size_ * sizeof(Element))),
        panels_(reinterpret_cast<Element*>(memory_.span().data)) {}

  void SetHead(int head, const std::byte* matrix) override {
    kernels::PackRows(reinterpret_cast<const Element*>(matrix), 0, outputs_, inputs_,
                      table_.panel_width, panels_ + static_cast<size_t>(head) * size_);
  }

  void Apply(int head, const float* x, int rows, float* y, size_t stride) const override {
    const Packed<Element> matrix = {panels_ + static_cast<size_t>(head) * size_, outputs_, inputs_};
    const int panels = (outputs_ + table_.panel_width - 1) / table_.panel_width;
    if constexpr (kType == ElementType::kBFloat16) {
      table_.linear_bf16(matrix, x, rows, 0, panels, y, stride);
    } else {
      table_.linear(matrix, x, rows, 0, panels, y, stride);
    }
  }

 private:
  const int outputs_;
  const int inputs_;
  const KernelTable& table_;
  const size_t size_;  // Elements of a head.
  const MemoryBuffer memory_;
  Element* const panels_;
};

}  // namespace

std::unique_ptr<HeadLinear> MakeNativeHeadLinear(int heads, int outputs, int inputs,
                                                 ElementType weights, const KernelTable& table) {
  if (weights == ElementType::kBFloat16) {
    return std::make_unique<NativeHeadLinear<Bf16, ElementType::kBFloat16>>(heads, outputs, inputs,
                                                                            table);
  }
  return std::make_unique<NativeHeadLinear<float, ElementType::kFloat32>>(heads, outputs, inputs,
                                                                          table);
}

std::unique_ptr<Linear> MakePairedLinear(int outputs, int inputs,
                                         const kernels::Bf16Products& products,
                                         const KernelTable& table, ThreadPool& pool) {
  return std::make_unique<PairedLinear>(outputs, inputs, products, table, pool);
}

std::unique_ptr<ScaledLinear> MakePairedScaledLinear(int outputs, int inputs, int offset,
                                                     const kernels::Bf16Products& products,
                                                     const KernelTable& table, ThreadPool& pool) {
  return std::make_unique<PairedScaledLinear>(outputs, inputs, offset, products, table, pool);
}

std::unique_ptr<ScaledLinear> MakeNativeScaledLinear(int outputs, int inputs, int offset,
                                                     const KernelTable& table, ThreadPool& pool) {
  return std::make_unique<NativeScaledLinear>(outputs, inputs, offset, table, pool);
}

std::unique_ptr<Linear> MakeNativeLinear(int outputs, int inputs, ElementType weights,
                                         const KernelTable& table, ThreadPool& pool) {
  if (weights == ElementType::kBFloat16) {
    return std::make_unique<NativeLinear<Bf16, ElementType::kBFloat16>>(outputs, inputs, table,
                                                                        pool);
  }
  return std::make_unique<NativeLinear<float, ElementType::kFloat32>>(outputs, inputs, table, pool);
}

}  // namespace baton
