#include "common/engine/sampling/reasoning_meter.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/grammar/grammar.h"

namespace baton {
namespace {

ReasoningMeter Told(const std::vector<std::string>& tokens, bool inside = false) {
  ReasoningMeter meter("<think>", "</think>", inside);
  for (const std::string& token : tokens) meter.Append(token);
  return meter;
}

TEST(ReasoningMeterTest, CountsBetweenTheMarks) {
  EXPECT_FALSE(Told({}).inside());
  EXPECT_TRUE(Told({}).may_come());
  EXPECT_TRUE(Told({}, true).inside());
  EXPECT_EQ(Told({"a", "b"}, true).tokens(), 2);
  const ReasoningMeter spelled = Told({"\n", "<thi", "nk>", "a", "b"});
  EXPECT_TRUE(spelled.inside());
  EXPECT_EQ(spelled.tokens(), 2);
  EXPECT_EQ(Told({grammar::SpecialBytes("<think>"), "a"}).tokens(), 1);
  EXPECT_FALSE(Told({"a", "</thi", "nk>x"}, true).may_come());
  EXPECT_FALSE(Told({"a", grammar::SpecialBytes("</think>")}, true).may_come());
  EXPECT_TRUE(Told({"</thi", "n", "k"}, true).inside());
  EXPECT_TRUE(Told({"", "<think>"}).inside()) << "what is no text changes nothing";
}

TEST(ReasoningMeterTest, ATextThatBeginsOtherwiseHasNone) {
  for (const char* text : {"a", "<thing", " x", "<|im_end|>"}) {
    EXPECT_FALSE(Told({text}).may_come()) << text;
    EXPECT_FALSE(Told({text, "<think>"}).inside()) << text;
  }
  EXPECT_TRUE(Told({" ", "\r\n<th"}).may_come());
  EXPECT_FALSE(Told({grammar::SpecialBytes("<other>"), "<think>"}).inside());
}

TEST(ReasoningMeterTest, KnowsWhereCharactersEnd) {
  EXPECT_TRUE(Told({"a"}, true).at_character());
  EXPECT_FALSE(Told({"\xF0\x9F"}, true).at_character());
  EXPECT_FALSE(Told({"\xF0\x9F", "\x98"}, true).at_character());
  EXPECT_TRUE(Told({"\xF0\x9F", "\x98\x80"}, true).at_character());
  EXPECT_TRUE(Told({"\xF0", grammar::SpecialBytes("<x>")}, true).at_character());
  EXPECT_TRUE(Told({"\x98\x98"}, true).at_character()) << "ill-formed text holds nothing up";
}

}  // namespace
}  // namespace baton
