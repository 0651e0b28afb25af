#include "services/baton/start_report.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

namespace baton {
namespace {

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

}  // namespace
}  // namespace baton
