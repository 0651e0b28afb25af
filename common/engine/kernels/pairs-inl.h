// Pairs of neighbouring bfloat16 numbers, as the instructions that multiply them take them.
// For sources that are compiled with AVX512_BF16; the rules of kernels-inl.h hold here, too.

namespace baton::kernels::BATON_KERNELS {
namespace {

// What is in memory as 32-bit lanes: two neighbours in bfloat16, the first in the lower half.
typedef uint32_t Pair;

constexpr ptrdiff_t kPairedLanes = ptrdiff_t{2} * kLanes;  // bfloat16 numbers of a register.

// `count` floats, a multiple of kPairedLanes, rounded.
inline void RoundToPairs(const float* from, ptrdiff_t count, Pair* to) {
  for (ptrdiff_t i = 0; i < count; i += kPairedLanes) {
    const auto rounded =
        (__m512i)_mm512_cvtne2ps_pbh((__m512)Load(from + i + kLanes), (__m512)Load(from + i));
    _mm512_storeu_si512(to + i / 2, rounded);
  }
}

}  // namespace
}  // namespace baton::kernels::BATON_KERNELS
