#include "services/baton/child_pipes.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

namespace baton {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(StartReportTest, ASupervisorHearsTheIncarnation) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  setenv(kReportVariable, std::to_string(ends[1]).c_str(), /*overwrite=*/1);
  ReportListening(UINT64_MAX);
  std::array<char, 64> buffer;
  const ssize_t got = read(ends[0], buffer.data(), buffer.size());
  ASSERT_GT(got, 0);
  EXPECT_EQ(ParseListening({buffer.data(), static_cast<size_t>(got)}), UINT64_MAX);
  EXPECT_EQ(read(ends[0], buffer.data(), buffer.size()), 0);  // It has closed its end.
  close(ends[0]);
}

TEST(StartReportTest, WhatIsNoPipeIsNotWrittenTo) {
  std::string path = testing::TempDir() + "/report-XXXXXX";
  const int file = mkstemp(path.data());
  ASSERT_GE(file, 0);
  setenv(kReportVariable, std::to_string(file).c_str(), /*overwrite=*/1);
  ReportListening(1);
  EXPECT_EQ(lseek(file, 0, SEEK_END), 0);
  close(file);
  unlink(path.c_str());
  for (const char* value : {"", "x", "-1", "99999999999999999999"}) {
    setenv(kReportVariable, value, /*overwrite=*/1);
    ReportListening(1);  // Nothing happens.
  }
  unsetenv(kReportVariable);
  ReportListening(1);
}

TEST(StartReportTest, ReadsNothingElse) {
  EXPECT_EQ(ParseListening(ListeningText(17)), 17u);
  for (const char* text : {"", "listening", "listening 0\n", "listening 17", "listening -1\n",
                           "listening 18446744073709551616\n", "ready 17\n"}) {
    EXPECT_EQ(ParseListening(text), std::nullopt) << text;
  }
}

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
