// Vectors of one register, and operations on them that all kernels need.

namespace baton::kernels::BATON_KERNELS {
namespace {

constexpr int kLanes = BATON_LANES;
constexpr int kPanel = 2 * kLanes;
constexpr int kTileRows = BATON_LINEAR_ROWS;
constexpr int kWide = BATON_WIDE;

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float))));
typedef int IntVec __attribute__((vector_size(kLanes * sizeof(int))));
typedef unsigned UnsignedVec __attribute__((vector_size(kLanes * sizeof(unsigned))));
// The same number of lanes, in as many registers as they take.
typedef double DoubleVec __attribute__((vector_size(kLanes * sizeof(double))));
typedef long long LongVec __attribute__((vector_size(kLanes * sizeof(long long))));
typedef unsigned short ShortVec __attribute__((vector_size(kLanes * sizeof(unsigned short))));

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
// Widens to float32, which is exact.
inline Vec Load(const Bf16* p) {
  ShortVec halves;
  __builtin_memcpy(&halves, p, sizeof(halves));
  return (Vec)(__builtin_convertvector(halves, UnsignedVec) << 16);
}
inline void Store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof(v)); }
// Subtracts, since the compiler may drop x - 0, which is x for every x, but not 0 + x.
inline Vec Splat(float x) { return x - Vec{}; }
inline int Min(int a, int b) { return a < b ? a : b; }

// The first `count` floats at p, followed by zeros.
inline Vec LoadPartial(const float* p, int count) {
  float buffer[kLanes] = {};
  for (int i = 0; i < count; ++i) buffer[i] = p[i];
  return Load(buffer);
}
inline void StorePartial(float* p, Vec v, int count) {
  for (int i = 0; i < count; ++i) p[i] = v[i];
}

// v with its lanes rotated down by kBy.
template <int kBy, int... kLane>
inline Vec Rotate(Vec v, Lanes<kLane...>) {
  return __builtin_shufflevector(v, v, ((kLane + kBy) % kLanes)...);
}

// The sum and the largest of all lanes, in every lane, by folding halves onto each other.
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

// 2^x for x <= 127, within 3 units in the last place; exactly 0 below -126, so that the weight of a
// masked score of minus infinity is 0. x = n + f with f in [-1/2, 1/2]; 2^f by its Taylor series,
// 2^n by adding n to the exponent.
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
  const Vec scaled = (Vec)((UnsignedVec)p + ((UnsignedVec)shifted << 23));
  return x < -126.0f ? Vec{} : scaled;
}

// 1 / (1 + e^-x); no overflow.
inline Vec Sigmoid(Vec x) {
  const Vec exponent = x * -kLog2E;
  const Vec bounded = exponent > 126.0f ? Splat(126.0f) : exponent;
  return 1.0f / (1.0f + Exp2(bounded));
}

// Near 0, where the quotient would lose digits, by the Taylor series.
inline Vec Tanh(Vec x) {
  const Vec square = x * x;
  Vec p = Splat(-1382.0f / 155925);
  p = p * square + 62.0f / 2835;
  p = p * square - 17.0f / 315;
  p = p * square + 2.0f / 15;
  p = p * square - 1.0f / 3;
  const Vec near = x + x * square * p;
  const Vec far = 2.0f * Sigmoid(2.0f * x) - 1.0f;
  return square < 0.1f ? near : far;
}

}  // namespace
}  // namespace baton::kernels::BATON_KERNELS
