#include "common/collective/rank_order_sum.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "common/base/check.h"

namespace baton {
namespace {

template <typename Element>
Element Load(const std::byte* from, size_t index) {
  Element element;
  std::memcpy(&element, from + index * sizeof(element), sizeof(element));
  return element;
}

struct Float32 {
  static float Read(const std::byte* from, size_t index) { return Load<float>(from, index); }
  static void Write(float value, std::byte* to, size_t index) {
    std::memcpy(to + index * sizeof(value), &value, sizeof(value));
  }
};

struct BFloat16 {
  static float Read(const std::byte* from, size_t index) {
    return std::bit_cast<float>(static_cast<uint32_t>(Load<uint16_t>(from, index)) << 16);
  }
  static void Write(float value, std::byte* to, size_t index) {
    const auto bits = std::bit_cast<uint32_t>(value);
    // Rounding could carry a NaN's mantissa into infinity or beyond. Setting one bit of the
    // mantissa keeps it a NaN after the rest is cut off.
    const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
    const uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
    const auto upper = static_cast<uint16_t>((is_nan ? bits | 0x400000U : rounded) >> 16);
    std::memcpy(to + index * sizeof(upper), &upper, sizeof(upper));
  }
};

template <typename Format>
void AddAll(const std::byte* from, bool begin, size_t count, float* sums) {
  // The first contribution is copied, not added to zero: 0 + -0 is 0.
  if (begin) {
    for (size_t i = 0; i < count; ++i) sums[i] = Format::Read(from, i);
  } else {
    for (size_t i = 0; i < count; ++i) sums[i] += Format::Read(from, i);
  }
}

template <typename Format>
void StoreAll(const float* sums, size_t count, std::byte* to) {
  for (size_t i = 0; i < count; ++i) Format::Write(sums[i], to, i);
}

}  // namespace

void RankOrderSum::Add(ElementType type, std::span<const std::byte> contribution) {
  const size_t count = contribution.size() / ElementBytes(type);
  if (sums_.size() < count) sums_.resize(count);
  const auto add = type == ElementType::kFloat32 ? AddAll<Float32> : AddAll<BFloat16>;
  add(contribution.data(), !begun_, count, sums_.data());
  begun_ = true;
}

void RankOrderSum::Store(ElementType type, std::span<std::byte> sums) {
  const size_t count = sums.size() / ElementBytes(type);
  BATON_CHECK(begun_ && count <= sums_.size()) << "no contribution of " << count << " elements";
  const auto store = type == ElementType::kFloat32 ? StoreAll<Float32> : StoreAll<BFloat16>;
  store(sums_.data(), count, sums.data());
  begun_ = false;
}

}  // namespace baton
