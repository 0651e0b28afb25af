// Pairs of neighbouring bfloat16 numbers, as the instructions that multiply them take them.
// For sources that are compiled with AVX512_BF16; the rules of kernels-inl.h hold here, too.

namespace baton::kernels::BATON_KERNELS {
namespace {

// What is in memory as 32-bit lanes: two neighbours in bfloat16, the first in the lower half.
typedef uint32_t Pair;

constexpr ptrdiff_t kPairedLanes = ptrdiff_t{2} * kLanes;  // bfloat16 numbers of a register.

inline Vec LoadPairs(const Pair* p) {
  Vec pairs;
  __builtin_memcpy(&pairs, p, sizeof(pairs));
  return pairs;
}

// `count` floats, a multiple of kPairedLanes, rounded.
inline void RoundToPairs(const float* from, ptrdiff_t count, Pair* to) {
  for (ptrdiff_t i = 0; i < count; i += kPairedLanes) {
    const auto rounded =
        (__m512i)_mm512_cvtne2ps_pbh((__m512)Load(from + i + kLanes), (__m512)Load(from + i));
    _mm512_storeu_si512(to + i / 2, rounded);
  }
}

// Starts reading rows [begin, end) of the keys at `tiles`: what arranges them would wait for
// memory, while products leave it idle.
inline void PrefetchRows(const Bf16* const* tiles, int begin, int end, ptrdiff_t dim) {
  constexpr ptrdiff_t kLine = 64 / sizeof(Bf16);
  for (int k = begin; k < end; ++k) {
    const Bf16* const row = tiles[k / kKeyTile] + (k % kKeyTile) * dim;
    for (ptrdiff_t d = 0; d < dim; d += kLine) _mm_prefetch(row + d, _MM_HINT_T1);
  }
}

}  // namespace
}  // namespace baton::kernels::BATON_KERNELS
