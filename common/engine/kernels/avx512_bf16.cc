// Products by AVX512_BF16: each instruction adds to 16 outputs of a row the products of a pair of
// its inputs.
#include <immintrin.h>

#include "common/engine/kernels/bf16_products.h"

namespace baton::kernels {

void LinearAvx512Bf16(const PairedMatrix& w, const Bf16* x, int rows, int panel_begin,
                      int panel_end, float* y, size_t y_stride);

namespace {

constexpr int kLanes = 16;
constexpr int kTileRows = 12;  // With 24 sums, two vectors of weights and an input.
constexpr size_t kPairBytes = size_t{2} * kPairPanel * sizeof(Bf16);

// A panel's weights of so many inputs (64 KiB) stay in the second-level cache while a block of rows
// passes over them.
constexpr int kInputBlock = 1024;
// With so many inputs a block of rows stays there, too: 512 KiB.
constexpr int kRowBlock = 256;

// Few rows are bound by memory, and the hardware's prefetchers stop at each page.
constexpr size_t kPrefetchBytes = 4096;

// No inline function of another header is called (kernels-inl.h).
int Min(int a, int b) { return a < b ? a : b; }

__mmask16 FirstLanes(int count) {
  const int lanes = count < 0 ? 0 : Min(count, kLanes);
  return static_cast<__mmask16>((1U << lanes) - 1);
}

__m512bh PairOf(const Bf16* inputs) {
  int pair = 0;
  __builtin_memcpy(&pair, inputs, sizeof(pair));
  return (__m512bh)_mm512_set1_epi32(pair);
}

// kRows rows of x, `step` numbers from one block of inputs to the next, by a panel's weights of so
// many blocks.
template <int kRows>
void Tile(const char* weights, const Bf16* x, size_t step, int blocks, int columns, bool begun,
          float* y, size_t y_stride) {
  const __mmask16 left_lanes = FirstLanes(columns);
  const __mmask16 right_lanes = FirstLanes(columns - kLanes);
  __m512 left[kRows];
  __m512 right[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const float* const at = y + static_cast<size_t>(r) * y_stride;
    left[r] = begun ? _mm512_maskz_loadu_ps(left_lanes, at) : _mm512_setzero_ps();
    right[r] = begun ? _mm512_maskz_loadu_ps(right_lanes, at + kLanes) : _mm512_setzero_ps();
  }
  for (int block = 0; block < blocks; ++block, x += step) {
    for (int i = 0; i < kPairBlock; i += 2, weights += kPairBytes) {
      if constexpr (kRows < kTileRows) {
        _mm_prefetch(weights + kPrefetchBytes, _MM_HINT_T0);
        _mm_prefetch(weights + kPrefetchBytes + kPairBytes / 2, _MM_HINT_T0);
      }
      const auto w_left = (__m512bh)_mm512_loadu_si512(weights);
      const auto w_right = (__m512bh)_mm512_loadu_si512(weights + kPairBytes / 2);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const __m512bh pair = PairOf(x + r * kPairBlock + i);
        left[r] = _mm512_dpbf16_ps(left[r], pair, w_left);
        right[r] = _mm512_dpbf16_ps(right[r], pair, w_right);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float* const at = y + static_cast<size_t>(r) * y_stride;
    _mm512_mask_storeu_ps(at, left_lanes, left[r]);
    _mm512_mask_storeu_ps(at + kLanes, right_lanes, right[r]);
  }
}

// Calls the tile of exactly `rows` rows, 1 <= rows <= kRows.
template <int kRows>
void TileOf(int rows, const char* weights, const Bf16* x, size_t step, int blocks, int columns,
            bool begun, float* y, size_t y_stride) {
  if (rows == kRows) {
    Tile<kRows>(weights, x, step, blocks, columns, begun, y, y_stride);
  } else if constexpr (kRows > 1) {
    TileOf<kRows - 1>(rows, weights, x, step, blocks, columns, begun, y, y_stride);
  }
}

}  // namespace

void LinearAvx512Bf16(const PairedMatrix& w, const Bf16* x, int rows, int panel_begin,
                      int panel_end, float* y, size_t y_stride) {
  const int all = PaddedInputs(w.inputs);
  const auto inputs = static_cast<size_t>(all);
  // The rows of one pass use a panel's weights once and read them in memory order.
  const int input_block = rows <= kTileRows ? all : kInputBlock;
  const auto run = [&](int panel, int begin, int end, int row_begin, int row_end) {
    const char* const weights =
        reinterpret_cast<const char*>(w.panels) +
        (static_cast<size_t>(panel) * inputs + static_cast<size_t>(begin)) / 2 * kPairBytes;
    const int columns = w.outputs - panel * kPairPanel;
    for (int pass = row_begin; pass < row_end; pass += kPairPass) {
      const int of_pass = Min(rows - pass, kPairPass);
      const size_t step = static_cast<size_t>(of_pass) * kPairBlock;
      const Bf16* const from =
          x + static_cast<size_t>(pass) * inputs + static_cast<size_t>(begin) / kPairBlock * step;
      for (int row = 0; row < of_pass; row += kTileRows) {
        TileOf<kTileRows>(Min(of_pass - row, kTileRows), weights,
                          from + static_cast<size_t>(row) * kPairBlock, step,
                          (end - begin) / kPairBlock, columns, begin > 0,
                          y + static_cast<size_t>(pass + row) * y_stride +
                              static_cast<size_t>(panel) * kPairPanel,
                          y_stride);
      }
    }
  };
  for (int row = 0; row < rows; row += kRowBlock) {
    for (int begin = 0; begin < all; begin += input_block) {
      for (int panel = panel_begin; panel < panel_end; ++panel) {
        run(panel, begin, Min(begin + input_block, all), row, Min(row + kRowBlock, rows));
      }
    }
  }
}

}  // namespace baton::kernels
