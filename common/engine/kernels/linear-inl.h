// Products with packed matrices.
// Part of kernels-inl.h, which says what its macros mean.

namespace baton::kernels::BATON_KERNELS {
namespace {

// The inputs are processed in blocks, so that a block's slice of a panel (128 KiB with AVX-512)
// stays in the second-level cache while all rows pass over it. A quarter of it, for the first-level
// cache, interrupted the reading of weights and was 4 to 9 % slower. Accumulators are kept in y
// between blocks: the chain of an output continues where it stopped, bit for bit.
//
// The tile of a single row spans several panels. Otherwise too few chains would be in flight to
// hide the latency of a multiply-add, and too few reads to hide that of memory.
constexpr int kInputBlock = 1024;
// The tile of a single row spans several panels, or too few chains would be in flight to hide the
// latency of a multiply-add, and too few reads that of memory.
constexpr int kPanelsForOneRow = 4;

// How far ahead a tile of few rows, which is bound by memory, prefetches weights; 0: it does not.
// With prefetches one panel is read up to a third faster. With four panels of bfloat16, the
// hardware prefetchers of a Xeon (Emerald Rapids) alone lost a sixth of the memory's speed, since
// they restart in every page; distances of 512 to 4,096 bytes were alike. Those of an EPYC (Zen 5)
// lose a tenth when software prefetches too.
inline int PrefetchBytes(int panels) {
  if (panels == 1) return 4096;
  return __builtin_cpu_is("intel") ? 1024 : 0;
}

// Four panels of bfloat16, a line of each in turn, cost a Zen 5 a tenth of its memory's speed, with
// or without prefetches. One panel with prefetches reaches the full speed. Its two chains of
// multiply-adds, 16 outputs each, keep up with memory though not with a cache, but models that are
// served don't fit a cache. float32 is as fast or faster with four.
template <typename Element>
inline bool OnePanelIsFaster() {
  return sizeof(Element) == sizeof(Bf16) && kLanes >= 16 && __builtin_cpu_is("amd");
}

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

#if defined(__AVX512F__)

// An FP8 number is 2^8 times the half-precision number with its sign, exponent and mantissa, whose
// bits are in the upper or the lower byte of each lane. The processor widens those, subnormal ones
// too; the factor goes into the scales.
constexpr float kE4m3Unit = 0x1p8f;
constexpr unsigned short kHalfBits = 0xbf80;
inline Vec WidenHalves(ShortVec bits) {
  typedef short Halves __attribute__((vector_size(kLanes * sizeof(short))));
  constexpr int kNoRounding = 4;
  return __builtin_ia32_vcvtph2ps512_mask((Halves)(bits & kHalfBits), Vec{}, (short)-1,
                                          kNoRounding);
}
inline Vec WidenUpper(ShortVec pairs) {
  typedef short Signed __attribute__((vector_size(kLanes * sizeof(short))));
  return WidenHalves((ShortVec)((Signed)pairs >> 1));
}
inline Vec WidenLower(ShortVec pairs) { return WidenUpper(pairs << 8); }

#else

// The number's bits above those of float32's mantissa that it lacks, with its exponent. Subnormal
// numbers have another exponent and no hidden bit: without them doubled, they are 2^-6 too large.
// Not by a product with 2^120, which would take many times as long for float32's own subnormals.
constexpr float kE4m3Unit = 1;
inline Vec WidenLower(ShortVec pairs) {
  const UnsignedVec bits = __builtin_convertvector(pairs, UnsignedVec);
  const UnsignedVec magnitude = bits & 0x7fu;
  const Vec normal = (Vec)((magnitude << 20) + (120u << 23));
  const Vec small = normal * 2.0f - 0x1p-6f;
  const Vec size = magnitude < 8u ? small : normal;
  return (Vec)((UnsignedVec)size | ((bits & 0x80u) << 24));
}
inline Vec WidenUpper(ShortVec pairs) { return WidenLower(pairs >> 8); }

#endif

// Bytes are not converted to lanes of 32 bits, which GCC 12 does one by one.
inline void LoadColumn(const E4m3* column, Vec& first, Vec& second) {
  ShortVec pairs;
  __builtin_memcpy(&pairs, column, sizeof(pairs));
  first = WidenLower(pairs);
  second = WidenUpper(pairs);
}

// Where the inputs from `begin` on that share scales end, at most at `end`.
inline int SharedEnd(const Packed<E4m3>& w, int begin, int end) {
  const int block = (begin + w.offset) / kScaleBlock;
  return Min((block + 1) * kScaleBlock - w.offset, end);
}

// The scales of the `2 * kPanels` vectors of panels from `panel` on for inputs from `begin` on.
template <int kPanels>
inline void LoadScales(const Packed<E4m3>& w, int panel, int begin, Vec* scales) {
  for (int p = 0; p < kPanels; ++p) {
    const size_t block = static_cast<size_t>(panel + p) * static_cast<size_t>(w.blocks()) +
                         static_cast<size_t>((begin + w.offset) / kScaleBlock);
    scales[2 * p] = kE4m3Unit * Load(w.scales + block * kPanel);
    scales[2 * p + 1] = kE4m3Unit * Load(w.scales + block * kPanel + kLanes);
  }
}

template <typename Element>
inline constexpr bool kScaled = false;
template <>
inline constexpr bool kScaled<E4m3> = true;

// `kRows` rows of x by `kPanels` panels, inputs [begin, end).
template <int kRows, int kPanels, typename Element>
inline void LinearTile(const Packed<Element>& w, const float* x, int panel, int begin, int end,
                       float* y, size_t y_stride) {
  const int prefetch_bytes = PrefetchBytes(kPanels);
  const size_t inputs = static_cast<size_t>(w.inputs);
  Vec sum[kRows][2 * kPanels];
  [[maybe_unused]] Vec scales[2 * kPanels] = {};
  const Element* weights[kPanels];
  for (int p = 0; p < kPanels; ++p) {
    weights[p] =
        w.panels + (static_cast<size_t>(panel + p) * inputs + static_cast<size_t>(begin)) * kPanel;
  }
  // Only a full panel is written directly to y.
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
  [[maybe_unused]] int shared_end = begin;  // Where the loaded scales end.
  for (int i = begin; i < end; ++i) {
    Vec column[2 * kPanels];
    if constexpr (kScaled<Element>) {
      if (i == shared_end) {
        LoadScales<kPanels>(w, panel, i, scales);
        shared_end = SharedEnd(w, i, end);
      }
    }
    for (int p = 0; p < kPanels; ++p) {
      // Past the end of a matrix a prefetch accesses nothing and is harmless.
      if constexpr (kRows < kTileRows) {
        __builtin_prefetch(reinterpret_cast<const char*>(weights[p]) + prefetch_bytes);
      }
      LoadColumn(weights[p], column[2 * p], column[2 * p + 1]);
      weights[p] += kPanel;
      if constexpr (kScaled<Element>) {
        column[2 * p] *= scales[2 * p];
        column[2 * p + 1] *= scales[2 * p + 1];
      }
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
void LinearOneRow(const Packed<Element>& w, const float* x, int panel_begin, int panel_end,
                  float* y) {
  int panel = panel_begin;
  if (!OnePanelIsFaster<Element>()) {
    for (; panel + kPanelsForOneRow <= panel_end; panel += kPanelsForOneRow) {
      LinearTile<1, kPanelsForOneRow>(w, x, panel, 0, w.inputs, y + panel * kPanel, 0);
    }
  }
  for (; panel < panel_end; ++panel) {
    LinearTile<1, 1>(w, x, panel, 0, w.inputs, y + panel * kPanel, 0);
  }
}

template <typename Element>
void Linear(const Packed<Element>& w, const float* x, int rows, int panel_begin, int panel_end,
            float* y, size_t y_stride) {
  if (rows == 1) {
    LinearOneRow(w, x, panel_begin, panel_end, y);
    return;
  }
  // The rows of one tile use a panel's weights once and read them in memory order.
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
