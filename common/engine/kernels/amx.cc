// Products by Intel's tiles.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

// The order matters.
// clang-format off
#include "common/engine/kernels/bf16_products.h"
#include "common/engine/kernels/amx-inl.h"
// clang-format on

namespace baton::kernels {

namespace {

// Weights come from memory once for each kRowBlock rows, or memory would be slower than the tiles.
// These rows meet kPanelGroup panels in the second-level cache, kInputBlock inputs at a time, of
// which a pass of rows stays in the first-level cache for all of these panels.
constexpr int kRowBlock = 512;
constexpr int kInputBlock = 512;
constexpr int kPanelGroup = 8;
constexpr size_t kPairBytes = size_t{2} * kPairPanel * sizeof(Bf16);

// Tiles are named by literals, since an instruction has their number in it.
#define BATON_LOAD_SUMS(tile, sums, begun)                   \
  do {                                                       \
    if (begun) {                                             \
      _tile_loadd(tile, (sums).tiles[tile].rows, kRowBytes); \
    } else {                                                 \
      _tile_zero(tile);                                      \
    }                                                        \
  } while (false)

// What a pass asks the caches for, since it is needed soon: weights, and the next pass's sums.
struct Ahead {
  const char* weights = nullptr;
  int weight_lines = 0;  // For each block of inputs.
  int sum_lines = 0;
};

// A pass of rows by one panel, inputs [begin, end).
template <bool kLower>
void Pass(const PairedMatrix& w, const Bf16* x, int upper, int lower, int panel, int begin, int end,
          Ahead ahead, Sums& sums) {
  const auto inputs = static_cast<size_t>(PaddedInputs(w.inputs));
  const bool begun = begin > 0;
  BATON_LOAD_SUMS(0, sums, begun);
  BATON_LOAD_SUMS(1, sums, begun);
  if constexpr (kLower) {
    BATON_LOAD_SUMS(2, sums, begun);
    BATON_LOAD_SUMS(3, sums, begun);
  }
  const char* next_sums = reinterpret_cast<const char*>(&sums + 1);
  const char* weights =
      reinterpret_cast<const char*>(w.panels) +
      (static_cast<size_t>(panel) * inputs + static_cast<size_t>(begin)) / 2 * kPairBytes;
  const size_t step = static_cast<size_t>(upper + lower) * kPairBlock;
  const Bf16* rows = x + static_cast<size_t>(begin) / kPairBlock * step;
  for (int i = begin; i < end; i += kPairBlock) {
    // A pass uses weights once: they are not to push its rows out of the first-level cache.
    _tile_stream_loadd(6, weights, static_cast<long>(kPairBytes));
    _tile_loadd(4, rows, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_stream_loadd(7, weights + kPairBytes / 2, static_cast<long>(kPairBytes));
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kLower) {
      _tile_loadd(5, rows + size_t{kTileRows} * kPairBlock, kRowBytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    for (int line = 0; line < ahead.weight_lines; ++line, ahead.weights += 64) {
      _mm_prefetch(ahead.weights, _MM_HINT_T1);
    }
    for (int line = 0; line < ahead.sum_lines; ++line, next_sums += 64) {
      _mm_prefetch(next_sums, _MM_HINT_T0);
    }
    weights += kPairBlock / 2 * kPairBytes;
    rows += step;
  }
  _tile_stored(0, sums.tiles[0].rows, kRowBytes);
  _tile_stored(1, sums.tiles[1].rows, kRowBytes);
  if constexpr (kLower) {
    _tile_stored(2, sums.tiles[2].rows, kRowBytes);
    _tile_stored(3, sums.tiles[3].rows, kRowBytes);
  }
}

// Rows [row_begin, row_end) of all `rows` by panels [panel_begin, panel_end), inputs [begin, end).
// Each pass asks for its part of the weights that begin at `next`, panels `stride` bytes apart.
void Block(const PairedMatrix& w, const Bf16* x, int rows, int row_begin, int row_end,
           int panel_begin, int panel_end, int begin, int end, const char* next, size_t stride,
           Sums* sums, float* y, size_t y_stride) {
  const auto inputs = static_cast<size_t>(PaddedInputs(w.inputs));
  const int passes = (row_end - row_begin + kPairPass - 1) / kPairPass;
  Ahead ahead;
  constexpr int kLinesOfBlock = kPairBlock / 2 * static_cast<int>(kPairBytes) / 64;
  ahead.weight_lines = next == nullptr ? 0 : (kLinesOfBlock + passes - 1) / passes;
  const bool whole = end - begin == static_cast<int>(inputs);  // There are no sums to be loaded.
  ahead.sum_lines = whole ? 0 : static_cast<int>(sizeof(Sums)) / 64 * kPairBlock / kInputBlock;
  int configured = 0;  // Rows that tiles are configured for.
  for (int row = row_begin; row < row_end; row += kPairPass) {
    const int count = std::min(rows - row, kPairPass);
    const int upper = std::min(count, kTileRows);
    const int lower = count - upper;
    if (configured != count) Configure(upper, lower);
    configured = count;
    const auto at = static_cast<size_t>(row);
    const auto pass = static_cast<size_t>((row - row_begin) / kPairPass);
    for (int panel = panel_begin; panel < panel_end; ++panel) {
      const auto number = static_cast<size_t>(panel - panel_begin);
      if (next != nullptr) {
        ahead.weights =
            next + number * stride +
            pass * static_cast<size_t>(ahead.weight_lines * (end - begin) / kPairBlock) * 64;
      }
      (lower > 0 ? Pass<true> : Pass<false>)(w, x + at * inputs, upper, lower, panel, begin, end,
                                             ahead, *sums);
      if (end == static_cast<int>(inputs)) {
        Store(*sums, count, w.outputs - panel * kPairPanel,
              y + at * y_stride + static_cast<size_t>(panel) * kPairPanel, y_stride);
      }
      ++sums;
    }
  }
}

}  // namespace

void LinearAmx(const PairedMatrix& w, const Bf16* x, int rows, int panel_begin, int panel_end,
               float* y, size_t y_stride) {
  const int all = PaddedInputs(w.inputs);
  const size_t panel_bytes = static_cast<size_t>(all) / 2 * kPairBytes;
  const auto weights = [&](int panel, int input) {
    return reinterpret_cast<const char*>(w.panels) + static_cast<size_t>(panel) * panel_bytes +
           static_cast<size_t>(input) / 2 * kPairBytes;
  };
  thread_local std::vector<Sums> sums(size_t{kRowBlock / kPairPass} * kPanelGroup);
  // Few rows are bound by memory, which is read in order. The hardware's prefetchers stop at each
  // page, so that a pass asks for its own weights two blocks before it multiplies by them.
  const int input_block = rows <= kPairPass ? all : kInputBlock;
  for (int row = 0; row < rows; row += kRowBlock) {
    const int row_end = std::min(row + kRowBlock, rows);
    for (int panel = panel_begin; panel < panel_end; panel += kPanelGroup) {
      const int panels = std::min(panel + kPanelGroup, panel_end);
      for (int begin = 0; begin < all; begin += input_block) {
        const int end = std::min(begin + input_block, all);
        const char* const next = rows <= kPairPass    ? weights(panel, 2 * kPairBlock)
                                 : end < all          ? weights(panel, end)
                                 : panels < panel_end ? weights(panels, 0)
                                                      : nullptr;
        Block(w, x, rows, row, row_end, panel, panels, begin, end, next, panel_bytes, sums.data(),
              y, y_stride);
      }
    }
  }
  _tile_release();
}

}  // namespace baton::kernels
