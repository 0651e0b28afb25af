// How numbers lie in memory and on the wire: weights, keys and values, activations. Not how they
// are computed with, which is the executor's matter.
#ifndef COMMON_TYPES_ELEMENT_TYPE_H_
#define COMMON_TYPES_ELEMENT_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace baton {

enum class ElementType : uint8_t {
  kFloat32,
  kBFloat16,  // The upper half of a float32: widening it is exact.
};

inline constexpr ElementType kElementTypes[] = {ElementType::kFloat32, ElementType::kBFloat16};

constexpr size_t ElementBytes(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }

// As options, logs and fingerprints write it; config.json's torch_dtype says the same.
constexpr const char* ElementTypeName(ElementType type) {
  return type == ElementType::kFloat32 ? "float32" : "bfloat16";
}

constexpr std::optional<ElementType> ParseElementType(std::string_view name) {
  for (const ElementType type : kElementTypes) {
    if (name == ElementTypeName(type)) return type;
  }
  return std::nullopt;
}

}  // namespace baton

#endif  // COMMON_TYPES_ELEMENT_TYPE_H_
