#include <gtest/gtest.h>

#include <limits>

#include "common/base/log.h"

namespace baton {
namespace {

constexpr std::string_view kHostile = "a\nb \"c\" \\ \x1b[31m\x7f";

TEST(LogFormatTest, TextIsOneLine) {
  EXPECT_EQ(TextRecord("loaded 12 tensors", {}), "loaded 12 tensors");
  EXPECT_EQ(TextRecord(kHostile, {}), R"(a\nb "c" \ \x1b[31m\x7f)");
  EXPECT_EQ(TextRecord("naïve 漢字", {}), "naïve 漢字");
}

TEST(LogFormatTest, TextQuotesWhatCouldBeTakenForMore) {
  EXPECT_EQ(TextRecord("request", {{"id", "req-1"},
                                   {"tokens", int64_t{12}},
                                   {"ttft_ms", 3.25},
                                   {"status", "OK"},
                                   {"stop", ""},
                                   {"forged", "x status=OK"},
                                   {"quoted", "a\"b"}}),
            R"(request id=req-1 tokens=12 ttft_ms=3.25 status=OK stop="" )"
            R"(forged="x status=OK" quoted="a\"b")");
}

TEST(LogFormatTest, JsonEscapesWhatClientsSend) {
  EXPECT_EQ(JsonRecord(kHostile, {}), R"("message":"a\nb \"c\" \\ \u001b[31m\u007f")");
  EXPECT_EQ(JsonRecord("request", {{"id", "\t"}, {"tokens", int64_t{-3}}, {"rate", 0.5}}),
            R"("message":"request","id":"\t","tokens":-3,"rate":0.5)");
  EXPECT_EQ(JsonRecord("", {{"a", std::numeric_limits<double>::quiet_NaN()},
                            {"b", std::numeric_limits<double>::infinity()}}),
            R"("message":"","a":null,"b":null)");
}

TEST(LogFormatTest, JsonIsUtf8WhateverComes) {
  EXPECT_EQ(JsonRecord("é漢\xF0\x9F\x8E\xB5", {}), "\"message\":\"é漢\xF0\x9F\x8E\xB5\"");
  for (const std::string_view broken :
       {"\x80", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff", "\xe6\xbc"}) {
    const std::string json = JsonRecord(broken, {});
    EXPECT_NE(json.find("\xEF\xBF\xBD"), std::string::npos) << json;
    EXPECT_EQ(json.find(broken), std::string::npos);
  }
}

}  // namespace
}  // namespace baton
