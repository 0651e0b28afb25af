#include "common/tokenizer/words/split_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/tokenizer/words/unicode.h"
#include "common/tokenizer/words/utf8.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kLlama3[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

std::vector<std::string_view> Split(const std::string& pattern, std::string_view text) {
  auto compiled = SplitPattern::Compile({pattern});
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  if (!compiled.ok()) return {};
  auto words = compiled->Split({text});
  EXPECT_TRUE(words.ok()) << words.status();
  return words.value_or(std::vector<std::string_view>());
}

TEST(SplitPatternTest, KeepsMatchesAndTheGapsBetweenThem) {
  EXPECT_THAT(Split("[0-9]+", "a12b3"), ElementsAre("a", "12", "b", "3"));
  EXPECT_THAT(Split("[0-9]+", "abc"), ElementsAre("abc"));
  EXPECT_THAT(Split("[0-9]+", ""), ElementsAre());
}

TEST(SplitPatternTest, LooksAhead) {
  // All but the last space stay together; the last one goes with the word.
  EXPECT_THAT(Split(kLlama3, "a   b  "), ElementsAre("a", "  ", " b", "  "));
  EXPECT_THAT(Split(kLlama3, "x \n\n y12345'LL"),
              ElementsAre("x", " \n\n", " y", "123", "45", "'LL"));
}

TEST(SplitPatternTest, WhiteSpaceIsUnicodesEverywhere) {
  // Each character after an "a", which it is cut from if it is white space.
  std::vector<std::string> texts;
  std::vector<std::string> expected;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string character;
    AppendCodePoint(c, &character);
    texts.push_back("a" + character);
    if (IsWhiteSpace(c)) {
      expected.insert(expected.end(), {"a", character});
    } else {
      expected.push_back(texts.back());
    }
  }
  for (const char* pattern : {R"([^\s]+)", R"(\S+)"}) {
    const auto words =
        SplitPattern::Compile({pattern}).value().Split({texts.begin(), texts.end()}).value();
    EXPECT_TRUE(std::equal(words.begin(), words.end(), expected.begin(), expected.end()))
        << pattern;
  }
}

TEST(SplitPatternTest, RefusesWhatTheEnginesReadDifferently) {
  struct Row {
    const char* pattern;
    const char* message;
  };
  const Row kRows[] = {
      {R"(\w+)", R"("\w" at byte 0)"},
      {R"([\S]x)", R"("\S" at byte 1)"},
      {R"(a\b)", R"("\b" at byte 1)"},
      {R"(\h)", R"("\h")"},
      {"a.b", "\".\" at byte 1"},
      {"^a", "\"^\""},
      {R"(\p{Han}+)", "property \"Han\" at byte 0"},
      {R"(\p{^L})", "property \"^L\""},
      {R"(\pL)", "a property without braces"},
      {"[a[^bc]]", "such a class inside a class"},
      {"[a-[b]]", "such a class inside a class"},
      {"[a[-b]]", "such a class inside a class"},
      {"[a[b-]]", "such a class inside a class"},
      {"[a[b]-c]", "such a class inside a class"},
      {"[a[b[c]]]", "inside a class inside a class"},
      {"[a[b&&c]]", "an intersection of classes"},
      {"[a[bc", "a class without end"},
      {"[a&&b]", "an intersection of classes"},
      {"[]a]", "an empty class"},
      {"[abc", "a class without end"},
      {"a{,3}", "not a repetition"},
      {"a{2}+", "a modified repetition"},
      {"(?i)a", "a group of this kind"},
      {"(?<name>a)", "a group of this kind"},
      {"(*UTF)a", "a group of this kind"},
      {"(?i:stop)", "one character folds to"},
      {R"((?i:\p{Lu}))", "inside (?i:"},
      {"a\\", "a lone backslash"},
  };
  for (const Row& row : kRows) {
    const absl::Status status = SplitPattern::Compile({row.pattern}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << row.pattern;
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.message));
  }
}

// BLOOM's pattern, and one of DeepSeek's.
TEST(SplitPatternTest, ClassesInsideClassesAndEndsOfLines) {
  EXPECT_THAT(Split(R"( ?[^(\s|[.,!?…。])]+)", "ab (c), d. e"),
              ElementsAre("ab", " (", "c", "),", " d", ".", " e"));
  EXPECT_THAT(Split(R"(\s+$)", "a  \nb \n\n"), ElementsAre("a", "  ", "\nb", " \n\n"));
}

TEST(SplitPatternTest, RefusesBrokenPatterns) {
  EXPECT_EQ(SplitPattern::Compile({"(a"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SplitPattern::Compile({"a*"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SplitPattern::Compile({"\xFF"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SplitPattern::Compile({std::string(5000, 'a')}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SplitPatternTest, EndsOnExponentialBacktracking) {
  auto pattern = SplitPattern::Compile({"(?:(?:a|b|ab)+)+[cd]"});
  ASSERT_TRUE(pattern.ok());
  const std::string text(64, 'a');
  EXPECT_EQ(pattern->Split({text}).status().code(), absl::StatusCode::kResourceExhausted);
}

// A mebibyte of anything must neither reach a limit nor lose a byte.
TEST(SplitPatternTest, TakesLongRuns) {
  for (const std::string_view run :
       {"a", " ", "\n", "!", "1", "\u0301", "\u3000", "'s", " a", " \n"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += run;
    size_t bytes = 0;
    for (const std::string_view word : Split(kLlama3, text)) bytes += word.size();
    EXPECT_EQ(bytes, text.size()) << run;
  }
}

}  // namespace
}  // namespace baton
