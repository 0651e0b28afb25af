// The reference: each kernel by its definition, for any CPU. Sums are in double, so that it is also
// the oracle of the vector tables' tests. It is not fast.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "common/engine/kernels/kernels.h"

namespace baton::kernels::scalar {
namespace {

constexpr int kPanel = 16;

void RmsNorm(const float* x, const float* weight, float eps, int rows, int dim, float* y) {
  for (int row = 0; row < rows; ++row, x += dim, y += dim) {
    double squares = 0;
    for (int i = 0; i < dim; ++i) squares += static_cast<double>(x[i]) * x[i];
    const double scale = 1 / std::sqrt(squares / dim + eps);
    for (int i = 0; i < dim; ++i) y[i] = static_cast<float>(x[i] * scale) * weight[i];
  }
}

void Rope(float* x, const float* cos, const float* sin, int heads, int head_dim) {
  const int half = head_dim / 2;
  for (int head = 0; head < heads; ++head, x += head_dim) {
    for (int i = 0; i < half; ++i) {
      const float a = x[i];
      const float b = x[i + half];
      x[i] = a * cos[i] - b * sin[i];
      x[i + half] = b * cos[i] + a * sin[i];
    }
  }
}

void SiluMul(const float* gate_up, int rows, int dim, float* y) {
  for (int row = 0; row < rows; ++row, gate_up += dim, y += dim) {
    for (int i = 0; i < dim; ++i) {
      y[i] = gate_up[i] / (1 + std::exp(-gate_up[i])) * gate_up[dim + i];
    }
    gate_up += dim;  // Skips the gates; the loop goes over the second half.
  }
}

void GeluMul(const float* gate_up, int rows, int dim, float* y) {
  const double root = std::sqrt(2 / std::numbers::pi);
  for (int row = 0; row < rows; ++row, gate_up += 2 * static_cast<ptrdiff_t>(dim), y += dim) {
    for (int i = 0; i < dim; ++i) {
      const double x = gate_up[i];
      const double gelu = x / 2 * (1 + std::tanh(root * (x + 0.044715 * x * x * x)));
      y[i] = static_cast<float>(gelu * gate_up[dim + i]);
    }
  }
}

double Capped(double x, double cap) { return cap * std::tanh(x / cap); }

void SoftCap(float cap, size_t count, float* x) {
  std::transform(x, x + count, x,
                 [cap](float value) { return static_cast<float>(Capped(value, cap)); });
}

void Add(const float* x, size_t count, float* y) {
  for (size_t i = 0; i < count; ++i) y[i] += x[i];
}

void AddScaled(const float* x, float scale, size_t count, float* y) {
  for (size_t i = 0; i < count; ++i) y[i] += scale * x[i];
}

void AddBias(const float* bias, int rows, int dim, float* y) {
  for (int row = 0; row < rows; ++row, y += dim) {
    for (int i = 0; i < dim; ++i) y[i] += bias[i];
  }
}

float Widen(float x) { return x; }
float Widen(Bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

// By definition: the nearer of the two neighbours, the even one if both are equally near.
Bf16 Rounded(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto kept = static_cast<uint16_t>(bits >> 16);
  if (std::isnan(x)) return {static_cast<uint16_t>(kept | 0x40)};
  const uint32_t dropped = bits & 0xffff;
  const bool up = dropped > 0x8000 || (dropped == 0x8000 && kept % 2 == 1);
  return {static_cast<uint16_t>(kept + (up ? 1 : 0))};
}

void ToBf16(const float* x, size_t count, Bf16* y) { std::transform(x, x + count, y, Rounded); }

void FromBf16(const Bf16* x, size_t count, float* y) {
  std::transform(x, x + count, y, [](Bf16 value) { return Widen(value); });
}

void RoundToBf16(float* x, size_t count) {
  std::transform(x, x + count, x, [](float value) { return Widen(Rounded(value)); });
}

template <typename Element>
void Linear(const Packed<Element>& w, const float* x, int rows, int panel_begin, int panel_end,
            float* y, size_t y_stride) {
  const auto inputs = static_cast<size_t>(w.inputs);
  std::vector<float> weights(inputs);
  for (int output = panel_begin * kPanel; output < std::min(panel_end * kPanel, w.outputs);
       ++output) {
    UnpackRow(w, output, kPanel, weights.data());
    for (int row = 0; row < rows; ++row) {
      const float* in = x + static_cast<size_t>(row) * inputs;
      double sum = 0;
      for (size_t i = 0; i < inputs; ++i) sum += static_cast<double>(in[i]) * weights[i];
      y[static_cast<size_t>(row) * y_stride + static_cast<size_t>(output)] =
          static_cast<float>(sum);
    }
  }
}

template <typename Element>
const Element* Row(const Element* const* tiles, int position, int dim) {
  const int token = position % kKeyTile;
  return tiles[position / kKeyTile] + static_cast<ptrdiff_t>(token) * dim;
}

// Two passes over all scores of a row: an independent check of the vector tables' blocks and
// running maximum.
template <typename Element>
void AttendRow(const AttentionArgs<Element>& args, const float* query, int positions,
               float* output) {
  const int dim = args.head_dim;
  std::vector<double> weights(static_cast<size_t>(positions));
  double max = -std::numeric_limits<double>::infinity();
  const int first = args.window > 0 ? std::max(0, positions - args.window) : 0;
  for (int p = first; p < positions; ++p) {
    double score = 0;
    const Element* key = Row(args.kv.keys, p, dim);
    for (int d = 0; d < dim; ++d) score += static_cast<double>(query[d]) * Widen(key[d]);
    score *= args.scale;
    weights[static_cast<size_t>(p)] = args.softcap > 0 ? Capped(score, args.softcap) : score;
    max = std::max(max, weights[static_cast<size_t>(p)]);
  }
  double sum = 0;
  for (size_t p = 0; p < weights.size(); ++p) {
    weights[p] = p < static_cast<size_t>(first) ? 0 : std::exp(weights[p] - max);
    sum += weights[p];
  }
  for (int d = 0; d < (args.value_dim > 0 ? args.value_dim : dim); ++d) {
    double value = 0;
    for (int p = first; p < positions; ++p) {
      value += weights[static_cast<size_t>(p)] * Widen(Row(args.kv.values, p, dim)[d]);
    }
    output[d] = static_cast<float>(value / sum);
  }
}

template <typename Element>
void Attention(const AttentionArgs<Element>& args) {
  for (int token = 0; token < args.tokens; ++token) {
    for (int head = 0; head < args.heads; ++head) {
      const auto offset = static_cast<size_t>(head) * static_cast<size_t>(args.head_dim);
      const auto value_dim =
          static_cast<size_t>(args.value_dim > 0 ? args.value_dim : args.head_dim);
      const size_t to = static_cast<size_t>(head) * value_dim;
      AttendRow(args, args.query + static_cast<size_t>(token) * args.query_stride + offset,
                args.first_position + token + 1,
                args.output + static_cast<size_t>(token) * args.output_stride + to);
    }
  }
}

bool MaxOf(const float* x, size_t count, float* max) {
  bool finite = true;
  *max = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < count; ++i) {
    finite = finite && std::isfinite(x[i]);
    if (x[i] > *max) *max = x[i];
  }
  return finite;
}

double SumExp(const float* x, size_t count, float max) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += std::exp(static_cast<double>(x[i]) - max);
  return sum;
}

uint64_t Weigh(const float* x, size_t count, float max, float scale, uint32_t* weights,
               uint16_t* buckets) {
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) {
    const double octaves = std::max(-32.0, (static_cast<double>(x[i]) - max) * scale);
    weights[i] = static_cast<uint32_t>(std::lround(std::exp2(octaves) * kUnitWeight));
    buckets[i] =
        static_cast<uint16_t>(std::min<double>(-octaves * kBucketsPerOctave, kWeightBuckets - 1));
    sum += weights[i];
  }
  return sum;
}

double MultiplyAdds(int rounds) {
  constexpr int kChains = 12;
  float chain[kChains] = {};
  volatile float factor = 0.999f;
  for (int round = 0; round < rounds; ++round) {
    const float by = factor;
    for (float& value : chain) value = value * by + 0.001f;
  }
  for (const float value : chain) factor = value;
  return 2.0 * rounds * kChains;
}

}  // namespace

extern const KernelTable kTable;
const KernelTable kTable = {
    .name = "scalar",
    .panel_width = kPanel,
    .rms_norm = RmsNorm,
    .rope = Rope,
    .silu_mul = SiluMul,
    .gelu_mul = GeluMul,
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

}  // namespace baton::kernels::scalar
