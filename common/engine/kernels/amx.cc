// Products by Intel's tiles.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/engine/kernels/bf16_products.h"

namespace baton::kernels {

namespace {

constexpr int kTileRows = 16;
constexpr int kTileOutputs = 16;
static_assert(kPairPass == 2 * kTileRows);

// Weights come from memory once for each kRowBlock rows, or memory would be slower than the tiles.
// With these rows 1,024 inputs and 8 panels meet in the second-level cache: 1 MiB of x, 0.5 MiB of
// weights, 0.5 MiB of y.
constexpr int kRowBlock = 512;
constexpr int kInputBlock = 1024;
constexpr int kPanelGroup = 8;
constexpr size_t kPairBytes = size_t{2} * kPairPanel * sizeof(Bf16);

// Tiles 0 to 3 are sums of two rows of tiles by two columns; 4 and 5 rows of x; 6 and 7 weights.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t column_bytes[16] = {};
  uint8_t rows[16] = {};
};

// The first tile of a pass has `upper` rows, the second `lower`; 0: there is no second.
void Configure(int upper, int lower) {
  TileConfig config;
  const auto set = [&config](int tile, int rows) {
    config.rows[tile] = static_cast<uint8_t>(rows);
    config.column_bytes[tile] = 64;
  };
  for (const int tile : {0, 1, 4}) set(tile, upper);
  for (const int tile : {2, 3, 5}) set(tile, std::max(1, lower));
  for (const int tile : {6, 7}) set(tile, kTileRows);
  _tile_loadconfig(&config);
}

// A tile of y, which may lack columns: its sums then go through `whole`.
class Out {
 public:
  Out(float* at, size_t stride, int rows, int columns)
      : at_(at), stride_(stride), rows_(rows), columns_(columns) {}

  // Where the tile is to be loaded from and stored to, with bytes() between rows.
  float* Place(bool begun) {
    if (columns_ == kTileOutputs) return at_;
    if (begun) Copy([](float* in, float* out, size_t size) { std::memcpy(out, in, size); });
    return whole_[0];
  }
  long bytes() const {
    return static_cast<long>((columns_ == kTileOutputs ? stride_ : kTileOutputs) * sizeof(float));
  }
  // After it was stored.
  void End() {
    if (columns_ == kTileOutputs) return;
    Copy([](float* in, float* out, size_t size) { std::memcpy(in, out, size); });
  }

 private:
  template <typename CopyRow>
  void Copy(const CopyRow& copy) {
    if (columns_ <= 0) return;
    for (int row = 0; row < rows_; ++row) {
      copy(at_ + static_cast<size_t>(row) * stride_, whole_[row],
           static_cast<size_t>(columns_) * sizeof(float));
    }
  }

  float* const at_;
  const size_t stride_;  // In floats.
  const int rows_;
  const int columns_;
  alignas(64) float whole_[kTileRows][kTileOutputs];
};

// Tiles are named by literals, since an instruction has their number in it.
#define BATON_LOAD_SUMS(tile, out, begun)                  \
  do {                                                     \
    if (begun) {                                           \
      _tile_loadd(tile, (out).Place(true), (out).bytes()); \
    } else {                                               \
      _tile_zero(tile);                                    \
    }                                                      \
  } while (false)
#define BATON_STORE_SUMS(tile, out)                        \
  do {                                                     \
    _tile_stored(tile, (out).Place(false), (out).bytes()); \
    (out).End();                                           \
  } while (false)

// Weights that a pass asks the second-level cache for, since they are needed soon.
struct Ahead {
  const char* at = nullptr;
  int lines_each = 0;  // For each block of inputs.
};

// A pass of rows by one panel, inputs [begin, end).
template <bool kLower>
void Pass(const PairedMatrix& w, const Bf16* x, int upper, int lower, int panel, int begin, int end,
          Ahead ahead, float* y, size_t y_stride) {
  const auto inputs = static_cast<size_t>(PaddedInputs(w.inputs));
  const int columns = w.outputs - panel * kPairPanel;
  const int left = std::min(columns, kTileOutputs);
  const int right = std::min(columns - kTileOutputs, kTileOutputs);
  float* const to = y + static_cast<size_t>(panel) * kPairPanel;
  float* const below = to + static_cast<size_t>(kTileRows) * y_stride;
  Out upper_left(to, y_stride, upper, left);
  Out upper_right(to + kTileOutputs, y_stride, upper, right);
  Out lower_left(below, y_stride, lower, left);
  Out lower_right(below + kTileOutputs, y_stride, lower, right);
  const bool begun = begin > 0;
  BATON_LOAD_SUMS(0, upper_left, begun);
  BATON_LOAD_SUMS(1, upper_right, begun);
  if constexpr (kLower) {
    BATON_LOAD_SUMS(2, lower_left, begun);
    BATON_LOAD_SUMS(3, lower_right, begun);
  }
  const char* weights =
      reinterpret_cast<const char*>(w.panels) +
      (static_cast<size_t>(panel) * inputs + static_cast<size_t>(begin)) / 2 * kPairBytes;
  const size_t step = static_cast<size_t>(upper + lower) * kPairBlock;
  const Bf16* rows = x + static_cast<size_t>(begin) / kPairBlock * step;
  constexpr long kRowBytes = kPairBlock * sizeof(Bf16);
  for (int i = begin; i < end; i += kPairBlock) {
    _tile_loadd(6, weights, static_cast<long>(kPairBytes));
    _tile_loadd(4, rows, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weights + kPairBytes / 2, static_cast<long>(kPairBytes));
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kLower) {
      _tile_loadd(5, rows + size_t{kTileRows} * kPairBlock, kRowBytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      for (int line = 0; line < ahead.lines_each; ++line, ahead.at += 64) {
        _mm_prefetch(ahead.at, _MM_HINT_T1);
      }
    } else {
      // Few rows are bound by memory, and the hardware's prefetchers stop at each page.
      for (size_t line = 0; line < kTileRows * kPairBytes; line += 64) {
        _mm_prefetch(weights + size_t{2} * kTileRows * kPairBytes + line, _MM_HINT_T0);
      }
    }
    weights += kPairBlock / 2 * kPairBytes;
    rows += step;
  }
  BATON_STORE_SUMS(0, upper_left);
  BATON_STORE_SUMS(1, upper_right);
  if constexpr (kLower) {
    BATON_STORE_SUMS(2, lower_left);
    BATON_STORE_SUMS(3, lower_right);
  }
}

// Rows [row_begin, row_end) of all `rows` by panels [panel_begin, panel_end), inputs [begin, end).
// Each pass asks for its part of the weights that `next` begins for each panel.
void Block(const PairedMatrix& w, const Bf16* x, int rows, int row_begin, int row_end,
           int panel_begin, int panel_end, int begin, int end, const char* next, size_t next_stride,
           float* y, size_t y_stride) {
  const auto inputs = static_cast<size_t>(PaddedInputs(w.inputs));
  const int passes = (row_end - row_begin + kPairPass - 1) / kPairPass;
  constexpr int kLinesOfBlock = kPairBlock / 2 * static_cast<int>(kPairBytes) / 64;
  Ahead ahead;
  ahead.lines_each = next == nullptr ? 0 : (kLinesOfBlock + passes - 1) / passes;
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
      if (next != nullptr) {
        ahead.at = next + static_cast<size_t>(panel - panel_begin) * next_stride +
                   pass * static_cast<size_t>(ahead.lines_each * (end - begin) / kPairBlock) * 64;
      }
      (lower > 0 ? Pass<true> : Pass<false>)(w, x + at * inputs, upper, lower, panel, begin, end,
                                             ahead, y + at * y_stride, y_stride);
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
  if (rows <= kPairPass) {
    Block(w, x, rows, 0, rows, panel_begin, panel_end, 0, all, nullptr, 0, y, y_stride);
    _tile_release();
    return;
  }
  for (int row = 0; row < rows; row += kRowBlock) {
    for (int panel = panel_begin; panel < panel_end; panel += kPanelGroup) {
      const int panels = std::min(panel + kPanelGroup, panel_end);
      for (int begin = 0; begin < all; begin += kInputBlock) {
        const int end = std::min(begin + kInputBlock, all);
        const char* const next = end < all            ? weights(panel, end)
                                 : panels < panel_end ? weights(panels, 0)
                                                      : nullptr;
        Block(w, x, rows, row, std::min(row + kRowBlock, rows), panel, panels, begin, end, next,
              panel_bytes, y, y_stride);
      }
    }
  }
  _tile_release();
}

}  // namespace baton::kernels
