// The only source of the vector kernels, compiled once per instruction set by the .cc files beside
// it, which define
//   BATON_KERNELS       the namespace of the set,
//   BATON_KERNELS_NAME  its name in the table,
//   BATON_LANES         floats per vector register,
//   BATON_LINEAR_ROWS   rows of linear's register tile; rows * 2 accumulators must fit,
//   BATON_WIDE          vectors per row of attention's register tiles of 6 rows.
// It uses vector extensions of GCC and Clang instead of intrinsics, so that one text serves every
// width.
//
// Nothing here may call an inline function of another header. The linker keeps one copy of such a
// function; if it kept this file's, compiled for AVX-512, older CPUs would run it.

#include "common/engine/kernels/kernels.h"

// The order matters: each file uses the ones before it.
// clang-format off
#include "common/engine/kernels/vector-inl.h"
#include "common/engine/kernels/linear-inl.h"
#include "common/engine/kernels/attention-inl.h"
#include "common/engine/kernels/sampling-inl.h"
// clang-format on

namespace baton::kernels::BATON_KERNELS {
namespace {

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

// (1 + tanh(u)) / 2 is the sigmoid of 2u.
inline Vec GeluMul(Vec gate, Vec up) {
  constexpr float kTwiceRoot = 1.5957691216057308f;  // 2 * sqrt(2 / pi)
  return gate * Sigmoid(kTwiceRoot * (gate + 0.044715f * gate * gate * gate)) * up;
}

template <Vec (*kGate)(Vec gate, Vec up)>
void GateRows(const float* gate_up, int rows, int dim, float* y) {
  for (int row = 0; row < rows; ++row) {
    const float* gate = gate_up + 2 * static_cast<size_t>(row) * static_cast<size_t>(dim);
    const float* up = gate + dim;
    float* out = y + static_cast<size_t>(row) * static_cast<size_t>(dim);
    int i = 0;
    for (; i + kLanes <= dim; i += kLanes) Store(out + i, kGate(Load(gate + i), Load(up + i)));
    const int rest = dim - i;
    StorePartial(out + i, kGate(LoadPartial(gate + i, rest), LoadPartial(up + i, rest)), rest);
  }
}

void SoftCap(float cap, size_t count, float* x) {
  const auto capped = [cap](Vec value) { return cap * Tanh(value / cap); };
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(x + i, capped(Load(x + i)));
  const int rest = static_cast<int>(count - i);
  StorePartial(x + i, capped(LoadPartial(x + i, rest)), rest);
}

void Add(const float* x, size_t count, float* y) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(y + i, Load(y + i) + Load(x + i));
  for (; i < count; ++i) y[i] += x[i];
}

void AddScaled(const float* x, float scale, size_t count, float* y) {
  const Vec factor = Splat(scale);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(y + i, Load(y + i) + factor * Load(x + i));
  for (; i < count; ++i) y[i] += scale * x[i];
}

void AddBias(const float* bias, int rows, int dim, float* y) {
  for (int row = 0; row < rows; ++row) {
    Add(bias, static_cast<size_t>(dim), y + static_cast<size_t>(row) * static_cast<size_t>(dim));
  }
}

// Integer arithmetic on the bits: adds just under half a unit, plus one if the kept part is odd.
// The carry rounds to nearest even, also into the exponent and to infinity.
inline UnsignedVec RoundedBits(Vec x) {
  const UnsignedVec bits = (UnsignedVec)x;
  const UnsignedVec rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  // The carry could turn a NaN into any value, so NaN is kept and made quiet.
  return x == x ? rounded : bits | 0x00400000u;
}

// The Vec of the first `count` elements at x, 1 <= count <= kLanes.
inline Vec LoadUpTo(const float* x, size_t count) {
  return count == kLanes ? Load(x) : LoadPartial(x, static_cast<int>(count));
}

void ToBf16(const float* x, size_t count, Bf16* y) {
  for (size_t i = 0; i < count; i += kLanes) {
    const size_t present = count - i < kLanes ? count - i : kLanes;
    const ShortVec halves =
        __builtin_convertvector(RoundedBits(LoadUpTo(x + i, present)) >> 16, ShortVec);
    __builtin_memcpy(y + i, &halves, present * sizeof(Bf16));
  }
}

void FromBf16(const Bf16* x, size_t count, float* y) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(y + i, Load(x + i));
  if (i == count) return;
  Bf16 rest[kLanes] = {};
  __builtin_memcpy(rest, x + i, (count - i) * sizeof(Bf16));
  StorePartial(y + i, Load(rest), static_cast<int>(count - i));
}

void RoundToBf16(float* x, size_t count) {
  for (size_t i = 0; i < count; i += kLanes) {
    const size_t present = count - i < kLanes ? count - i : kLanes;
    const Vec rounded = (Vec)(RoundedBits(LoadUpTo(x + i, present)) & 0xffff0000u);
    __builtin_memcpy(x + i, &rounded, present * sizeof(float));
  }
}

double MultiplyAdds(int rounds) {
  constexpr int kChains = 12;  // More than two units times the latency of a multiply-add need.
  Vec chain[kChains];
  for (int i = 0; i < kChains; ++i) chain[i] = Splat(static_cast<float>(i));
  Vec factor = Splat(0.999f);
  Vec term = Splat(0.001f);
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < kChains; ++i) chain[i] = chain[i] * factor + term;
    asm volatile("" : "+x"(factor), "+x"(term));  // Keeps the compiler from folding the loop.
  }
  for (int i = 0; i < kChains; ++i) asm volatile("" : : "x"(chain[i]));
  return 2.0 * rounds * kChains * kLanes;
}

}  // namespace

extern const KernelTable kTable;
const KernelTable kTable = {
    .name = BATON_KERNELS_NAME,
    .panel_width = kPanel,
    .rms_norm = RmsNorm,
    .rope = Rope,
    .silu_mul = GateRows<SiluMul>,
    .gelu_mul = GateRows<GeluMul>,
    .soft_cap = SoftCap,
    .add = Add,
    .add_scaled = AddScaled,
    .add_bias = AddBias,
    .linear = Linear,
    .linear_bf16 = Linear,
    .linear_e4m3 = Linear,
    .attention = Attention,
    .attention_bf16 = Attention,
    .to_bf16 = ToBf16,
    .from_bf16 = FromBf16,
    .round_to_bf16 = RoundToBf16,
    .max_of = MaxOf,
    .sum_exp = SumExp,
    .weigh = Weigh,
    .multiply_adds = MultiplyAdds,
};

}  // namespace baton::kernels::BATON_KERNELS
