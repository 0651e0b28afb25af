#include "common/engine/native/native_linear.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/device/memory.h"

namespace baton {
namespace {

using kernels::Bf16;
using kernels::E4m3;
using kernels::KernelTable;
using kernels::Packed;

// Zeroed memory. A product of one row reads all of it in order; large pages make that a tenth
// faster than a vector's memory. Throws bad_alloc like a vector.
MemoryBuffer Zeroed(size_t bytes) {
  absl::StatusOr<MemoryBuffer> memory = AllocateHost(bytes);
  if (!memory.ok()) throw std::bad_alloc();
  if (bytes > 0) std::memset(memory->span().data, 0, bytes);
  return *std::move(memory);
}

// How a matrix is packed and multiplied: by the kernels of a table,
struct TablePanels {
  const KernelTable& table;

  int width() const { return table.panel_width; }
  size_t Size(int outputs, int inputs) const {
    return kernels::PackedSize(outputs, inputs, table.panel_width);
  }
  template <typename Element>
  void Pack(const Element* rows, int row_begin, int row_count, int inputs, Element* panels) const {
    kernels::PackRows(rows, row_begin, row_count, inputs, table.panel_width, panels);
  }
  template <typename Element>
  void Unpack(const Packed<Element>& w, int row, float* out) const {
    kernels::UnpackRow(w, row, table.panel_width, out);
  }
  // x as the product takes it.
  const float* Given(const float* x, int /*rows*/, int /*inputs*/, ThreadPool& /*pool*/) const {
    return x;
  }
  auto Product(const Packed<float>& /*w*/) const { return table.linear; }
  auto Product(const Packed<Bf16>& /*w*/) const { return table.linear_bf16; }
  auto Product(const Packed<E4m3>& /*w*/) const { return table.linear_e4m3; }
};

// or by products of pairs.
struct PairedPanels {
  const kernels::Bf16Products& products;
  const KernelTable& table;

  int width() const { return kernels::kPairPanel; }
  size_t Size(int outputs, int inputs) const { return kernels::PairedSize(outputs, inputs); }
  template <typename Element>
  void Pack(const Element* rows, int row_begin, int row_count, int inputs, Element* panels) const {
    kernels::PackPairedRows(rows, row_begin, row_count, inputs, panels);
  }
  template <typename Element>
  void Unpack(const Packed<Element>& w, int row, float* out) const {
    kernels::UnpackPairedRow(w, row, out);
  }
  // Rounded; until the calling thread's next call.
  const Bf16* Given(const float* x, int rows, int inputs, ThreadPool& pool) const {
    const auto columns = static_cast<size_t>(kernels::PaddedInputs(inputs));
    const auto given = static_cast<size_t>(inputs);
    // One for all matrices that a thread multiplies by; it is as large as the largest input.
    thread_local std::vector<Line> packed;
    packed.resize(
        std::max(packed.size(), static_cast<size_t>(rows) * columns / kernels::kPairBlock));
    Bf16* const to = packed.data()->numbers;
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
  auto Product(const Packed<Bf16>& /*w*/) const { return products.linear; }
  auto Product(const Packed<E4m3>& /*w*/) const { return products.linear_e4m3; }

 private:
  // What a tile's row is loaded from: it begins with a line of the cache, or each load takes two.
  struct alignas(64) Line {
    Bf16 numbers[kernels::kPairBlock];
  };
};

template <typename Element>
constexpr ElementType kTypeOf =
    std::is_same_v<Element, Bf16> ? ElementType::kBFloat16 : ElementType::kFloat32;

int PanelsOf(int outputs, int width) { return (outputs + width - 1) / width; }

template <typename Element, typename Panels>
class PackedLinear final : public Linear {
 public:
  // `offset` is of FP8 alone.
  PackedLinear(int outputs, int inputs, int offset, const Panels& panels, ThreadPool& pool)
      : Linear(outputs, inputs, kTypeOf<Element>, BlocksOf(inputs, offset)),
        offset_(offset),
        panels_(panels),
        pool_(pool),
        memory_(Zeroed(panels.Size(outputs, inputs) * sizeof(Element))),
        elements_(reinterpret_cast<Element*>(memory_.span().data)),
        scales_(kernels::PackedSize(outputs, blocks(), panels.width())) {}

  void SetRows(const std::byte* rows, const float* scales, int row_begin, int row_count) override {
    panels_.Pack(reinterpret_cast<const Element*>(rows), row_begin, row_count, inputs(), elements_);
    if (blocks() == 0) return;
    BATON_CHECK(scales != nullptr) << "rows without scales";
    kernels::PackRows(scales, row_begin, row_count, blocks(), panels_.width(), scales_.data());
  }

  void Row(int row, float* out) const override { panels_.Unpack(matrix(), row, out); }

  void Apply(const float* x, int rows, float* y) const override {
    const auto* const given = panels_.Given(x, rows, inputs(), pool_);
    pool_.ParallelFor(PanelsOf(outputs(), panels_.width()), [&](int begin, int end) {
      const Packed<Element> w = matrix();
      panels_.Product(w)(w, given, rows, begin, end, y, static_cast<size_t>(outputs()));
    });
  }

 private:
  static constexpr bool kScaled = std::is_same_v<Element, E4m3>;

  static int BlocksOf(int inputs, int offset) {
    if constexpr (!kScaled) return 0;
    return Packed<E4m3>{nullptr, 0, inputs, nullptr, offset}.blocks();
  }

  Packed<Element> matrix() const {
    if constexpr (kScaled) {
      return {elements_, outputs(), inputs(), scales_.data(), offset_};
    } else {
      return {elements_, outputs(), inputs()};
    }
  }

  const int offset_;
  const Panels panels_;
  ThreadPool& pool_;
  const MemoryBuffer memory_;
  Element* const elements_;
  std::vector<float> scales_;
};

template <typename Element, typename Panels>
std::unique_ptr<Linear> MakePacked(int outputs, int inputs, int offset, const Panels& panels,
                                   ThreadPool& pool) {
  return std::make_unique<PackedLinear<Element, Panels>>(outputs, inputs, offset, panels, pool);
}

template <typename Element>
class NativeHeadLinear final : public HeadLinear {
 public:
  NativeHeadLinear(int heads, int outputs, int inputs, const KernelTable& table)
      : HeadLinear(kTypeOf<Element>),
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
    TablePanels{table_}.Product(matrix)(matrix, x, rows, 0, PanelsOf(outputs_, table_.panel_width),
                                        y, stride);
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
    return std::make_unique<NativeHeadLinear<Bf16>>(heads, outputs, inputs, table);
  }
  return std::make_unique<NativeHeadLinear<float>>(heads, outputs, inputs, table);
}

std::unique_ptr<Linear> MakePairedLinear(int outputs, int inputs,
                                         const kernels::Bf16Products& products,
                                         const KernelTable& table, ThreadPool& pool) {
  return MakePacked<Bf16>(outputs, inputs, /*offset=*/0, PairedPanels{products, table}, pool);
}

std::unique_ptr<Linear> MakePairedScaledLinear(int outputs, int inputs, int offset,
                                               const kernels::Bf16Products& products,
                                               const KernelTable& table, ThreadPool& pool) {
  return MakePacked<E4m3>(outputs, inputs, offset, PairedPanels{products, table}, pool);
}

std::unique_ptr<Linear> MakeNativeScaledLinear(int outputs, int inputs, int offset,
                                               const KernelTable& table, ThreadPool& pool) {
  return MakePacked<E4m3>(outputs, inputs, offset, TablePanels{table}, pool);
}

std::unique_ptr<Linear> MakeNativeLinear(int outputs, int inputs, ElementType weights,
                                         const KernelTable& table, ThreadPool& pool) {
  const auto make = weights == ElementType::kBFloat16 ? MakePacked<Bf16, TablePanels>
                                                      : MakePacked<float, TablePanels>;
  return make(outputs, inputs, /*offset=*/0, TablePanels{table}, pool);
}

}  // namespace baton
