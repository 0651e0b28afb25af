// Products with packed matrices.
// Part of kernels-inl.h, which says what its macros mean.

namespace baton::kernels::BATON_KERNELS {
namespace {

// The inputs are walked in blocks so that a block's slice of a panel (128 KiB with AVX-512) stays
// in the second-level cache while all rows pass over it; a quarter of it, for the first-level
// cache, broke up the reading of weights and was 5 to 9 % slower. Accumulators wait in y between
// blocks: the chain of one output continues where it stopped, bit for bit.
constexpr int kInputBlock = 1024;
// How far ahead a tile of few rows, which waits for weights, asks for them: more than the page that
// prefetchers end at, or a Xeon (Emerald Rapids) lost a sixth of its memory's speed; less cost an
// EPYC (Zen 5) as much.
constexpr int kPrefetchBytes = 4096;

// A column of a panel as two vectors: its first kLanes outputs and the rest.
inline void LoadColumn(const float* column, Vec& first, Vec& second) {
  first = Load(column);
  second = Load(column + kLanes);
}
inline void LoadColumn(const Bf16* column, Vec& first, Vec& second) {
  UnsignedVec pairs;
  __builtin_memcpy(&pairs, column, sizeof(pairs));
  first = (Vec)(pairs << 16);
  second = (Vec)(pairs & 0xffff0000u);
}

// `kRows` rows of x by one panel, inputs [begin, end).
template <int kRows, typename Element>
inline void LinearTile(const Packed<Element>& w, const float* x, int panel, int begin, int end,
                       float* y, size_t y_stride) {
  const size_t inputs = static_cast<size_t>(w.inputs);
  Vec sum[kRows][2];
  const Element* weights =
      w.panels + (static_cast<size_t>(panel) * inputs + static_cast<size_t>(begin)) * kPanel;
  // Only a panel that is full goes straight to y.
  const int columns = Min(w.outputs - panel * kPanel, kPanel);
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) {
      const float* at = y + static_cast<size_t>(r) * y_stride + v * kLanes;
      const int present = Min(columns - v * kLanes, kLanes);
      sum[r][v] = begin == 0 || present <= 0 ? Vec{}
                  : present == kLanes        ? Load(at)
                                             : LoadPartial(at, present);
    }
  }
  for (int i = begin; i < end; ++i) {
    // Past a matrix's end it is no access, and does no harm.
    if constexpr (kRows < kTileRows) {
      __builtin_prefetch(reinterpret_cast<const char*>(weights) + kPrefetchBytes);
    }
    Vec column[2];
    LoadColumn(weights, column[0], column[1]);
    weights += kPanel;
    for (int r = 0; r < kRows; ++r) {
      const Vec input = Splat(x[static_cast<size_t>(r) * inputs + static_cast<size_t>(i)]);
      for (int v = 0; v < 2; ++v) sum[r][v] += input * column[v];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) {
      float* at = y + static_cast<size_t>(r) * y_stride + v * kLanes;
      const int present = Min(columns - v * kLanes, kLanes);
      if (present == kLanes) {
        Store(at, sum[r][v]);
      } else if (present > 0) {
        StorePartial(at, sum[r][v], present);
      }
    }
  }
}

// Calls the tile of exactly `rows` rows, 1 <= rows <= kRows.
template <int kRows, typename Element>
inline void LinearTileOf(int rows, const Packed<Element>& w, const float* x, int panel, int begin,
                         int end, float* y, size_t y_stride) {
  if (rows == kRows) {
    LinearTile<kRows>(w, x, panel, begin, end, y, y_stride);
  } else if constexpr (kRows > 1) {
    LinearTileOf<kRows - 1>(rows, w, x, panel, begin, end, y, y_stride);
  }
}

template <typename Element>
void Linear(const Packed<Element>& w, const float* x, int rows, int panel_begin, int panel_end,
            float* y, size_t y_stride) {
  // Rows of one tile use a panel's weights once, and read them in the order in which they lie,
  // which prefetchers follow best. (Four panels in turn, for more sums in flight, were a third
  // slower.)
  const int block = rows <= kTileRows ? w.inputs : kInputBlock;
  for (int begin = 0; begin < w.inputs; begin += block) {
    const int end = Min(begin + block, w.inputs);
    for (int panel = panel_begin; panel < panel_end; ++panel) {
      for (int row = 0; row < rows; row += kTileRows) {
        LinearTileOf<kTileRows>(Min(rows - row, kTileRows), w,
                                x + static_cast<size_t>(row) * static_cast<size_t>(w.inputs), panel,
                                begin, end,
                                y + static_cast<size_t>(row) * y_stride + panel * kPanel, y_stride);
      }
    }
  }
}

}  // namespace
}  // namespace baton::kernels::BATON_KERNELS
