// Attention by Intel's tiles. Both products are the other way round than attention-inl.h's: scores
// [keys][queries] are keys by queries, sums [dims][queries] are turned values by weights. The lanes
// of a vector are then 16 queries, and the softmax of each needs no other lane. Weights are
// relative to a score that need not be the largest, so that it seldom changes. Queries and weights
// are rounded to bfloat16. The rules of kernels-inl.h for what may be called hold here, too.
#include <immintrin.h>

#define BATON_KERNELS amx
#define BATON_LANES 16
#define BATON_LINEAR_ROWS 12
#define BATON_WIDE 4
// The order matters.
// clang-format off
#include "common/engine/kernels/bf16_products.h"
#include "common/engine/kernels/amx-inl.h"
#include "common/engine/kernels/vector-inl.h"
#include "common/engine/kernels/attention-inl.h"
#include "common/engine/kernels/pairs-inl.h"
// clang-format on

namespace baton::kernels {

namespace avx512 {
extern const KernelTable kTable;
}

namespace amx {
namespace {

constexpr int kTile = 16;   // Rows of a tile, each of 16 lanes.
constexpr int kGroup = 32;  // Keys or dimensions that one instruction adds up: 16 pairs.
static_assert(kTile == kLanes && kTile == kKeyTile && kGroup == kPairedLanes);

// Keys that are put into tiles and added up together. With fewer, sums are loaded and stored more
// often; tiles of more leave the second-level cache.
constexpr int kSpan = 256;
// Query rows that share these tiles. Their sums are in the second-level cache, too.
constexpr int kSharingRows = 256;
constexpr int kQueryTiles = kSharingRows / kTile;

constexpr long kTileStride = sizeof(Vec);

typedef Pair PairTile[kTile][kTile];
// The tiles of kGroup rows.
typedef PairTile GroupTiles[kGroup / kTile];
typedef short HalfLanes __attribute__((vector_size(sizeof(Vec))));

// Asks the second-level cache for the next span while tiles are multiplied: what puts it into tiles
// would wait for memory, which is idle until then. A few lines at a time: more would keep the tiles
// waiting.
class Ahead {
 public:
  // Tiles of `rows` rows of `dim` at `first` and then, if they are others, at `second`; in about
  // `steps` steps.
  Ahead(const Bf16* const* first, const Bf16* const* second, int rows, int dim, int steps)
      : lists_{first, second}, lines_(kTile * dim * int{sizeof(Bf16)} / kLine) {
    const int tiles = (rows + kTile - 1) / kTile;
    if (tiles == 0) return;
    tiles_left_[0] = tiles;
    tiles_left_[1] = first[0] == second[0] ? 0 : tiles;
    each_ = ((tiles_left_[0] + tiles_left_[1]) * lines_ + steps - 1) / steps;
  }
  void Step() {
    for (int i = 0; i < each_; ++i) {
      if (line_ == 0) Next();
      if (line_ == 0) return;
      _mm_prefetch(at_, _MM_HINT_T1);
      at_ += kLine;
      --line_;
    }
  }

 private:
  static constexpr int kLine = 64;
  void Next() {
    const int list = tiles_left_[0] > 0 ? 0 : 1;
    if (tiles_left_[list] == 0) {
      each_ = 0;
      return;
    }
    --tiles_left_[list];
    at_ = (const char*)*lists_[list]++;
    line_ = lines_;
  }
  const Bf16* const* lists_[2];
  int tiles_left_[2] = {};
  int lines_;
  int each_ = 0;
  int line_ = 0;
  const char* at_ = nullptr;
};

struct alignas(64) Workspace {
  PairTile queries[kQueryTiles][kMaxHeadDim / kGroup];       // [pair of dims][query]
  GroupTiles keys[kSpan / kGroup * kMaxHeadDim / kGroup];    // [key][pair of dims]
  GroupTiles values[kMaxHeadDim / kGroup * kSpan / kGroup];  // [dim][pair of keys]
  PairTile weights[2][kSpan / kGroup];                       // [pair of keys][query]
  Vec sums[kQueryTiles][kMaxHeadDim];                        // [dim]; lanes are queries.
  Vec reference[kQueryTiles];                                // Weights are relative to this score.
  Vec total[kQueryTiles];                                    // The weights so far.
};

// Keys [begin, end) of a span, whole groups.
struct Keys {
  int begin;
  int end;
};

// Those of a tile.
inline const RowState* RowsOf(const RowState* rows, ptrdiff_t tile) { return rows + tile * kTile; }

// What `count` rows have in common at a span of keys from `first_key` on.
struct Span {
  const AttentionArgs<Bf16>& args;
  const RowState* rows;
  int count;
  int first_key;
  int key_end;  // Keys that the last row sees, from first_key on.
  const Bf16* const* keys() const { return args.kv.keys + first_key / kKeyTile; }
  // Those that rows of query tiles [tile, tile + tiles) see.
  Keys Seen(int tile, int tiles) const {
    const RowState& last = rows[Min((tile + tiles) * kTile, count) - 1];
    // Both ends of what rows see increase with the row.
    const int hidden = RowsOf(rows, tile)->first - first_key;
    const int visible = Min(last.positions - first_key, kSpan);
    return {hidden > 0 ? hidden / kGroup * kGroup : 0, (visible + kGroup - 1) / kGroup * kGroup};
  }
};

void PutQueries(const RowState* rows, int count, int head_dim, PairTile* queries) {
  for (int d = 0; d < head_dim; d += kGroup) {
    Vec square[kTile] = {};
    for (int i = 0; i < count; ++i) {
      RoundToPairs(rows[i].query + d, kGroup, (Pair*)&square[i]);
    }
    Transpose(square);
    __builtin_memcpy(queries[d / kGroup], square, sizeof(square));
  }
}

// Rows of keys side by side. Where they lie, a tile's rows are far apart, which nothing reads
// ahead.
void PutKeys(const Bf16* const* tiles, int key_end, int head_dim, GroupTiles* keys) {
  for (int tile = 0; tile * kTile < key_end; ++tile) {
    const Bf16* from = tiles[tile];
    for (int key = 0; key < kTile; ++key, from += head_dim) {
      for (int d = 0; d < head_dim; d += kGroup) {
        __builtin_memcpy(keys[(tile / 2 * head_dim + d) / kGroup][tile % 2][key], from + d,
                         sizeof(Vec));
      }
    }
  }
}

// Values of keys [0, key_end) by dimension; behind them zeros to the end of the group, since their
// weight 0 times whatever is in memory could be NaN.
void TurnValues(const Bf16* const* tiles, int key_end, ptrdiff_t row, int dim, GroupTiles* values) {
  for (int group = 0; group * kGroup < key_end; ++group) {
    for (int d = 0; d < dim; d += kGroup) {
      // Lane i of `low` is dimension i / 4 * 8 + i % 4; that of `high` is 4 dimensions on.
      Vec low[kTile];
      Vec high[kTile];
      for (int pair = 0; pair < kTile; ++pair) {
        __m512i both[2] = {};
        for (int half = 0; half < 2; ++half) {
          const int k = group * kGroup + 2 * pair + half;
          if (k >= key_end) continue;
          both[half] = _mm512_loadu_si512(tiles[k / kKeyTile] + k % kKeyTile * row + d);
        }
        low[pair] = (Vec)_mm512_unpacklo_epi16(both[0], both[1]);
        high[pair] = (Vec)_mm512_unpackhi_epi16(both[0], both[1]);
      }
      Transpose(low);
      Transpose(high);
      for (int i = 0; i < kTile; ++i) {
        const int to = i / 4 * 8 + i % 4;
        PairTile& tile = values[d / kGroup * (kSpan / kGroup) + group][to / kTile];
        __builtin_memcpy(tile[to % kTile], &low[i], sizeof(Vec));
        __builtin_memcpy(tile[to % kTile + 4], &high[i], sizeof(Vec));
      }
    }
  }
}

// Scores of the group of keys at `key`, for one tile of queries or, kTwo, two.
template <bool kTwo>
void Scores(Workspace& work, int head_dim, int tile, int key, Ahead& ahead, Vec (*scores)[kGroup]) {
  const GroupTiles* const keys = work.keys + key / kGroup * head_dim / kGroup;
  const PairTile* const left = work.queries[tile];
  const PairTile* const right = work.queries[kTwo ? tile + 1 : tile];
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int d = 0; d * kGroup < head_dim; ++d) {
    ahead.Step();
    _tile_loadd(4, keys[d][0], kTileStride);
    _tile_loadd(6, left[d], kTileStride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, keys[d][1], kTileStride);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (kTwo) {
      _tile_loadd(7, right[d], kTileStride);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, scores[0], kTileStride);
  _tile_stored(2, scores[0] + kTile, kTileStride);
  if constexpr (kTwo) {
    _tile_stored(1, scores[1], kTileStride);
    _tile_stored(3, scores[1] + kTile, kTileStride);
  }
}

// Hides from a tile's queries what they do not see of the group at `key`.
void Mask(const Span& span, int tile, int key, Vec* scores) {
  const RowState* const rows = RowsOf(span.rows, tile);
  const int count = Min(span.count - tile * kTile, kTile);
  const int from = span.first_key + key;
  if (rows[0].positions >= from + kGroup && rows[count - 1].first <= from) return;
  IntVec first = {};
  IntVec positions = {};
  for (int i = 0; i < count; ++i) {
    first[i] = rows[i].first - from;
    positions[i] = rows[i].positions - from;
  }
  for (int k = 0; k < kGroup; ++k) {
    const IntVec seen = (positions > k) & (first <= k);
    scores[k] = seen ? scores[k] : Splat(-__builtin_inff());
  }
}

// One instruction; a comparison would be two. (GCC warns of the form without a mask.)
inline Vec Max(Vec a, Vec b) { return (Vec)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b); }

// 2^x for x below 64, exactly 0 below -126 and 1 for 0, as Exp2 with fewer terms: within 1.1e-4, a
// twentieth of what rounding to bfloat16 then adds.
inline Vec Weight(Vec x) {
  constexpr float kRounder = 12582912.0f;
  const Vec shifted = x + kRounder;
  const Vec f = x - (shifted - kRounder);
  const Vec p = ((0.05500893f * f + 0.24221096f) * f + 0.69328293f) * f + 1.0f;
  const Vec scaled = (Vec)((UnsignedVec)p + ((UnsignedVec)shifted << 23));
  return x < -126.0f ? Vec{} : scaled;
}

// The largest score of a group, where it is so far above a query's reference that its weight would
// be too large; else the reference.
inline Vec Raised(Vec reference, float exponent_scale, const Vec* scores) {
  constexpr float kMostOctaves = 8;
  Vec largest[4] = {scores[0], scores[1], scores[2], scores[3]};
  for (int k = 4; k < kGroup; k += 4) {
    for (int i = 0; i < 4; ++i) largest[i] = Max(largest[i], scores[k + i]);
  }
  const Vec max = Max(Max(largest[0], largest[1]), Max(largest[2], largest[3]));
  return (max - reference) * exponent_scale > kMostOctaves ? max : reference;
}

// Queries that have seen no key have no reference.
inline Vec ShiftOf(Vec reference, float exponent_scale) {
  return (reference == Splat(-__builtin_inff()) ? Vec{} : reference) * -exponent_scale;
}

// What a tile has added up becomes relative to `reference`. Where that stays, not a bit changes:
// the exponent is rounded, so that its power need not be 1.
void Rescale(Workspace& work, int tile, Vec reference, float exponent_scale, int dim) {
  const Vec before = work.reference[tile];
  const Vec power = Exp2(before * exponent_scale + ShiftOf(reference, exponent_scale));
  const Vec shrink = before == reference ? Splat(1) : power;
  for (int d = 0; d < dim; ++d) work.sums[tile][d] *= shrink;
  work.total[tile] *= shrink;
  work.reference[tile] = reference;
}

// Turns a group's scores into weights.
inline void PutWeights(Workspace& work, int tile, float exponent_scale, const Vec* scores,
                       PairTile& weights) {
  const Vec shift = ShiftOf(work.reference[tile], exponent_scale);
  // Lanes of two keys side by side become pairs.
  const auto pairs =
      (__m512i)(HalfLanes){0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                           8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  Vec total[2] = {};
  for (int k = 0; k < kGroup; k += 2) {
    Vec weight[2];
    for (int i = 0; i < 2; ++i) {
      weight[i] = Weight(scores[k + i] * exponent_scale + shift);
      total[i] += weight[i];
    }
    const auto rounded = (__m512i)_mm512_cvtne2ps_pbh((__m512)weight[1], (__m512)weight[0]);
    _mm512_store_si512(weights[k / 2], _mm512_permutexvar_epi16(pairs, rounded));
  }
  work.total[tile] += total[0] + total[1];
}

// sums += values by weights, for one tile of queries or, kTwo, two.
template <bool kTwo>
void Weigh(Workspace& work, int tile, Keys keys, int dim, Ahead& ahead) {
  if (keys.begin >= keys.end) return;
  for (int d = 0; d < dim; d += 2 * kTile) {
    const GroupTiles* const values =
        work.values + static_cast<ptrdiff_t>(d / kGroup) * (kSpan / kGroup);
    Vec* const left = work.sums[tile] + d;
    Vec* const right = kTwo ? work.sums[tile + 1] + d : left;
    _tile_loadd(0, left, kTileStride);
    _tile_loadd(2, left + kTile, kTileStride);
    if constexpr (kTwo) {
      _tile_loadd(1, right, kTileStride);
      _tile_loadd(3, right + kTile, kTileStride);
    }
    for (int group = keys.begin / kGroup; group < keys.end / kGroup; ++group) {
      ahead.Step();
      _tile_loadd(4, values[group][0], kTileStride);
      _tile_loadd(6, work.weights[0][group], kTileStride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, values[group][1], kTileStride);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kTwo) {
        _tile_loadd(7, work.weights[1][group], kTileStride);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, left, kTileStride);
    _tile_stored(2, left + kTile, kTileStride);
    if constexpr (kTwo) {
      _tile_stored(1, right, kTileStride);
      _tile_stored(3, right + kTile, kTileStride);
    }
  }
}

// Two tiles of queries, or one if kTwo is false, at a span of keys. The tiles multiply one group
// while the vectors weigh the one before.
template <bool kTwo>
void AttendTiles(Workspace& work, const Span& span, int tile, Ahead& ahead) {
  constexpr int kTiles = kTwo ? 2 : 1;
  const Keys seen = span.Seen(tile, kTiles);
  const int dim = ValueDim(span.args);
  const int head_dim = span.args.head_dim;
  Vec scores[2][2][kGroup];
  int weighed = seen.begin;
  if (seen.begin < seen.end) Scores<kTwo>(work, head_dim, tile, seen.begin, ahead, scores[0]);
  for (int key = seen.begin, now = 0; key < seen.end; key += kGroup, now ^= 1) {
    if (key + kGroup < seen.end) {
      Scores<kTwo>(work, head_dim, tile, key + kGroup, ahead, scores[now ^ 1]);
    }
    float exponent_scale = 0;
    Vec reference[kTiles];
    bool raised = false;
    for (int i = 0; i < kTiles; ++i) {
      exponent_scale =
          CapScores(span.args.scale, span.args.softcap, kGroup * kLanes, (float*)scores[now][i]);
      Mask(span, tile + i, key, scores[now][i]);
      reference[i] = Raised(work.reference[tile + i], exponent_scale, scores[now][i]);
      raised |= _mm512_cmpneq_ps_mask((__m512)reference[i], (__m512)work.reference[tile + i]) != 0;
    }
    if (raised) {
      Weigh<kTwo>(work, tile, {weighed, key}, dim, ahead);
      weighed = key;
      for (int i = 0; i < kTiles; ++i) {
        Rescale(work, tile + i, reference[i], exponent_scale, dim);
      }
    }
    for (int i = 0; i < kTiles; ++i) {
      PutWeights(work, tile + i, exponent_scale, scores[now][i], work.weights[i][key / kGroup]);
    }
  }
  Weigh<kTwo>(work, tile, {weighed, seen.end}, dim, ahead);
}

// Writes what a tile's `count` queries have added up.
void Finish(const RowState* rows, int count, int dim, const Vec& total, const Vec* sums) {
  const Vec inverse = 1.0f / total;
  for (int d = 0; d < dim; d += kTile) {
    Vec square[kTile];
    for (int i = 0; i < kTile; ++i) square[i] = sums[d + i] * inverse;
    Transpose(square);
    for (int i = 0; i < count; ++i) Store(rows[i].output + d, square[i]);
  }
}

// Processes all keys for up to kSharingRows rows.
void AttendSharingRows(RowState* rows, int count, const AttentionArgs<Bf16>& args) {
  Workspace work;
  const int dim = ValueDim(args);
  const int tiles = (count + kTile - 1) / kTile;
  for (int tile = 0; tile < tiles; ++tile) {
    PutQueries(RowsOf(rows, tile), Min(count - tile * kTile, kTile), args.head_dim,
               work.queries[tile]);
    // Values are turned kGroup dimensions at a time.
    for (int d = 0; d < dim + kTile && d < kMaxHeadDim; ++d) work.sums[tile][d] = Vec{};
    work.reference[tile] = Splat(-__builtin_inff());
    work.total[tile] = Vec{};
  }
  const int positions = rows[count - 1].positions;
  for (int key = rows[0].first / kSpan * kSpan; key < positions; key += kSpan) {
    const Span span = {args, rows, count, key, Min(positions - key, kSpan)};
    const int next = Min(positions - key - span.key_end, kSpan);
    PutKeys(span.keys(), span.key_end, args.head_dim, work.keys);
    TurnValues(args.kv.values + key / kKeyTile, span.key_end, args.head_dim, dim, work.values);
    Ahead ahead(span.keys() + kSpan / kTile, args.kv.values + (key + kSpan) / kTile, next,
                args.head_dim, (tiles + 1) / 2 * (kSpan / kGroup) * (args.head_dim + dim) / kGroup);
    for (int tile = 0; tile < tiles; tile += 2) {
      (tile + 1 < tiles ? AttendTiles<true> : AttendTiles<false>)(work, span, tile, ahead);
    }
  }
  for (int tile = 0; tile < tiles; ++tile) {
    Finish(RowsOf(rows, tile), Min(count - tile * kTile, kTile), dim, work.total[tile],
           work.sums[tile]);
  }
}

}  // namespace
}  // namespace amx

void AttentionAmx(const AttentionArgs<Bf16>& args) {
  if (args.head_dim % amx::kGroup != 0) return avx512::kTable.attention_bf16(args);
  Configure(amx::kTile, amx::kTile);
  amx::ForQueryRows<amx::kSharingRows>(args, amx::AttendSharingRows);
  _tile_release();
}

}  // namespace baton::kernels
