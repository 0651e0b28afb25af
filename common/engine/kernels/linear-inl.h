// Products with packed matrices.
// Part of kernels-inl.h, which says what its macros mean.

namespace baton::kernels::BATON_KERNELS {
namespace {

// The inputs are walked in blocks so that a block's slice of a panel (32 KiB with AVX-512) stays in
// the first-level cache while all rows pass over it. Accumulators wait in y between blocks: the
// chain of one output continues where it stopped, bit for bit.
constexpr int kInputBlock = 256;
// With at most this many rows a tile spans several panels, or too few chains would be in flight to
// hide the latency of a multiply-add.
constexpr int kFewRows = 2;
constexpr int kPanelsForFewRows = 4;
// How far ahead a single row, which does nothing but read weights, asks for them. Hardware
// prefetchers alone lost a sixth of the memory's speed on a Xeon (Emerald Rapids) with bfloat16,
// whose columns of one line each they begin anew in every page; 512 to 4,096 bytes were alike.
constexpr int kPrefetchBytes = 1024;

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

// `kRows` rows of x by `kPanels` panels, inputs [begin, end).
template <int kRows, int kPanels, typename Element>
inline void LinearTile(const Packed<Element>& w, const float* x, int panel, int begin, int end,
                       float* y, size_t y_stride) {
  const size_t inputs = static_cast<size_t>(w.inputs);
  Vec sum[kRows][2 * kPanels];
  const Element* weights[kPanels];
  for (int p = 0; p < kPanels; ++p) {
    weights[p] =
        w.panels + (static_cast<size_t>(panel + p) * inputs + static_cast<size_t>(begin)) * kPanel;
  }
  // Only a panel that is full goes straight to y.
  const int columns = Min(w.outputs - panel * kPanel, kPanels * kPanel);
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2 * kPanels; ++v) {
      const float* at = y + static_cast<size_t>(r) * y_stride + v * kLanes;
      const int present = Min(columns - v * kLanes, kLanes);
      sum[r][v] = begin == 0 || present <= 0 ? Vec{}
                  : present == kLanes        ? Load(at)
                                             : LoadPartial(at, present);
    }
  }
  for (int i = begin; i < end; ++i) {
    Vec column[2 * kPanels];
    for (int p = 0; p < kPanels; ++p) {
      // Past a matrix's end it is no access, and does no harm.
      if constexpr (kRows == 1) {
        __builtin_prefetch(reinterpret_cast<const char*>(weights[p]) + kPrefetchBytes);
      }
      LoadColumn(weights[p], column[2 * p], column[2 * p + 1]);
      weights[p] += kPanel;
    }
    for (int r = 0; r < kRows; ++r) {
      const Vec input = Splat(x[static_cast<size_t>(r) * inputs + static_cast<size_t>(i)]);
      for (int v = 0; v < 2 * kPanels; ++v) sum[r][v] += input * column[v];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2 * kPanels; ++v) {
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
    LinearTile<kRows, 1>(w, x, panel, begin, end, y, y_stride);
  } else if constexpr (kRows > 1) {
    LinearTileOf<kRows - 1>(rows, w, x, panel, begin, end, y, y_stride);
  }
}

template <typename Element>
void LinearFewRows(const Packed<Element>& w, const float* x, int rows, int panel_begin,
                   int panel_end, float* y, size_t y_stride) {
  for (int row = 0; row < rows; ++row) {
    const float* in = x + static_cast<size_t>(row) * static_cast<size_t>(w.inputs);
    float* out = y + static_cast<size_t>(row) * y_stride;
    int panel = panel_begin;
    for (; panel + kPanelsForFewRows <= panel_end; panel += kPanelsForFewRows) {
      LinearTile<1, kPanelsForFewRows>(w, in, panel, 0, w.inputs, out + panel * kPanel, y_stride);
    }
    for (; panel < panel_end; ++panel) {
      LinearTile<1, 1>(w, in, panel, 0, w.inputs, out + panel * kPanel, y_stride);
    }
  }
}

template <typename Element>
void Linear(const Packed<Element>& w, const float* x, int rows, int panel_begin, int panel_end,
            float* y, size_t y_stride) {
  if (rows <= kFewRows) {
    LinearFewRows(w, x, rows, panel_begin, panel_end, y, y_stride);
    return;
  }
  for (int begin = 0; begin < w.inputs; begin += kInputBlock) {
    const int end = Min(begin + kInputBlock, w.inputs);
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
