// Rounding float32 to the 16-bit formats of checkpoints, to nearest even. For writers; readers
// convert in bulk through the engine.
#ifndef COMMON_MODEL_FLOAT_FORMATS_H_
#define COMMON_MODEL_FLOAT_FORMATS_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace baton {

// Finite values only.
inline uint16_t FloatToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Finite values below 65,520; smaller than 2^-24 rounds to zero.
inline uint16_t FloatToF16(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = m * 2^exponent, m in [0.5, 1).
  // One unit in the last place is 2^(exponent - 11), or 2^-24 among the subnormals.
  const int unit = std::max(exponent - 11, -24);
  const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, -unit)));
  // Normal numbers have at least 1024 steps, the hidden bit, which adds one to the exponent field.
  const auto exponent_field = static_cast<uint32_t>(unit + 24);
  return static_cast<uint16_t>(sign | ((exponent_field << 10) + steps));
}

}  // namespace baton

#endif  // COMMON_MODEL_FLOAT_FORMATS_H_
