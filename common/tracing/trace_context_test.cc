#include "common/tracing/trace_context.h"

#include <gtest/gtest.h>

namespace baton::tracing {
namespace {

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kSpan[] = "b7ad6b7169203331";

std::string Parent(const std::string& version = "00", const std::string& trace = kTrace,
                   const std::string& span = kSpan, const std::string& flags = "01") {
  return version + "-" + trace + "-" + span + "-" + flags;
}

TraceContext Parse(const std::string& traceparent, const std::string& tracestate = "") {
  return ParseTraceContext(traceparent, tracestate);
}

TEST(TraceContextTest, ValidTraceparents) {
  struct Row {
    std::string text;
    bool sampled;
  };
  const Row rows[] = {
      {Parent(), true},
      {Parent("00", kTrace, kSpan, "00"), false},
      {Parent("00", kTrace, kSpan, "02"), false},  // Flags that this version does not know.
      {Parent("00", kTrace, kSpan, "ff"), true},
      {"  " + Parent() + "\t", true},
      {Parent("01"), true},  // A later version is read as far as it is known...
      {Parent("cc") + "-what-comes-later", true},
      {Parent("fe", kTrace, kSpan, "03"), true},
      {Parent("00", "00000000000000000000000000000001"), true},
      {Parent("00", kTrace, "0000000000000001"), true},
  };
  for (const Row& row : rows) {
    const TraceContext context = Parse(row.text);
    EXPECT_TRUE(context.valid()) << row.text;
    EXPECT_EQ(context.sampled, row.sampled) << row.text;
    EXPECT_TRUE(context.remote) << row.text;
  }
  EXPECT_EQ(Hex(Parse(Parent()).trace), kTrace);
  EXPECT_EQ(Hex(Parse(Parent()).span), kSpan);
}

TEST(TraceContextTest, WhatIsNotValidToTheLetterIsNoTrace) {
  const std::string rows[] = {
      "",
      "garbage",
      Parent("ff"),
      Parent("0"),
      Parent("000"),
      Parent(".0"),
      Parent("0A"),
      Parent("00", "00000000000000000000000000000000"),
      Parent("00", "0AF7651916CD43DD8448EB211C80319C"),
      Parent("00", "0af7651916cd43dd8448eb211c80319"),
      Parent("00", "0af7651916cd43dd8448eb211c80319c1"),
      Parent("00", ".af7651916cd43dd8448eb211c80319c"),
      Parent("00", kTrace, "0000000000000000"),
      Parent("00", kTrace, "B7AD6B7169203331"),
      Parent("00", kTrace, "b7ad6b716920333"),
      Parent("00", kTrace, "b7ad6b71692033311"),
      Parent("00", kTrace, kSpan, "1"),
      Parent("00", kTrace, kSpan, "0x"),
      Parent("00", kTrace, kSpan, ".1"),
      Parent("00", kTrace, kSpan, "011"),
      Parent() + "-",  // Version 00 has just these parts...
      Parent() + "-more",
      Parent("cc") + "more",             // ...a later one adds them behind a dash,
      Parent("cc", kTrace, kSpan, "0"),  // and is no shorter.
      "00_" + std::string(kTrace) + "-" + kSpan + "-01",
      "00-" + std::string(kTrace) + "_" + kSpan + "-01",
      "00-" + std::string(kTrace) + "-" + kSpan + "_01",
      Parent() + "," + Parent(),
  };
  for (const std::string& row : rows) {
    EXPECT_EQ(Parse(row, "vendor=1"), TraceContext()) << row;
  }
}

TEST(TraceContextTest, ThereIsOneTraceparentOrNone) {
  const std::string parent = Parent();
  EXPECT_FALSE(ExtractTraceContext({}, {}).valid());
  EXPECT_FALSE(ExtractTraceContext({parent, parent}, {}).valid());
  EXPECT_TRUE(ExtractTraceContext({parent}, {}).valid());
}

TEST(TraceContextTest, TracestateIsPassedOnAsItCame) {
  EXPECT_EQ(Parse(Parent(), "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE").state,
            "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
  EXPECT_EQ(Parse(Parent(), " a=1 ,, \t b=2").state, "a=1,b=2");
  EXPECT_EQ(Parse(Parent(), "0tenant@vendor=x y!").state, "0tenant@vendor=x y!");
  EXPECT_EQ(ExtractTraceContext({Parent()}, {"a=1", "b=2"}).state, "a=1,b=2");
}

TEST(TraceContextTest, AnInvalidTracestateIsDroppedAlone) {
  std::string too_many;
  for (int i = 0; i < 33; ++i) too_many += "k" + std::to_string(i) + "=v,";
  const std::string rows[] = {
      "novalue",
      "=1",
      "a=",
      "A=1",
      "a b=1",
      "a=1,a=2",
      "a=b=c",
      "1a=1",
      "a@=1",
      "a@1b=1",
      "a@b@c=1",
      "a=\x7f",
      "a=caf\xc3\xa9",
      too_many,
      "a@fifteencharssss=1",
      std::string(257, 'k') + "=1",
      "a=" + std::string(257, 'v'),
  };
  for (const std::string& row : rows) {
    const TraceContext context = Parse(Parent(), row);
    EXPECT_TRUE(context.valid()) << row;
    EXPECT_EQ(context.state, "") << row;
  }
}

TEST(TraceContextTest, ALongTracestateLosesLongMembersThenItsLast) {
  const std::string wide = "wide=" + std::string(200, 'w');
  std::string narrow;
  for (int i = 0; i < 6; ++i) {
    narrow += (i == 0 ? "n" : ",n") + std::to_string(i) + "=" + std::string(80, 'x');
  }
  EXPECT_EQ(Parse(Parent(), wide + "," + narrow).state, narrow);
  const std::string longer = narrow + ",last=" + std::string(100, 'y');
  EXPECT_EQ(Parse(Parent(), longer).state, narrow);
  EXPECT_LE(narrow.size(), kMaxTracestateBytes);
}

TEST(TraceContextTest, WhatIsWrittenIsReadBack) {
  TraceContext context = Parse(Parent("00", kTrace, kSpan, "ff"), "a=1");
  EXPECT_EQ(Traceparent(context), Parent());
  EXPECT_EQ(ParseTraceContext(Traceparent(context), context.state), context);
  context.sampled = false;
  EXPECT_EQ(Traceparent(context), Parent("00", kTrace, kSpan, "00"));
  EXPECT_EQ(Bytes(context.trace).size(), 16u);
  EXPECT_EQ(Bytes(context.span), "\xb7\xad\x6b\x71\x69\x20\x33\x31");
}

}  // namespace
}  // namespace baton::tracing
