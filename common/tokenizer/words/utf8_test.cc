#include "common/tokenizer/words/utf8.h"

#include <gtest/gtest.h>

#include <string>

#include "common/tokenizer/words/unicode.h"

namespace baton {
namespace {

using Kind = Utf8Step::Kind;

TEST(NextUtf8Test, TellsCharactersFromIllFormedAndTruncatedBytes) {
  struct Row {
    std::string bytes;
    Kind kind;
    size_t length;
    char32_t code_point;
  };
  const Row kRows[] = {
      {"a", Kind::kCharacter, 1, 'a'},
      {std::string(1, '\0'), Kind::kCharacter, 1, 0},
      {"\xC2\x80", Kind::kCharacter, 2, 0x80},
      {"\xE0\xA0\x80", Kind::kCharacter, 3, 0x800},
      {"\xED\x9F\xBF", Kind::kCharacter, 3, 0xD7FF},
      {"\xEF\xBF\xBF", Kind::kCharacter, 3, 0xFFFF},
      {"\xF0\x90\x80\x80", Kind::kCharacter, 4, 0x10000},
      {"\xF4\x8F\xBF\xBF", Kind::kCharacter, 4, 0x10FFFF},
      {"\x80", Kind::kIllFormed, 1, 0},          // a continuation byte alone
      {"\xC1\xBF", Kind::kIllFormed, 1, 0},      // overlong
      {"\xE0\x9F\x80", Kind::kIllFormed, 1, 0},  // overlong
      {"\xED\xA0\x80", Kind::kIllFormed, 1, 0},  // a surrogate
      {"\xF0\x8F\x80\x80", Kind::kIllFormed, 1, 0},
      {"\xF4\x90\x80\x80", Kind::kIllFormed, 1, 0},  // above 10FFFF
      {"\xF5\x80\x80\x80", Kind::kIllFormed, 1, 0},
      {"\xE4\xB8x", Kind::kIllFormed, 2, 0},  // the maximal subpart goes as one
      {"\xF0\x9F\x98x", Kind::kIllFormed, 3, 0},
      {"\xC3", Kind::kTruncated, 1, 0},
      {"\xE4\xB8", Kind::kTruncated, 2, 0},
      {"\xF0\x9F\x98", Kind::kTruncated, 3, 0},
  };
  for (const Row& row : kRows) {
    const Utf8Step step = NextUtf8(row.bytes);
    EXPECT_EQ(step.kind, row.kind) << testing::PrintToString(row.bytes);
    EXPECT_EQ(step.length, row.length) << testing::PrintToString(row.bytes);
    EXPECT_EQ(step.code_point, row.code_point) << testing::PrintToString(row.bytes);
  }
}

TEST(Utf8Test, EveryScalarValueComesBack) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    AppendCodePoint(c, &text);
    const Utf8Step step = NextUtf8(text);
    ASSERT_EQ(step.kind, Kind::kCharacter) << static_cast<uint32_t>(c);
    ASSERT_EQ(step.length, text.size());
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(LastCharacter("x" + text), 1);
  }
}

TEST(Utf8Test, FirstInvalidNamesTheOffset) {
  EXPECT_EQ(FirstInvalidUtf8(""), std::nullopt);
  EXPECT_EQ(FirstInvalidUtf8("plain ASCII text of more than eight bytes, then \xF0\x9F\x98\x80"),
            std::nullopt);
  EXPECT_EQ(FirstInvalidUtf8("0123456789\xFFz"), 10);
  EXPECT_EQ(FirstInvalidUtf8("\xC3\xA9\xC3"), 2);
}

TEST(Utf8Test, AppendCharactersReplacesIllFormedAndKeepsTruncated) {
  std::string text;
  EXPECT_EQ(AppendCharacters("a\xFF\xE4\xB8z\xF0\x9F", &text), 5);
  EXPECT_EQ(text, "a\uFFFD\uFFFDz");
}

TEST(Utf8Test, CountsCharacters) {
  EXPECT_EQ(CountCharacters(""), 0u);
  EXPECT_EQ(CountCharacters("a\u00E9\u4E2D\U0001F600e\u0301"), 6u);
}

TEST(UnicodeTest, Nfc) {
  EXPECT_EQ(ToNfc("e\u0301 \u212B \u1100\u1161").value(), "\u00E9 \u00C5 \uAC00");
  EXPECT_EQ(ToNfc("").value(), "");
}

}  // namespace
}  // namespace baton
