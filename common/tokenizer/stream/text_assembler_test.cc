#include "common/tokenizer/stream/text_assembler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/base/status.h"
#include "common/tokenizer/testing/test_tokenizer.h"

namespace baton {
namespace {

using testing::ElementsAre;

StopMatcher Stops(std::vector<std::string> stops) {
  return StopMatcher::Create(std::move(stops)).value();
}

TEST(StopMatcherTest, HoldsBackOnlyWhatMayBeginAStopString) {
  StopMatcher matcher = Stops({"\nUser:", "END"});
  EXPECT_EQ(matcher.Append("Hello").text, "Hello");
  EXPECT_EQ(matcher.Append(" world\nUs").text, " world");
  EXPECT_EQ(matcher.Append("ual").text, "\nUsual");
  EXPECT_EQ(matcher.Append(" E").text, " ");
  EXPECT_EQ(matcher.Append("N").text, "");
  const StopMatcher::Piece piece = matcher.Append("D and more");
  EXPECT_EQ(piece.text, "");
  EXPECT_EQ(piece.stop, "END");
  EXPECT_EQ(matcher.Append("nothing").text, "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(KeptSpecialTokensTest, AreShownWhereOthersAreNot) {
  const auto tokenizer = MakeTestTokenizer();
  const int32_t start = tokenizer->TokenId("<|im_start|>").value();
  const int32_t end = tokenizer->TokenId("<|im_end|>").value();
  TextAssembler::Options options;
  options.kept_special_tokens = {start};
  TextAssembler assembler = TextAssembler::Create(tokenizer.get(), options).value();
  EXPECT_EQ(assembler.Append(start).text, "<|im_start|>");
  EXPECT_EQ(assembler.Append(end).text, "");
}

TEST(StopMatcherTest, FlushGivesWhatWasHeldBack) {
  StopMatcher matcher = Stops({"END"});
  EXPECT_EQ(matcher.Append("the EN").text, "the ");
  EXPECT_EQ(matcher.Flush(), "EN");
}

TEST(StopMatcherTest, FindsAStopThatOverlapsAFalseStart) {
  StopMatcher matcher = Stops({"aab"});
  const StopMatcher::Piece piece = matcher.Append("xaaab");
  EXPECT_EQ(piece.text, "xa");
  EXPECT_EQ(piece.stop, "aab");
}

TEST(StopMatcherTest, TheFirstToEndWinsAndTheLongestOfThose) {
  EXPECT_EQ(Stops({"abcd", "bc"}).Append("abcd").stop, "bc");
  EXPECT_EQ(Stops({"cd", "abcd"}).Append("abcd").stop, "abcd");
}

TEST(StopMatcherTest, RefusesBadStopStrings) {
  const std::vector<std::vector<std::string>> kBad = {
      {""}, {"ok", "\xFF"}, {std::string(5000, 'x')}, std::vector<std::string>(65, "x")};
  for (const auto& stops : kBad) {
    EXPECT_EQ(FieldOf(StopMatcher::Create(stops).status()), "stop");
  }
}

// What comes out doesn't depend on how the text arrives, and is what a search of the whole text
// finds.
TEST(StopMatcherTest, AgreesWithASearchOfTheWholeText) {
  Random random(11);
  for (int round = 0; round < 3000; ++round) {
    const auto word = [&](uint64_t longest) {
      std::string text(1 + random.Below(longest), 'a');
      for (char& c : text) c = static_cast<char>('a' + random.Below(2));
      return text;
    };
    std::vector<std::string> stops;
    for (uint64_t i = 1 + random.Below(3); i > 0; --i) stops.push_back(word(6));
    const std::string text = word(30);
    std::string expected = text;
    std::optional<std::string> expected_stop;
    for (size_t end = 1; end <= text.size() && !expected_stop; ++end) {
      for (const std::string& stop : stops) {
        const bool ends_here =
            stop.size() <= end && text.substr(end - stop.size(), stop.size()) == stop;
        if (!ends_here || (expected_stop && expected_stop->size() >= stop.size())) continue;
        expected_stop = stop;
        expected = text.substr(0, end - stop.size());
      }
    }
    StopMatcher matcher = Stops(stops);
    std::string out;
    std::optional<std::string> stop;
    for (size_t at = 0; at < text.size();) {
      const size_t bytes = std::min(text.size() - at, 1 + random.Below(5));
      const StopMatcher::Piece piece = matcher.Append(text.substr(at, bytes));
      out += piece.text;
      if (piece.stop) stop = piece.stop;
      at += bytes;
    }
    out += matcher.Flush();
    ASSERT_EQ(out, expected) << text;
    ASSERT_EQ(stop, expected_stop) << text;
  }
}

class TextAssemblerTest : public testing::Test {
 protected:
  TextAssembler Make(TextAssembler::Options options = {}) {
    return TextAssembler::Create(tokenizer_.get(), std::move(options)).value();
  }
  // Appends one token per byte; ids of bytes are their values.
  static std::vector<std::string> Feed(TextAssembler* assembler, const std::string& bytes) {
    std::vector<std::string> pieces;
    for (const char byte : bytes)
      pieces.push_back(assembler->Append(static_cast<uint8_t>(byte)).text);
    return pieces;
  }

  std::unique_ptr<Tokenizer> tokenizer_ = MakeTestTokenizer();
};

TEST_F(TextAssemblerTest, AnEmojiOverFourTokensComesOutWhole) {
  TextAssembler assembler = Make();
  EXPECT_THAT(Feed(&assembler,
                   "a\xF0\x9F\x98\x80"
                   "b"),
              ElementsAre("a", "", "", "", "\U0001F600", "b"));
  EXPECT_EQ(assembler.Finish().text, "");
}

TEST_F(TextAssemblerTest, WhatCannotBecomeACharacterIsReplacedAtOnce) {
  TextAssembler assembler = Make();
  EXPECT_THAT(Feed(&assembler,
                   "\xF0\x9F"
                   "a\x80"),
              ElementsAre("", "",
                          "\uFFFD"
                          "a",
                          "\uFFFD"));
}

TEST_F(TextAssemblerTest, FinishReplacesAHalfCharacter) {
  TextAssembler assembler = Make();
  EXPECT_THAT(Feed(&assembler, "a\xE4\xB8"), ElementsAre("a", "", ""));
  EXPECT_EQ(assembler.Finish().text, "\uFFFD");
}

TEST_F(TextAssemblerTest, SpecialTokensHaveTextOnlyIfAskedFor) {
  const int32_t end = *tokenizer_->TokenId("<|im_end|>");
  TextAssembler skipping = Make();
  EXPECT_EQ(skipping.Append(end).text, "");
  TextAssembler showing = Make({.skip_special_tokens = false});
  EXPECT_EQ(showing.Append(end).text, "<|im_end|>");
}

TEST_F(TextAssemblerTest, IdsWithoutTokenAddNothing) {
  TextAssembler assembler = Make();
  EXPECT_EQ(assembler.Append(tokenizer_->vocab_size()).text, "");
  EXPECT_EQ(assembler.Append(-1).text, "");
  EXPECT_EQ(assembler.Append('a').text, "a");
}

TEST_F(TextAssemblerTest, StopStringOverSeveralTokens) {
  TextAssembler assembler = Make({.stop = {"\u00E9t\u00E9"}});
  EXPECT_THAT(Feed(&assembler, "l'\xC3\xA9t"), ElementsAre("l", "'", "", "", ""));
  EXPECT_EQ(assembler.Append(0xC3).stop, std::nullopt);
  const TextAssembler::Piece piece = assembler.Append(0xA9);
  EXPECT_EQ(piece.text, "");
  EXPECT_EQ(piece.stop, "\u00E9t\u00E9");
  EXPECT_EQ(assembler.Append('x').text, "");
  EXPECT_EQ(assembler.Finish().text, "");
}

TEST_F(TextAssemblerTest, StopStringInsideAToken) {
  const int32_t hello = *tokenizer_->TokenId("hello");
  TextAssembler assembler = Make({.stop = {"ll"}});
  const TextAssembler::Piece piece = assembler.Append(hello);
  EXPECT_EQ(piece.text, "he");
  EXPECT_EQ(piece.stop, "ll");
}

TEST_F(TextAssemblerTest, FinishGivesWhatWasHeldBack) {
  TextAssembler assembler = Make({.stop = {"hello!"}});
  EXPECT_EQ(assembler.Append(*tokenizer_->TokenId("hello")).text, "");
  EXPECT_EQ(assembler.Finish().text, "hello");
}

TEST_F(TextAssemblerTest, StopStringsWithinMinTokensDoNotCount) {
  TextAssembler assembler = Make({.stop = {"ab"}, .min_tokens = 3});
  EXPECT_THAT(Feed(&assembler, "aba"), ElementsAre("", "ab", ""));
  const TextAssembler::Piece piece = assembler.Append('b');
  EXPECT_EQ(piece.text, "");
  EXPECT_EQ(piece.stop, "ab");
}

}  // namespace
}  // namespace baton
