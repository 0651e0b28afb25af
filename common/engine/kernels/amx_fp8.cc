// Products of FP8 weights by Intel's tiles: those of a panel that share scales are widened to
// bfloat16, which stays in the first-level cache while all rows of a block pass over it. While the
// first rows do, the next ones are widened: lookups and tiles keep different units busy.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

// The order matters.
// clang-format off
#include "common/engine/kernels/bf16_products.h"
#include "common/engine/kernels/amx-inl.h"
#include "common/engine/kernels/widen-inl.h"
// clang-format on

namespace baton::kernels {

namespace {

// Rows whose sums stay in the second-level cache.
constexpr int kRowBlock = 512;
constexpr size_t kPairBytes = size_t{2} * kPairPanel;  // Narrow.
constexpr size_t kPrefetchBytes = 4096;

// Blocks of kPairBlock inputs, [kPairBlock / 2][kPairPanel][2]: those of a scale may begin and end
// within one.
struct alignas(64) Wide {
  Bf16 weights[kScaleBlock / kPairBlock + 1][kPairBlock / 2][kPairPanel][2];
};

// Inputs [begin, end) of a panel that share a scale.
struct Segment {
  int panel;
  int begin;
  int end;
  int first_block() const { return begin / kPairBlock; }
  int blocks() const { return (end + kPairBlock - 1) / kPairBlock - first_block(); }
};

Segment SegmentAt(const PairedE4m3Matrix& w, int panel, int begin) {
  const int scale_end = ((begin + w.offset) / kScaleBlock + 1) * kScaleBlock - w.offset;
  return {panel, begin, std::min(scale_end, w.inputs)};
}

// The one behind it in memory.
Segment After(const PairedE4m3Matrix& w, const Segment& segment) {
  return segment.end < w.inputs ? SegmentAt(w, segment.panel, segment.end)
                                : SegmentAt(w, segment.panel + 1, 0);
}

// Widens a segment block by block, with zeros in place of what is not the segment's.
class Widening {
 public:
  explicit Widening(const PairedE4m3Matrix& w) : w_(w) {}

  void Begin(const Segment& segment, Wide& wide) {
    segment_ = segment;
    const int begin = segment.first_block() * kPairBlock;
    const auto at =
        static_cast<size_t>(segment.panel) * static_cast<size_t>(PaddedInputs(w_.inputs)) +
        static_cast<size_t>(begin);
    weights_ = reinterpret_cast<const char*>(w_.panels) + at / 2 * kPairBytes;
    out_ = &wide.weights[0][0][0][0];
    input_ = begin;
    left_ = segment.blocks();
  }

  // The next block, if there is one.
  void Step() {
    if (left_ == 0) return;
    const Widener widen;
    for (int i = input_; i < input_ + kPairBlock; i += 2) {
      _mm_prefetch(weights_ + kPrefetchBytes, _MM_HINT_T1);
      __m512bh left = {};
      __m512bh right = {};
      if (i >= segment_.begin && i < segment_.end) widen(weights_, left, right);
      _mm512_store_si512(out_, (__m512i)left);
      _mm512_store_si512(out_ + kPairBytes / 2, (__m512i)right);
      weights_ += kPairBytes;
      out_ += kPairBytes;
    }
    input_ += kPairBlock;
    --left_;
  }

  void Finish() {
    while (left_ > 0) Step();
  }

 private:
  const PairedE4m3Matrix& w_;
  Segment segment_ = {};
  const char* weights_ = nullptr;
  Bf16* out_ = nullptr;
  int input_ = 0;
  int left_ = 0;  // Blocks.
};

// A pass of rows, whose first block is at `rows`, by a segment.
template <bool kLower>
void Multiply(const Wide& wide, int blocks, const Bf16* rows, size_t step, Widening& next,
              Sums& products) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  constexpr long kStride = 2 * kRowBytes;  // From one pair of inputs to the next.
  for (int block = 0; block < blocks; ++block, rows += step) {
    const Bf16* const weights = &wide.weights[block][0][0][0];
    _tile_loadd(6, weights, kStride);
    _tile_loadd(4, rows, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weights + kPairPanel, kStride);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kLower) {
      _tile_loadd(5, rows + size_t{kTileRows} * kPairBlock, kRowBytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    next.Step();
  }
  _tile_stored(0, products.tiles[0].rows, kRowBytes);
  _tile_stored(1, products.tiles[1].rows, kRowBytes);
  if constexpr (kLower) {
    _tile_stored(2, products.tiles[2].rows, kRowBytes);
    _tile_stored(3, products.tiles[3].rows, kRowBytes);
  }
}

// sums += products * scales, for so many rows.
void AddScaled(const Sums& products, const float* scales, int rows, Sums& sums) {
  const __m512 sides[2] = {_mm512_loadu_ps(scales), _mm512_loadu_ps(scales + kTileOutputs)};
  for (int row = 0; row < rows; ++row) {
    for (int side = 0; side < 2; ++side) {
      const int tile = row / kTileRows * 2 + side;
      float* const sum = sums.tiles[tile].rows[row % kTileRows];
      const __m512 product = _mm512_load_ps(products.tiles[tile].rows[row % kTileRows]);
      _mm512_store_ps(sum, _mm512_fmadd_ps(product, sides[side], _mm512_load_ps(sum)));
    }
  }
}

}  // namespace

void LinearE4m3Amx(const PairedE4m3Matrix& w, const Bf16* x, int rows, int panel_begin,
                   int panel_end, float* y, size_t y_stride) {
  const int all = PaddedInputs(w.inputs);
  thread_local std::vector<Sums> sums(kRowBlock / kPairPass);
  Wide wides[2];
  Sums products;
  int configured = 0;  // Rows that tiles are configured for.
  for (int row_begin = 0; row_begin < rows; row_begin += kRowBlock) {
    const int row_end = std::min(row_begin + kRowBlock, rows);
    const auto passes = static_cast<size_t>((row_end - row_begin + kPairPass - 1) / kPairPass);
    Widening next(w);
    int turn = 0;
    Segment segment = SegmentAt(w, panel_begin, 0);
    next.Begin(segment, wides[turn]);
    next.Finish();
    for (int panel = panel_begin; panel < panel_end; ++panel) {
      std::memset(sums.data(), 0, passes * sizeof(Sums));
      const float* scales =
          w.scales + static_cast<size_t>(panel) * static_cast<size_t>(w.blocks()) * kPairPanel;
      for (; segment.panel == panel; scales += kPairPanel) {
        const Wide& wide = wides[turn];
        turn = 1 - turn;
        const Segment following = After(w, segment);
        if (following.panel < panel_end) next.Begin(following, wides[turn]);
        for (int row = row_begin; row < row_end; row += kPairPass) {
          const int count = std::min(rows - row, kPairPass);
          if (configured != count) {
            Configure(std::min(count, kTileRows), std::max(count - kTileRows, 0));
          }
          configured = count;
          const size_t step = static_cast<size_t>(count) * kPairBlock;
          const Bf16* const from = x + static_cast<size_t>(row) * static_cast<size_t>(all) +
                                   static_cast<size_t>(segment.first_block()) * step;
          (count > kTileRows ? Multiply<true> : Multiply<false>)(wide, segment.blocks(), from, step,
                                                                 next, products);
          AddScaled(products, scales, count,
                    sums[static_cast<size_t>((row - row_begin) / kPairPass)]);
        }
        next.Finish();
        segment = following;
      }
      for (int row = row_begin; row < row_end; row += kPairPass) {
        Store(sums[static_cast<size_t>((row - row_begin) / kPairPass)],
              std::min(rows - row, kPairPass), w.outputs - panel * kPairPanel,
              y + static_cast<size_t>(row) * y_stride + static_cast<size_t>(panel) * kPairPanel,
              y_stride);
      }
    }
  }
  _tile_release();
}

}  // namespace baton::kernels
