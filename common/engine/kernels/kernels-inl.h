// The kernels' one source, compiled once per instruction set by the .cc files beside it, which
// define
//   BATON_KERNELS       the namespace of the set,
//   BATON_KERNELS_NAME  its name in the table,
//   BATON_LANES         floats per vector register,
//   BATON_LINEAR_ROWS   rows of linear's register tile; rows * 2 accumulators must fit,
//   BATON_WIDE          vectors per row of attention's register tiles of 6 rows.
// Vector extensions of GCC and Clang instead of intrinsics: one text serves every width.
//
// Nothing here may call an inline function of another header: the linker keeps one copy of those,
// and if it kept this file's, compiled for AVX-512, older CPUs would run it.

#include "common/engine/kernels/kernels.h"

namespace baton::kernels::BATON_KERNELS {
namespace {

constexpr int kLanes = BATON_LANES;
constexpr int kPanel = 2 * kLanes;
constexpr int kTileRows = BATON_LINEAR_ROWS;
constexpr int kWide = BATON_WIDE;

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float))));
typedef int IntVec __attribute__((vector_size(kLanes * sizeof(int))));

// 0, 1, ... kLanes - 1 as a parameter pack. (std::integer_sequence without its header.)
template <int... kLane>
struct Lanes {};
template <int kCount, int... kLane>
struct MakeLanes : MakeLanes<kCount - 1, kCount - 1, kLane...> {};
template <int... kLane>
struct MakeLanes<0, kLane...> {
  using type = Lanes<kLane...>;
};
using AllLanes = MakeLanes<kLanes>::type;

inline Vec Load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
inline void Store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof(v)); }
// Subtracting, as x - 0 is x for every x; 0 + x is not, and would stay an addition.
inline Vec Splat(float x) { return x - Vec{}; }
inline int Min(int a, int b) { return a < b ? a : b; }

// The first `count` floats at p, zeros behind.
inline Vec LoadPartial(const float* p, int count) {
  float buffer[kLanes] = {};
  for (int i = 0; i < count; ++i) buffer[i] = p[i];
  return Load(buffer);
}
inline void StorePartial(float* p, Vec v, int count) {
  for (int i = 0; i < count; ++i) p[i] = v[i];
}

// v with its lanes moved down by kBy, the lowest kBy lanes being moved up.
template <int kBy, int... kLane>
inline Vec Rotate(Vec v, Lanes<kLane...>) {
  return __builtin_shufflevector(v, v, ((kLane + kBy) % kLanes)...);
}

// The sum and the largest of all lanes, in every lane: halves fold onto each other.
template <int kBy = kLanes / 2>
inline Vec SumLanes(Vec v) {
  if constexpr (kBy == 0) {
    return v;
  } else {
    return SumLanes<kBy / 2>(v + Rotate<kBy>(v, AllLanes()));
  }
}
template <int kBy = kLanes / 2>
inline Vec MaxLanes(Vec v) {
  if constexpr (kBy == 0) {
    return v;
  } else {
    const Vec other = Rotate<kBy>(v, AllLanes());
    return MaxLanes<kBy / 2>(v > other ? v : other);
  }
}

constexpr float kLog2E = 1.44269504088896341f;

// 2^x for x <= 127, within 3 units in the last place; exactly 0 below -126, so that a masked score
// of minus infinity weighs nothing. x = n + f with f in [-1/2, 1/2]; 2^f by its Taylor series, 2^n
// by adding n to the exponent.
inline Vec Exp2(Vec x) {
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: the sum's low bits are the integer n.
  const Vec shifted = x + kRounder;
  const Vec f = x - (shifted - kRounder);
  Vec p = Splat(1.54035304e-4f);
  p = p * f + 1.33335581e-3f;
  p = p * f + 9.61812911e-3f;
  p = p * f + 5.55041087e-2f;
  p = p * f + 2.40226507e-1f;
  p = p * f + 6.93147181e-1f;
  p = p * f + 1.0f;
  const Vec scaled = (Vec)((IntVec)p + ((IntVec)shifted << 23));
  return x < -126.0f ? Vec{} : scaled;
}

void RmsNorm(const float* x, const float* weight, float eps, int rows, int dim, float* y) {
  for (int row = 0; row < rows; ++row) {
    const float* in = x + static_cast<size_t>(row) * static_cast<size_t>(dim);
    float* out = y + static_cast<size_t>(row) * static_cast<size_t>(dim);
    Vec squares{};
    int i = 0;
    for (; i + kLanes <= dim; i += kLanes) squares += Load(in + i) * Load(in + i);
    const int rest = dim - i;
    const Vec tail = LoadPartial(in + i, rest);
    squares += tail * tail;
    const float scale =
        1.0f / __builtin_sqrtf(SumLanes(squares)[0] / static_cast<float>(dim) + eps);
    for (i = 0; i + kLanes <= dim; i += kLanes) {
      Store(out + i, Load(in + i) * scale * Load(weight + i));
    }
    StorePartial(out + i, tail * scale * LoadPartial(weight + i, rest), rest);
  }
}

void Rope(float* x, const float* cos, const float* sin, int heads, int head_dim) {
  const int half = head_dim / 2;
  for (int head = 0; head < heads; ++head) {
    float* first = x + head * head_dim;
    float* second = first + half;
    int i = 0;
    for (; i + kLanes <= half; i += kLanes) {
      const Vec a = Load(first + i);
      const Vec b = Load(second + i);
      Store(first + i, a * Load(cos + i) - b * Load(sin + i));
      Store(second + i, b * Load(cos + i) + a * Load(sin + i));
    }
    for (; i < half; ++i) {
      const float a = first[i];
      const float b = second[i];
      first[i] = a * cos[i] - b * sin[i];
      second[i] = b * cos[i] + a * sin[i];
    }
  }
}

inline Vec SiluMul(Vec gate, Vec up) {
  const Vec exponent = gate * -kLog2E;
  const Vec bounded = exponent > 126.0f ? Splat(126.0f) : exponent;
  return gate / (1.0f + Exp2(bounded)) * up;
}

void SiluMulRows(const float* gate_up, int rows, int dim, float* y) {
  for (int row = 0; row < rows; ++row) {
    const float* gate = gate_up + 2 * static_cast<size_t>(row) * static_cast<size_t>(dim);
    const float* up = gate + dim;
    float* out = y + static_cast<size_t>(row) * static_cast<size_t>(dim);
    int i = 0;
    for (; i + kLanes <= dim; i += kLanes) Store(out + i, SiluMul(Load(gate + i), Load(up + i)));
    const int rest = dim - i;
    StorePartial(out + i, SiluMul(LoadPartial(gate + i, rest), LoadPartial(up + i, rest)), rest);
  }
}

void Add(const float* x, size_t count, float* y) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(y + i, Load(y + i) + Load(x + i));
  for (; i < count; ++i) y[i] += x[i];
}

void AddBias(const float* bias, int rows, int dim, float* y) {
  for (int row = 0; row < rows; ++row) {
    Add(bias, static_cast<size_t>(dim), y + static_cast<size_t>(row) * static_cast<size_t>(dim));
  }
}

// ---- linear ----

// The inputs are walked in blocks so that a block's slice of a panel (32 KiB with AVX-512) stays in
// the first-level cache while all rows pass over it. Accumulators wait in y between blocks: the
// chain of one output continues where it stopped, bit for bit.
constexpr int kInputBlock = 256;
// With at most this many rows a tile spans several panels, or too few chains would be in flight to
// hide the latency of a multiply-add.
constexpr int kFewRows = 2;
constexpr int kPanelsForFewRows = 4;

// `kRows` rows of x by `kPanels` panels, inputs [begin, end).
template <int kRows, int kPanels>
inline void LinearTile(const PackedMatrix& w, const float* x, int panel, int begin, int end,
                       float* y, size_t y_stride) {
  const size_t inputs = static_cast<size_t>(w.inputs);
  Vec sum[kRows][2 * kPanels];
  const float* weights[kPanels];
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
      column[2 * p] = Load(weights[p]);
      column[2 * p + 1] = Load(weights[p] + kLanes);
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
template <int kRows>
inline void LinearTileOf(int rows, const PackedMatrix& w, const float* x, int panel, int begin,
                         int end, float* y, size_t y_stride) {
  if (rows == kRows) {
    LinearTile<kRows, 1>(w, x, panel, begin, end, y, y_stride);
  } else if constexpr (kRows > 1) {
    LinearTileOf<kRows - 1>(rows, w, x, panel, begin, end, y, y_stride);
  }
}

void LinearFewRows(const PackedMatrix& w, const float* x, int rows, int panel_begin, int panel_end,
                   float* y, size_t y_stride) {
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

void Linear(const PackedMatrix& w, const float* x, int rows, int panel_begin, int panel_end,
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

// ---- attention ----

// Query rows (token and head) that share one transposition of the keys, which then costs a few per
// cent of the multiply-adds.
constexpr int kQueryRows = 96;
// Rows of a register tile.
constexpr int kRowTile = 6;

struct RowState {
  float max;      // Of the scores so far, unscaled.
  Vec sum;        // Of the weights so far, by lane.
  int positions;  // Keys [0, positions) are visible to this row.
  const float* query;
  float* output;
};

// Lanes of a and b by turns, from the lower or the upper half of each.
template <int... kLane>
inline void Interleave(Vec a, Vec b, Vec& low, Vec& high, Lanes<kLane...>) {
  constexpr int kHalf = kLanes / 2;
  low = __builtin_shufflevector(a, b, (kLane / 2 + kLane % 2 * kLanes)...);
  high = __builtin_shufflevector(a, b, (kLane / 2 + kHalf + kLane % 2 * kLanes)...);
}

// Transposes kLanes vectors in place: log2(kLanes) perfect shuffles.
inline void Transpose(Vec (&rows)[kLanes]) {
  Vec shuffled[kLanes];
  for (int width = 1; width < kLanes; width *= 2) {
    for (int i = 0; i < kLanes / 2; ++i) {
      Interleave(rows[i], rows[i + kLanes / 2], shuffled[2 * i], shuffled[2 * i + 1], AllLanes());
    }
    for (int i = 0; i < kLanes; ++i) rows[i] = shuffled[i];
  }
}

// A block of keys, gathered from its first `tile_end` tiles of [kKeyTile][dim], as
// [dim][kKeyBlock]. The keys of other tiles stay what they were: their scores are masked.
void TransposeKeys(const float* const* tiles, int tile_end, int dim, float* transposed) {
  for (int tile = 0; tile < tile_end; ++tile) {
    for (int k = 0; k < kKeyTile; k += kLanes) {
      for (int d = 0; d < dim; d += kLanes) {
        Vec square[kLanes];
        for (int i = 0; i < kLanes; ++i) square[i] = Load(tiles[tile] + (k + i) * dim + d);
        Transpose(square);
        float* out = transposed + d * kKeyBlock + tile * kKeyTile + k;
        for (int i = 0; i < kLanes; ++i) Store(out + i * kKeyBlock, square[i]);
      }
    }
  }
}

// scores[r][key] = query_r . key, one chain over dim per score.
template <int kRows>
inline void Scores(const RowState* rows, const float* transposed, int dim, float* scores) {
  for (int k = 0; k < kKeyBlock; k += kWide * kLanes) {
    Vec sum[kRows][kWide] = {};
    for (int d = 0; d < dim; ++d) {
      Vec key[kWide];
      for (int v = 0; v < kWide; ++v) key[v] = Load(transposed + d * kKeyBlock + k + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Vec query = Splat(rows[r].query[d]);
        for (int v = 0; v < kWide; ++v) sum[r][v] += query * key[v];
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kWide; ++v) Store(scores + r * kKeyBlock + k + v * kLanes, sum[r][v]);
    }
  }
}

// Turns a row's scores into weights relative to its running maximum, updates its state and rescales
// its accumulator. Weights are powers of two of score * exponent_scale. Not inlined: one compiled
// copy rounds alike for every row.
__attribute__((noinline)) void SoftmaxBlock(RowState& row, int block_begin, float exponent_scale,
                                            int dim, float* scores, float* accumulator) {
  constexpr float kInfinity = __builtin_inff();
  const int visible = Min(row.positions - block_begin, kKeyBlock);
  if (visible <= 0) {
    for (int k = 0; k < kKeyBlock; ++k) scores[k] = 0;
    return;
  }
  for (int k = visible; k < kKeyBlock; ++k) scores[k] = -kInfinity;
  Vec largest = Splat(row.max);
  for (int k = 0; k < kKeyBlock; k += kLanes) {
    const Vec score = Load(scores + k);
    largest = score > largest ? score : largest;
  }
  const float max = MaxLanes(largest)[0];
  const float shift = -max * exponent_scale;
  if (max != row.max) {
    const Vec shrink = Exp2(Splat(row.max * exponent_scale + shift));
    for (int d = 0; d < dim; d += kLanes) {
      Store(accumulator + d, Load(accumulator + d) * shrink);
    }
    row.sum *= shrink;
    row.max = max;
  }
  for (int k = 0; k < kKeyBlock; k += kLanes) {
    const Vec weight = Exp2(Load(scores + k) * exponent_scale + shift);
    Store(scores + k, weight);
    row.sum += weight;
  }
}

// accumulator_r[0, kVecs * kLanes) += weights_r . values over keys [0, key_end), in key order;
// `tiles` hold the values, read from column `d` on.
template <int kRows, int kVecs>
inline void WeighColumns(const float* scores, const float* const* tiles, int key_end, int dim,
                         int d, float* accumulator) {
  Vec sum[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) sum[r][v] = Load(accumulator + r * dim + d + v * kLanes);
  }
  for (int k = 0; k < key_end; ++k) {
    const float* value = tiles[k / kKeyTile] + (k % kKeyTile) * dim + d;
    Vec column[kVecs];
    for (int v = 0; v < kVecs; ++v) column[v] = Load(value + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = Splat(scores[r * kKeyBlock + k]);
      for (int v = 0; v < kVecs; ++v) sum[r][v] += weight * column[v];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) Store(accumulator + r * dim + d + v * kLanes, sum[r][v]);
  }
}

// One block of keys for exactly `count` rows, 1 <= count <= kRows.
template <int kRows>
inline void AttendRows(int count, RowState* rows, const AttentionArgs& args, int block_begin,
                       int key_end, const float* transposed, float* accumulator) {
  if constexpr (kRows > 1) {
    if (count < kRows) {
      AttendRows<kRows - 1>(count, rows, args, block_begin, key_end, transposed, accumulator);
      return;
    }
  }
  const int dim = args.head_dim;
  float scores[kRows * kKeyBlock];
  Scores<kRows>(rows, transposed, dim, scores);
  for (int r = 0; r < kRows; ++r) {
    SoftmaxBlock(rows[r], block_begin, args.scale * kLog2E, dim, scores + r * kKeyBlock,
                 accumulator + r * dim);
  }
  const float* const* tiles = args.kv.values + block_begin / kKeyTile;
  int d = 0;
  for (; d + kWide * kLanes <= dim; d += kWide * kLanes) {
    WeighColumns<kRows, kWide>(scores, tiles, key_end, dim, d, accumulator);
  }
  for (; d + 2 * kLanes <= dim; d += 2 * kLanes) {
    WeighColumns<kRows, 2>(scores, tiles, key_end, dim, d, accumulator);
  }
  for (; d < dim; d += kLanes) {
    WeighColumns<kRows, 1>(scores, tiles, key_end, dim, d, accumulator);
  }
}

// All keys for up to kQueryRows rows.
void AttendQueryRows(RowState* rows, int count, const AttentionArgs& args) {
  const int dim = args.head_dim;
  float accumulator[kQueryRows * kMaxHeadDim];
  float transposed[kMaxHeadDim * kKeyBlock];
  for (int i = 0; i < count * dim; ++i) accumulator[i] = 0;
  const int positions = rows[count - 1].positions;
  for (int block = 0; block < positions; block += kKeyBlock) {
    // Keys and values past the last visible position may never have been written.
    const int key_end = Min(positions - block, kKeyBlock);
    TransposeKeys(args.kv.keys + block / kKeyTile, (key_end + kKeyTile - 1) / kKeyTile, dim,
                  transposed);
    for (int r = 0; r < count; r += kRowTile) {
      const int tile = Min(count - r, kRowTile);
      if (rows[r + tile - 1].positions <= block) continue;  // Positions rise with r.
      AttendRows<kRowTile>(tile, rows + r, args, block, key_end, transposed, accumulator + r * dim);
    }
  }
  for (int r = 0; r < count; ++r) {
    const Vec inverse = 1.0f / SumLanes(rows[r].sum);
    for (int d = 0; d < dim; d += kLanes) {
      Store(rows[r].output + d, Load(accumulator + r * dim + d) * inverse);
    }
  }
}

void Attention(const AttentionArgs& args) {
  RowState rows[kQueryRows];
  int count = 0;
  for (int token = 0; token < args.tokens; ++token) {
    for (int head = 0; head < args.heads; ++head) {
      rows[count++] = {-__builtin_inff(), Vec{}, args.first_position + token + 1,
                       args.query + static_cast<size_t>(token) * args.query_stride +
                           static_cast<size_t>(head * args.head_dim),
                       args.output + static_cast<size_t>(token) * args.output_stride +
                           static_cast<size_t>(head * args.head_dim)};
      if (count == kQueryRows) {
        AttendQueryRows(rows, count, args);
        count = 0;
      }
    }
  }
  if (count > 0) AttendQueryRows(rows, count, args);
}

double MultiplyAdds(int rounds) {
  constexpr int kChains = 12;  // More than two units times the latency of a multiply-add.
  Vec chain[kChains];
  for (int i = 0; i < kChains; ++i) chain[i] = Splat(static_cast<float>(i));
  Vec factor = Splat(0.999f);
  Vec term = Splat(0.001f);
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < kChains; ++i) chain[i] = chain[i] * factor + term;
    asm volatile("" : "+x"(factor), "+x"(term));  // The loop stays a loop.
  }
  for (int i = 0; i < kChains; ++i) asm volatile("" : : "x"(chain[i]));
  return 2.0 * rounds * kChains * kLanes;
}

}  // namespace

extern const KernelTable kTable;
const KernelTable kTable = {
    BATON_KERNELS_NAME, kPanel,       RmsNorm, Rope, SiluMulRows, Add, AddBias, Linear,
    Attention,          MultiplyAdds,
};

}  // namespace baton::kernels::BATON_KERNELS
