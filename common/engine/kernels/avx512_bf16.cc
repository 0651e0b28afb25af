// Products by AVX512_BF16: each instruction adds to 16 outputs of a row the products of a pair of
// its inputs.
#include <immintrin.h>

// The order matters.
// clang-format off
#include "common/engine/kernels/bf16_products.h"
#include "common/engine/kernels/widen-inl.h"
// clang-format on

namespace baton::kernels {

namespace {

constexpr int kLanes = 16;
constexpr int kTileRows = 12;  // With 24 sums, two vectors of weights and an input.
constexpr size_t kPairBytes = size_t{2} * kPairPanel * sizeof(Bf16);

// A panel's weights of so many inputs (64 KiB) stay in the second-level cache while a block of rows
// passes over them.
constexpr int kInputBlock = 1024;
// With so many inputs a block of rows stays there, too: 512 KiB.
constexpr int kRowBlock = 256;

// Few rows are bound by memory, and the hardware's prefetchers stop at each page. Into the
// second-level cache: the first has few misses under way at a time, and read a tenth less a second.
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
        _mm_prefetch(weights + kPrefetchBytes, _MM_HINT_T1);
        _mm_prefetch(weights + kPrefetchBytes + kPairBytes / 2, _MM_HINT_T1);
      }
      const auto w_left = (__m512bh)_mm512_loadu_si512(weights);
      const auto w_right = (__m512bh)_mm512_loadu_si512(weights + kPairBytes / 2);
#pragma GCC unroll 16
      for (ptrdiff_t r = 0; r < kRows; ++r) {
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

// ---- FP8 ----

constexpr int kNarrowTileRows = 11;  // With 22 sums, an input, weights, and what widens them.
constexpr size_t kNarrowPairBytes = size_t{2} * kPairPanel;

// Where the inputs from `begin` on end that are added up before they are scaled: those of a scale,
// and of a block of inputs, so that few rows are added up as many are.
int SharedEnd(const PairedE4m3Matrix& w, int begin, int end) {
  const int of_scale = ((begin + w.offset) / kScaleBlock + 1) * kScaleBlock - w.offset;
  const int of_block = (begin / kInputBlock + 1) * kInputBlock;
  return Min(Min(of_scale, of_block), end);
}

// kRows rows of x, whose first inputs are there, by a panel, inputs [begin, end).
template <int kRows>
void NarrowTile(const PairedE4m3Matrix& w, int panel, int begin, int end, const Bf16* x,
                size_t step, float* y, size_t y_stride) {
  const Widener widen;
  const int columns = w.outputs - panel * kPairPanel;
  const __mmask16 left_lanes = FirstLanes(columns);
  const __mmask16 right_lanes = FirstLanes(columns - kLanes);
  const char* weights = reinterpret_cast<const char*>(w.panels) +
                        (static_cast<size_t>(panel) * static_cast<size_t>(PaddedInputs(w.inputs)) +
                         static_cast<size_t>(begin)) /
                            2 * kNarrowPairBytes;
  for (int i = begin; i < end;) {
    const bool begun = i > 0;
    const size_t block = static_cast<size_t>(panel) * static_cast<size_t>(w.blocks()) +
                         static_cast<size_t>((i + w.offset) / kScaleBlock);
    const int shared_end = SharedEnd(w, i, end);
    __m512 left[kRows] = {};
    __m512 right[kRows] = {};
    while (i < shared_end) {
      const Bf16* pairs = x + static_cast<size_t>(i / kPairBlock) * step + i % kPairBlock;
      const int stop = Min((i / kPairBlock + 1) * kPairBlock, shared_end);
      for (; i < stop; i += 2, pairs += 2, weights += kNarrowPairBytes) {
        if constexpr (kRows < kNarrowTileRows) {
          _mm_prefetch(weights + kPrefetchBytes, _MM_HINT_T1);
        }
        __m512bh w_left;
        __m512bh w_right;
        widen(weights, w_left, w_right);
#pragma GCC unroll 16
        for (ptrdiff_t r = 0; r < kRows; ++r) {
          const __m512bh pair = PairOf(pairs + r * kPairBlock);
          left[r] = _mm512_dpbf16_ps(left[r], pair, w_left);
          right[r] = _mm512_dpbf16_ps(right[r], pair, w_right);
        }
      }
    }
    const __m512 left_scales = _mm512_loadu_ps(w.scales + block * kPairPanel);
    const __m512 right_scales = _mm512_loadu_ps(w.scales + block * kPairPanel + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      float* const at = y + static_cast<size_t>(r) * y_stride;
      const __m512 before = begun ? _mm512_maskz_loadu_ps(left_lanes, at) : _mm512_setzero_ps();
      const __m512 beside =
          begun ? _mm512_maskz_loadu_ps(right_lanes, at + kLanes) : _mm512_setzero_ps();
      _mm512_mask_storeu_ps(at, left_lanes, _mm512_fmadd_ps(left[r], left_scales, before));
      _mm512_mask_storeu_ps(at + kLanes, right_lanes,
                            _mm512_fmadd_ps(right[r], right_scales, beside));
    }
  }
}

template <int kRows>
void NarrowTileOf(int rows, const PairedE4m3Matrix& w, int panel, int begin, int end, const Bf16* x,
                  size_t step, float* y, size_t y_stride) {
  if (rows == kRows) {
    NarrowTile<kRows>(w, panel, begin, end, x, step, y, y_stride);
  } else if constexpr (kRows > 1) {
    NarrowTileOf<kRows - 1>(rows, w, panel, begin, end, x, step, y, y_stride);
  }
}

// ---- Both ----

// Calls tile(rows, panel, begin, end, x, step, y) for tiles of rows, blocks of inputs and panels:
// x is the tile's first input, from which the next block of inputs is `step` numbers away.
template <typename Tile>
void ForTiles(int tile_rows, int inputs, const Bf16* x, int rows, int panel_begin, int panel_end,
              float* y, size_t y_stride, const Tile& tile) {
  const int all = PaddedInputs(inputs);
  // The rows of one tile use a panel's weights once and read them in memory order.
  const int input_block = rows <= tile_rows ? all : kInputBlock;
  const auto run = [&](int panel, int begin, int end, int row_begin, int row_end) {
    for (int pass = row_begin; pass < row_end; pass += kPairPass) {
      const int of_pass = Min(rows - pass, kPairPass);
      const size_t step = static_cast<size_t>(of_pass) * kPairBlock;
      for (int row = 0; row < of_pass; row += tile_rows) {
        tile(Min(of_pass - row, tile_rows), panel, begin, end,
             x + static_cast<size_t>(pass) * static_cast<size_t>(all) +
                 static_cast<size_t>(row) * kPairBlock,
             step,
             y + static_cast<size_t>(pass + row) * y_stride +
                 static_cast<size_t>(panel) * kPairPanel);
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

}  // namespace

void LinearAvx512Bf16(const PairedMatrix& w, const Bf16* x, int rows, int panel_begin,
                      int panel_end, float* y, size_t y_stride) {
  const auto inputs = static_cast<size_t>(PaddedInputs(w.inputs));
  ForTiles(
      kTileRows, w.inputs, x, rows, panel_begin, panel_end, y, y_stride,
      [&](int count, int panel, int begin, int end, const Bf16* from, size_t step, float* to) {
        const char* const weights =
            reinterpret_cast<const char*>(w.panels) +
            (static_cast<size_t>(panel) * inputs + static_cast<size_t>(begin)) / 2 * kPairBytes;
        TileOf<kTileRows>(count, weights, from + static_cast<size_t>(begin / kPairBlock) * step,
                          step, (end - begin) / kPairBlock, w.outputs - panel * kPairPanel,
                          begin > 0, to, y_stride);
      });
}

void LinearE4m3Avx512Bf16(const PairedE4m3Matrix& w, const Bf16* x, int rows, int panel_begin,
                          int panel_end, float* y, size_t y_stride) {
  ForTiles(kNarrowTileRows, w.inputs, x, rows, panel_begin, panel_end, y, y_stride,
           [&](int count, int panel, int begin, int end, const Bf16* from, size_t step, float* to) {
             // What pads the inputs has no scale.
             NarrowTileOf<kNarrowTileRows>(count, w, panel, begin, Min(end, w.inputs), from, step,
                                           to, y_stride);
           });
}

}  // namespace baton::kernels
