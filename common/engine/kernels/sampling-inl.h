// Scans over all logits of a row, for drawing a token.

namespace baton::kernels::BATON_KERNELS {
namespace {

constexpr float kNoLogit = -__builtin_inff();

// The first `count` floats at p, followed by `rest`.
inline Vec LoadPartialOr(const float* p, int count, float rest) {
  float buffer[kLanes];
  for (int i = 0; i < kLanes; ++i) buffer[i] = i < count ? p[i] : rest;
  return Load(buffer);
}

bool MaxOf(const float* x, size_t count, float* max) {
  Vec best = Splat(kNoLogit);
  Vec defect{};  // Sum of x - x: NaN as soon as an x is infinite or NaN.
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vec v = Load(x + i);
    best = v > best ? v : best;
    defect += v - v;
  }
  const int rest = static_cast<int>(count - i);
  const Vec tail = LoadPartialOr(x + i, rest, kNoLogit);
  best = tail > best ? tail : best;
  const Vec present = LoadPartial(x + i, rest);
  defect += present - present;
  *max = MaxLanes(best)[0];
  return SumLanes(defect)[0] == 0;
}

double SumExp(const float* x, size_t count, float max) {
  DoubleVec sums{};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    sums += __builtin_convertvector(Exp2((Load(x + i) - max) * kLog2E), DoubleVec);
  }
  const Vec tail = LoadPartialOr(x + i, static_cast<int>(count - i), kNoLogit);
  sums += __builtin_convertvector(Exp2((tail - max) * kLog2E), DoubleVec);
  double sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += sums[lane];
  return sum;
}

struct Weighed {
  IntVec weights;
  IntVec buckets;
};

inline Weighed WeighLanes(Vec x, float max, float scale) {
  const Vec octaves = (x - max) * scale;
  const Vec bounded = octaves > -32.0f ? octaves : Splat(-32.0f);
  const Vec exact = Exp2(bounded) * static_cast<float>(kUnitWeight) + 0.5f;
  const IntVec bucket =
      __builtin_convertvector(bounded * static_cast<float>(-kBucketsPerOctave), IntVec);
  const IntVec last = IntVec{} + (kWeightBuckets - 1);
  return {__builtin_convertvector(exact, IntVec), bucket < last ? bucket : last};
}

uint64_t Weigh(const float* x, size_t count, float max, float scale, uint32_t* weights,
               uint16_t* buckets) {
  LongVec sums{};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Weighed lanes = WeighLanes(Load(x + i), max, scale);
    const ShortVec narrow = __builtin_convertvector(lanes.buckets, ShortVec);
    __builtin_memcpy(weights + i, &lanes.weights, sizeof(lanes.weights));
    __builtin_memcpy(buckets + i, &narrow, sizeof(narrow));
    sums += __builtin_convertvector(lanes.weights, LongVec);
  }
  uint64_t sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += static_cast<uint64_t>(sums[lane]);
  const int rest = static_cast<int>(count - i);
  const Weighed lanes = WeighLanes(LoadPartialOr(x + i, rest, kNoLogit), max, scale);
  for (int lane = 0; lane < rest; ++lane) {
    weights[i + static_cast<size_t>(lane)] = static_cast<uint32_t>(lanes.weights[lane]);
    buckets[i + static_cast<size_t>(lane)] = static_cast<uint16_t>(lanes.buckets[lane]);
    sum += static_cast<uint32_t>(lanes.weights[lane]);
  }
  return sum;
}

}  // namespace
}  // namespace baton::kernels::BATON_KERNELS
