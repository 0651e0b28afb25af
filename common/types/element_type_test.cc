#include <gtest/gtest.h>

#include "common/types/kv_layout.h"

namespace baton {
namespace {

TEST(ElementTypeTest, EveryNameIsParsedBackAndNoOtherIs) {
  for (const ElementType type : kElementTypes) {
    EXPECT_EQ(ParseElementType(ElementTypeName(type)), type);
  }
  for (const char* name : {"", "auto", "float16", "FLOAT32", "bfloat", "bfloat16 "}) {
    EXPECT_EQ(ParseElementType(name), std::nullopt) << name;
  }
}

TEST(ElementTypeTest, BytesAreThoseOfTheFormats) {
  EXPECT_EQ(ElementBytes(ElementType::kFloat32), 4u);
  EXPECT_EQ(ElementBytes(ElementType::kBFloat16), 2u);
}

}  // namespace
}  // namespace baton
