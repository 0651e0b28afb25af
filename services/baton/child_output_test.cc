#include "services/baton/child_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(ChildOutputTest, LinesComeWhenTheyAreComplete) {
  ChildOutput output("router", 8);
  EXPECT_THAT(output.Take("one\ntw"), ElementsAre("router   | one"));
  EXPECT_THAT(output.Take("o"), IsEmpty());
  EXPECT_THAT(output.Take("\n\n"), ElementsAre("router   | two", "router   | "));
  EXPECT_THAT(output.Take("end"), IsEmpty());
  EXPECT_THAT(output.End(), ElementsAre("router   | end"));
  EXPECT_THAT(output.End(), IsEmpty());
}

TEST(ChildOutputTest, TheNameOfALogLineMovesToTheFront) {
  const ChildOutput output("decode-0", 8);
  EXPECT_EQ(
      output.Label("2026-11-20 18:02:03.123 I decode-0 view 3: 2 workers, not decode-0 alone"),
      "decode-0 | 2026-11-20 18:02:03.123 I view 3: 2 workers, not decode-0 alone");
  EXPECT_EQ(output.Label("what libraries print; nobody asked for decode-0 here"),
            "decode-0 | what libraries print; nobody asked for decode-0 here");
}

TEST(ChildOutputTest, JsonStaysAsItIs) {
  const ChildOutput output("decode-0", 8);
  EXPECT_EQ(output.Label(R"({"process":"decode-0","message":"hello"})"),
            R"({"process":"decode-0","message":"hello"})");
}

TEST(ChildOutputTest, TheLastLineSaysWhy) {
  ChildOutput output("decode-0", 8);
  output.Take("something\nbaton worker: cannot listen on 127.0.0.1:80\n");
  EXPECT_EQ(output.last_words(), "cannot listen on 127.0.0.1:80");
}

TEST(ChildOutputTest, ALineWithoutEndIsCut) {
  ChildOutput output("x", 1);
  EXPECT_THAT(output.Take(std::string(40'000, 'a')), testing::SizeIs(2));
}

}  // namespace
}  // namespace baton
