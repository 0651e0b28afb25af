#include "common/engine/weights/weight_conversion.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include "common/base/check.h"
#include "common/engine/kernels/kernels.h"

namespace baton {
namespace {

float Bf16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Written without a branch, so that the loop below is vectorized on every processor.
float F16ToFloat(uint16_t bits) {
  const uint32_t sign = (uint32_t{bits} & 0x8000) << 16;
  const uint32_t magnitude = (uint32_t{bits} & 0x7fff) << 13;
  // The product rebiases the exponent and normalises subnormals.
  const auto scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  // Infinity and NaN keep the highest exponent.
  const uint32_t special = (bits & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
  return std::bit_cast<float>(scaled | special | sign);
}

// Some writers put elements at odd addresses. memcpy reads those too, at no cost.
template <typename Convert>
void ConvertSixteenBits(const std::byte* from, std::span<float> out, const Convert& convert) {
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, from + i * sizeof(bits), sizeof(bits));
    out[i] = convert(bits);
  }
}

}  // namespace

void ConvertToFloat(DType dtype, std::span<const std::byte> bytes, std::span<float> out) {
  BATON_CHECK(bytes.size() == out.size() * DTypeBytes(dtype))
      << bytes.size() << " bytes for " << out.size() << " elements";
  const std::byte* from = bytes.data();
  switch (dtype) {
    case DType::kF32:
      if (!out.empty()) std::memcpy(out.data(), from, out.size_bytes());
      return;
    case DType::kBF16:
      ConvertSixteenBits(from, out, Bf16ToFloat);
      return;
    case DType::kF16:
      ConvertSixteenBits(from, out, F16ToFloat);
      return;
    default:
      BATON_CHECK(false) << "FindWeight admits no " << DTypeName(dtype);
  }
}

void ConvertWeights(DType dtype, std::span<const std::byte> bytes, ElementType type,
                    std::span<std::byte> out) {
  BATON_CHECK(out.size() / ElementBytes(type) == bytes.size() / DTypeBytes(dtype))
      << bytes.size() << " bytes of " << DTypeName(dtype) << " into " << out.size();
  if (SameFormat(dtype, type)) {
    std::copy(bytes.begin(), bytes.end(), out.begin());
    return;
  }
  const size_t count = out.size() / ElementBytes(type);
  if (type == ElementType::kFloat32) {
    ConvertToFloat(dtype, bytes, {reinterpret_cast<float*>(out.data()), count});
    return;
  }
  const kernels::KernelTable& table = *kernels::FindKernels("");
  auto* narrow = reinterpret_cast<kernels::Bf16*>(out.data());
  constexpr size_t kBlock = 4096;
  float wide[kBlock];
  for (size_t i = 0; i < count; i += kBlock) {
    const auto block = std::span(wide).first(std::min(kBlock, count - i));
    const size_t element = DTypeBytes(dtype);
    ConvertToFloat(dtype, bytes.subspan(i * element, block.size() * element), block);
    table.to_bf16(block.data(), block.size(), narrow + i);
  }
}

void EmbeddingTable::Gather(std::span<const int32_t> tokens, float* out) const {
  const size_t row_bytes = hidden_ * DTypeBytes(dtype_);
  for (const int32_t token : tokens) {
    const auto row = std::span(bytes_).subspan(static_cast<size_t>(token) * row_bytes, row_bytes);
    ConvertToFloat(dtype_, row, {out, hidden_});
    out += hidden_;
  }
}

}  // namespace baton
