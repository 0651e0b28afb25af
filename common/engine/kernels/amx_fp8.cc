// Products of FP8 weights by Intel's tiles: those of a panel that share scales are widened to
// bfloat16, which stays in the first-level cache while all rows of a block pass over it.
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
  int begin;
  int end;
  int first_block() const { return begin / kPairBlock; }
  int blocks() const { return (end + kPairBlock - 1) / kPairBlock - first_block(); }
};

// Zeros in place of what is not the segment's.
void Widen(const PairedE4m3Matrix& w, int panel, const Segment& segment, Wide& wide) {
  const Widener widen;
  const auto inputs = static_cast<size_t>(PaddedInputs(w.inputs));
  const int begin = segment.first_block() * kPairBlock;
  const char* weights =
      reinterpret_cast<const char*>(w.panels) +
      (static_cast<size_t>(panel) * inputs + static_cast<size_t>(begin)) / 2 * kPairBytes;
  Bf16* out = &wide.weights[0][0][0][0];
  for (int i = begin; i < begin + segment.blocks() * kPairBlock;
       i += 2, weights += kPairBytes, out += kPairBytes) {
    _mm_prefetch(weights + kPrefetchBytes, _MM_HINT_T1);
    __m512bh left = {};
    __m512bh right = {};
    if (i >= segment.begin && i < segment.end) widen(weights, left, right);
    _mm512_store_si512(out, (__m512i)left);
    _mm512_store_si512(out + kPairBytes / 2, (__m512i)right);
  }
}

// A pass of rows, whose first block is at `rows`, by a segment.
template <bool kLower>
void Multiply(const Wide& wide, int blocks, const Bf16* rows, size_t step, Sums& products) {
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
  Wide wide;
  Sums products;
  int configured = 0;  // Rows that tiles are configured for.
  for (int row_begin = 0; row_begin < rows; row_begin += kRowBlock) {
    const int row_end = std::min(row_begin + kRowBlock, rows);
    const auto passes = static_cast<size_t>((row_end - row_begin + kPairPass - 1) / kPairPass);
    for (int panel = panel_begin; panel < panel_end; ++panel) {
      std::memset(sums.data(), 0, passes * sizeof(Sums));
      const float* scales =
          w.scales + static_cast<size_t>(panel) * static_cast<size_t>(w.blocks()) * kPairPanel;
      for (int i = 0; i < w.inputs; scales += kPairPanel) {
        const int scale_end = ((i + w.offset) / kScaleBlock + 1) * kScaleBlock - w.offset;
        const Segment segment = {i, std::min(scale_end, w.inputs)};
        i = segment.end;
        Widen(w, panel, segment, wide);
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
                                                                 products);
          AddScaled(products, scales, count,
                    sums[static_cast<size_t>((row - row_begin) / kPairPass)]);
        }
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
