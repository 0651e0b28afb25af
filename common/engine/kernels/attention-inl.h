// Causal attention over paged keys and values.
// Part of kernels-inl.h, which says what its macros mean.

namespace baton::kernels::BATON_KERNELS {
namespace {

// Query rows (token and head) that share one transposition of the keys. It then costs a few per
// cent of the multiply-adds.
constexpr int kQueryRows = 96;
// The rows of a register tile.
constexpr int kRowTile = 6;

struct RowState {
  float max;  // The largest score so far, unscaled.
  Vec sum;    // The sum of the weights so far, by lane.
  int first;  // Keys [first, positions) are visible to this row.
  int positions;
  const float* query;
  float* output;
};

// Interleaves the lanes of a and b, from the lower or the upper half of each.
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
// [dim][kKeyBlock]. The keys of other tiles keep their old values; their scores are masked.
template <typename Element>
void TransposeKeys(const Element* const* tiles, int tile_end, int dim, float* transposed) {
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
// its accumulator. Weights are powers of two of score * exponent_scale. Not inlined, so that one
// compiled copy rounds every row alike.
[[maybe_unused]] __attribute__((noinline)) void SoftmaxBlock(RowState& row, int block_begin,
                                                             float exponent_scale, int dim,
                                                             float* scores, float* accumulator) {
  constexpr float kInfinity = __builtin_inff();
  const int hidden = row.first - block_begin;
  const int visible = Min(row.positions - block_begin, kKeyBlock);
  if (visible <= 0 || hidden >= kKeyBlock) {
    for (int k = 0; k < kKeyBlock; ++k) scores[k] = 0;
    return;
  }
  for (int k = 0; k < hidden; ++k) scores[k] = -kInfinity;
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

// Caps the scores if the model does; returns the factor that makes exponents of two of them. Not
// inlined, as SoftmaxBlock.
__attribute__((noinline)) float CapScores(float scale, float softcap, int count, float* scores) {
  if (softcap == 0) return scale * kLog2E;
  const float factor = scale / softcap;
  for (int i = 0; i < count; i += kLanes) Store(scores + i, Tanh(Load(scores + i) * factor));
  return softcap * kLog2E;
}

// accumulator_r[0, kVecs * kLanes) += weights_r . values over keys [0, key_end), in key order;
// `tiles` hold rows of `row` elements, read from column `d` on.
template <int kRows, int kVecs, typename Element>
inline void WeighColumns(const float* scores, const Element* const* tiles, int key_end, int row,
                         int dim, int d, float* accumulator) {
  Vec sum[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) sum[r][v] = Load(accumulator + r * dim + d + v * kLanes);
  }
  for (int k = 0; k < key_end; ++k) {
    const Element* value = tiles[k / kKeyTile] + (k % kKeyTile) * row + d;
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

template <typename Element>
int ValueDim(const AttentionArgs<Element>& args) {
  return args.value_dim > 0 ? args.value_dim : args.head_dim;
}

// One block of keys for exactly `count` rows, 1 <= count <= kRows.
template <int kRows, typename Element>
inline void AttendRows(int count, RowState* rows, const AttentionArgs<Element>& args,
                       int block_begin, int key_end, const float* transposed, float* accumulator) {
  if constexpr (kRows > 1) {
    if (count < kRows) {
      AttendRows<kRows - 1>(count, rows, args, block_begin, key_end, transposed, accumulator);
      return;
    }
  }
  const int row = args.head_dim;
  const int dim = ValueDim(args);
  float scores[kRows * kKeyBlock];
  Scores<kRows>(rows, transposed, row, scores);
  const float exponent_scale = CapScores(args.scale, args.softcap, kRows * kKeyBlock, scores);
  for (int r = 0; r < kRows; ++r) {
    SoftmaxBlock(rows[r], block_begin, exponent_scale, dim, scores + r * kKeyBlock,
                 accumulator + r * dim);
  }
  const Element* const* tiles = args.kv.values + block_begin / kKeyTile;
  int d = 0;
  for (; d + kWide * kLanes <= dim; d += kWide * kLanes) {
    WeighColumns<kRows, kWide>(scores, tiles, key_end, row, dim, d, accumulator);
  }
  for (; d + 2 * kLanes <= dim; d += 2 * kLanes) {
    WeighColumns<kRows, 2>(scores, tiles, key_end, row, dim, d, accumulator);
  }
  for (; d < dim; d += kLanes) {
    WeighColumns<kRows, 1>(scores, tiles, key_end, row, dim, d, accumulator);
  }
}

// Writes what the rows have accumulated.
inline void FinishRows(const RowState* rows, int count, int dim, const float* accumulator) {
  for (int r = 0; r < count; ++r) {
    const Vec inverse = 1.0f / SumLanes(rows[r].sum);
    for (int d = 0; d < dim; d += kLanes) {
      Store(rows[r].output + d, Load(accumulator + r * dim + d) * inverse);
    }
  }
}

// Processes all keys for up to kQueryRows rows.
template <typename Element>
void AttendQueryRows(RowState* rows, int count, const AttentionArgs<Element>& args) {
  const int dim = ValueDim(args);
  float accumulator[kQueryRows * kMaxHeadDim];
  float transposed[kMaxHeadDim * kKeyBlock];
  for (int i = 0; i < count * dim; ++i) accumulator[i] = 0;
  const int positions = rows[count - 1].positions;
  // Rows are in the order of their tokens, so that the first one's window begins first.
  for (int block = rows[0].first / kKeyBlock * kKeyBlock; block < positions; block += kKeyBlock) {
    // Keys and values past the last visible position may never have been written.
    const int key_end = Min(positions - block, kKeyBlock);
    TransposeKeys(args.kv.keys + block / kKeyTile, (key_end + kKeyTile - 1) / kKeyTile,
                  args.head_dim, transposed);
    for (int r = 0; r < count; r += kRowTile) {
      const int tile = Min(count - r, kRowTile);
      // Both ends of what rows see increase with r.
      if (rows[r + tile - 1].positions <= block || rows[r].first >= block + kKeyBlock) continue;
      AttendRows<kRowTile>(tile, rows + r, args, block, key_end, transposed, accumulator + r * dim);
    }
  }
  FinishRows(rows, count, dim, accumulator);
}

// Calls `attend` for runs of up to kMost rows.
template <int kMost, typename Element>
void ForQueryRows(const AttentionArgs<Element>& args,
                  void (*attend)(RowState*, int, const AttentionArgs<Element>&)) {
  RowState rows[kMost];
  int count = 0;
  for (int token = 0; token < args.tokens; ++token) {
    for (int head = 0; head < args.heads; ++head) {
      const int positions = args.first_position + token + 1;
      const int first = args.window > 0 && positions > args.window ? positions - args.window : 0;
      rows[count++] = {-__builtin_inff(),
                       Vec{},
                       first,
                       positions,
                       args.query + static_cast<size_t>(token) * args.query_stride +
                           static_cast<size_t>(head * args.head_dim),
                       args.output + static_cast<size_t>(token) * args.output_stride +
                           static_cast<size_t>(head * ValueDim(args))};
      if (count == kMost) {
        attend(rows, count, args);
        count = 0;
      }
    }
  }
  if (count > 0) attend(rows, count, args);
}

template <typename Element>
void Attention(const AttentionArgs<Element>& args) {
  ForQueryRows<kQueryRows>(args, AttendQueryRows<Element>);
}

}  // namespace
}  // namespace baton::kernels::BATON_KERNELS
