// Attention by AVX512_BF16: attention-inl.h's, with products of pairs. A score adds up pairs of
// dimensions; a result adds up pairs of keys, (0, 1), (2, 3), ... of a block. Queries and weights
// are rounded to bfloat16. The rules of kernels-inl.h for what may be called hold here, too.
#include <immintrin.h>

#define BATON_KERNELS avx512_bf16
#define BATON_LANES 16
#define BATON_LINEAR_ROWS 12
#define BATON_WIDE 4
// The order matters.
// clang-format off
#include "common/engine/kernels/bf16_products.h"
#include "common/engine/kernels/vector-inl.h"
#include "common/engine/kernels/attention-inl.h"
#include "common/engine/kernels/pairs-inl.h"
// clang-format on

namespace baton::kernels {

namespace avx512 {
extern const KernelTable kTable;
}

namespace avx512_bf16 {
namespace {

static_assert(kKeyTile == kLanes);
constexpr ptrdiff_t kWideLanes = ptrdiff_t{kWide} * kLanes;

// As kQueryRows: all heads of DeepSeek's.
constexpr int kPairedRows = 128;

// What all rows of a block of keys share: keys as [dim / 2][kKeyBlock]; values in columns of
// kWideLanes dimensions, and of kLanes if fewer are left, each [kKeyBlock / 2][width].
struct PairedBlock {
  Pair keys[kMaxHeadDim / 2 * kKeyBlock];
  Pair values[kKeyBlock / 2 * kMaxHeadDim];
};

inline Vec LoadPairs(const Pair* p) {
  Vec pairs;
  __builtin_memcpy(&pairs, p, sizeof(pairs));
  return pairs;
}

// sum + the products of `pair` and those of each lane.
inline Vec AddPair(Vec sum, Pair pair, Vec pairs) {
  const __m512i all = _mm512_set1_epi32(static_cast<int>(pair));
  return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)all, (__m512bh)pairs);
}

// As TransposeKeys.
void PairKeys(const Bf16* const* tiles, ptrdiff_t tile_end, ptrdiff_t dim, Pair* keys) {
  for (ptrdiff_t tile = 0; tile < tile_end; ++tile) {
    for (ptrdiff_t d = 0; d < dim; d += kPairedLanes) {
      Vec square[kLanes];
      for (ptrdiff_t i = 0; i < kLanes; ++i) {
        __builtin_memcpy(&square[i], tiles[tile] + i * dim + d, sizeof(Vec));
      }
      Transpose(square);
      Pair* const out = keys + d / 2 * kKeyBlock + tile * kKeyTile;
      for (ptrdiff_t i = 0; i < kLanes; ++i) {
        __builtin_memcpy(out + i * kKeyBlock, &square[i], sizeof(Vec));
      }
    }
  }
}

// The values of keys [0, key_end); behind an odd last one zeros, since its weight 0 times whatever
// is in memory could be NaN.
template <int kVecs>
inline void PairColumn(const Bf16* const* tiles, ptrdiff_t key_end, ptrdiff_t row, Pair* values,
                       ptrdiff_t begin) {
  constexpr ptrdiff_t kWidth = ptrdiff_t{kVecs} * kLanes;
  for (ptrdiff_t k = 0; k < key_end; k += 2) {
    const Bf16* const first = tiles[k / kKeyTile] + (k % kKeyTile) * row + begin;
    Pair* const out = values + k / 2 * kWidth;
    for (ptrdiff_t d = 0; d < kWidth; d += kLanes) {
      UnsignedVec pairs = (UnsignedVec)Load(first + d) >> 16;
      if (k + 1 < key_end) pairs |= (UnsignedVec)Load(first + row + d);
      __builtin_memcpy(out + d, &pairs, sizeof(pairs));
    }
  }
}

void PairValues(const Bf16* const* tiles, ptrdiff_t key_end, ptrdiff_t row, ptrdiff_t dim,
                Pair* values) {
  ptrdiff_t d = 0;
  for (; d + kWideLanes <= dim; d += kWideLanes) {
    PairColumn<kWide>(tiles, key_end, row, values + d * (kKeyBlock / 2), d);
  }
  for (; d < dim; d += kLanes) {
    PairColumn<1>(tiles, key_end, row, values + d * (kKeyBlock / 2), d);
  }
}

// scores[r][key] = query_r . key; the rows' queries are `dim / 2` pairs apart.
template <int kRows>
inline void PairedScores(const Pair* queries, const Pair* keys, ptrdiff_t dim, float* scores) {
  Vec sum[kRows][kWide] = {};
  for (ptrdiff_t d = 0; d < dim / 2; ++d) {
    Vec key[kWide];
    for (ptrdiff_t v = 0; v < kWide; ++v) key[v] = LoadPairs(keys + d * kKeyBlock + v * kLanes);
    for (ptrdiff_t r = 0; r < kRows; ++r) {
      const Pair query = queries[r * (dim / 2) + d];
      for (ptrdiff_t v = 0; v < kWide; ++v) sum[r][v] = AddPair(sum[r][v], query, key[v]);
    }
  }
  for (ptrdiff_t r = 0; r < kRows; ++r) {
    for (ptrdiff_t v = 0; v < kWide; ++v) Store(scores + r * kKeyBlock + v * kLanes, sum[r][v]);
  }
}

// accumulator_r[0, kVecs * kLanes) += weights_r . values, pair by pair.
template <int kRows, int kVecs>
inline void WeighPairs(int count, const Pair* weights, const Pair* values, ptrdiff_t key_end,
                       ptrdiff_t dim, float* accumulator) {
  if constexpr (kRows > 1) {
    if (count < kRows) {
      return WeighPairs<kRows - 1, kVecs>(count, weights, values, key_end, dim, accumulator);
    }
  }
  Vec sum[kRows][kVecs];
  for (ptrdiff_t r = 0; r < kRows; ++r) {
    for (ptrdiff_t v = 0; v < kVecs; ++v) sum[r][v] = Load(accumulator + r * dim + v * kLanes);
  }
  for (ptrdiff_t k = 0; k < (key_end + 1) / 2; ++k) {
    Vec column[kVecs];
    for (ptrdiff_t v = 0; v < kVecs; ++v) {
      column[v] = LoadPairs(values + (k * kVecs + v) * kLanes);
    }
    for (ptrdiff_t r = 0; r < kRows; ++r) {
      const Pair weight = weights[r * (kKeyBlock / 2) + k];
      for (ptrdiff_t v = 0; v < kVecs; ++v) sum[r][v] = AddPair(sum[r][v], weight, column[v]);
    }
  }
  for (ptrdiff_t r = 0; r < kRows; ++r) {
    for (ptrdiff_t v = 0; v < kVecs; ++v) Store(accumulator + r * dim + v * kLanes, sum[r][v]);
  }
}

// The weights of a block's keys for exactly `count` rows, 1 <= count <= kRows.
template <int kRows>
inline void PairedWeights(int count, RowState* rows, const Pair* queries,
                          const AttentionArgs<Bf16>& args, int block_begin, const Pair* keys,
                          float* accumulator, Pair* weights) {
  if constexpr (kRows > 1) {
    if (count < kRows) {
      return PairedWeights<kRows - 1>(count, rows, queries, args, block_begin, keys, accumulator,
                                      weights);
    }
  }
  const int dim = ValueDim(args);
  float scores[kRows * kKeyBlock];
  PairedScores<kRows>(queries, keys, args.head_dim, scores);
  const float exponent_scale = CapScores(args.scale, args.softcap, kRows * kKeyBlock, scores);
  for (int r = 0; r < kRows; ++r) {
    SoftmaxBlock(rows[r], block_begin, exponent_scale, dim, scores + r * kKeyBlock,
                 accumulator + ptrdiff_t{r} * dim);
  }
  RoundToPairs(scores, kRows * kKeyBlock, weights);
}

// Calls `visit` for tiles of the rows that see keys of a block: first row and number of rows.
template <typename Visit>
inline void ForTiles(const RowState* rows, int count, int block_begin, Visit visit) {
  for (int r = 0; r < count; r += kRowTile) {
    const int tall = Min(count - r, kRowTile);
    // Both ends of what rows see increase with r.
    if (rows[r + tall - 1].positions <= block_begin) continue;
    if (rows[r].first >= block_begin + kKeyBlock) continue;
    visit(static_cast<ptrdiff_t>(r), tall);
  }
}

// Starts reading rows [begin, end) of the keys at `tiles`: pairing them would wait for memory,
// while a block's products leave it idle.
inline void PrefetchRows(const Bf16* const* tiles, int begin, int end, ptrdiff_t dim) {
  constexpr ptrdiff_t kLine = 64 / sizeof(Bf16);
  for (int k = begin; k < end; ++k) {
    const Bf16* const row = tiles[k / kKeyTile] + (k % kKeyTile) * dim;
    for (ptrdiff_t d = 0; d < dim; d += kLine) _mm_prefetch(row + d, _MM_HINT_T1);
  }
}

// Processes all keys for up to kPairedRows rows. A column of the values passes all rows while it
// is in the first-level cache.
void AttendPairedQueryRows(RowState* rows, int count, const AttentionArgs<Bf16>& args) {
  const ptrdiff_t dim = ValueDim(args);
  const ptrdiff_t pairs = args.head_dim / 2;
  float accumulator[kPairedRows * kMaxHeadDim];
  Pair queries[kPairedRows * kMaxHeadDim / 2];
  Pair weights[kPairedRows * kKeyBlock / 2];
  PairedBlock paired;
  for (ptrdiff_t i = 0; i < count * dim; ++i) accumulator[i] = 0;
  for (ptrdiff_t r = 0; r < count; ++r) {
    RoundToPairs(rows[r].query, args.head_dim, queries + r * pairs);
  }
  const int positions = rows[count - 1].positions;
  for (int block = rows[0].first / kKeyBlock * kKeyBlock; block < positions; block += kKeyBlock) {
    const int key_end = Min(positions - block, kKeyBlock);
    const int tile = block / kKeyTile;
    PairKeys(args.kv.keys + tile, (key_end + kKeyTile - 1) / kKeyTile, args.head_dim, paired.keys);
    PairValues(args.kv.values + tile, key_end, args.head_dim, dim, paired.values);
    const int next = Min(positions - block - key_end, kKeyBlock);
    ForTiles(rows, count, block, [&](ptrdiff_t r, int tall) {
      const int row = static_cast<int>(r);
      PrefetchRows(args.kv.keys + tile + kKeyBlock / kKeyTile, next * row / count,
                   next * (row + tall) / count, args.head_dim);
      PairedWeights<kRowTile>(tall, rows + r, queries + r * pairs, args, block, paired.keys,
                              accumulator + r * dim, weights + r * (kKeyBlock / 2));
    });
    const auto weigh = [&]<int kVecs>(ptrdiff_t d) {
      ForTiles(rows, count, block, [&](ptrdiff_t r, int tall) {
        WeighPairs<kRowTile, kVecs>(tall, weights + r * (kKeyBlock / 2),
                                    paired.values + d * (kKeyBlock / 2), key_end, dim,
                                    accumulator + r * dim + d);
      });
    };
    ptrdiff_t d = 0;
    for (; d + kWideLanes <= dim; d += kWideLanes) weigh.operator()<kWide>(d);
    for (; d < dim; d += kLanes) weigh.operator()<1>(d);
  }
  FinishRows(rows, count, ValueDim(args), accumulator);
}

}  // namespace
}  // namespace avx512_bf16

void AttentionAvx512Bf16(const AttentionArgs<Bf16>& args) {
  // Keys are paired two vectors of lanes at a time.
  if (args.head_dim % (2 * avx512_bf16::kLanes) != 0) return avx512::kTable.attention_bf16(args);
  avx512_bf16::ForQueryRows<avx512_bf16::kPairedRows>(args, avx512_bf16::AttendPairedQueryRows);
}

}  // namespace baton::kernels
