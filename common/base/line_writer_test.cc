#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/stdio_queue.h"

namespace baton {
namespace {

// Waits for what the writer's thread does; in vain, the test ends by its own time limit.
void AwaitRest(const LineWriter& writer) {
  while (!writer.AtRest()) std::this_thread::yield();
}

class LineWriterTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(pipe2(ends_.data(), O_CLOEXEC), 0); }
  void TearDown() override {
    CloseReader();
    close(ends_[1]);
  }
  void CloseReader() {
    if (ends_[0] >= 0) close(std::exchange(ends_[0], -1));
  }

  // Fills it with newlines until it takes no more.
  void FillPipe() const {
    const std::string newlines(4096, '\n');
    ASSERT_EQ(fcntl(fd(), F_SETFL, O_NONBLOCK), 0);
    while (write(fd(), newlines.data(), newlines.size()) > 0) {
    }
    ASSERT_EQ(fcntl(fd(), F_SETFL, 0), 0);
  }
  // Appends what is there, or waits for it.
  void ReadSome(std::string& text) const {
    std::array<char, 4096> buffer;
    const ssize_t got = read(ends_[0], buffer.data(), buffer.size());
    ASSERT_GT(got, 0);
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  int fd() const { return ends_[1]; }

  static std::string Dropped(uint64_t lines) { return absl::StrCat("DROPPED ", lines, "\n"); }

 private:
  std::array<int, 2> ends_{-1, -1};
};

TEST_F(LineWriterTest, LinesComeOutInOrder) {
  std::string expected;
  LineWriter writer(fd(), Dropped);
  for (int i = 0; i < 100; ++i) {
    writer.Write(absl::StrCat("line ", i, "\n"));
    absl::StrAppend(&expected, "line ", i, "\n");
  }
  AwaitRest(writer);
  EXPECT_EQ(writer.dropped_total(), 0u);
  std::string text;
  ReadSome(text);  // All of it is in the pipe.
  EXPECT_EQ(text, expected);
}

TEST_F(LineWriterTest, AReaderThatStandsStillHoldsUpNobody) {
  constexpr int kLines = 1000;
  const std::string filling(1000, 'x');
  FillPipe();
  LineWriter writer(fd(), Dropped, /*queue_bytes=*/8192);
  for (int i = 0; i < kLines; ++i) writer.Write(absl::StrCat(i, " ", filling, "\n"));
  EXPECT_FALSE(writer.AtRest());
  EXPECT_GT(writer.dropped_total(), 800u);
  // The reader goes on, until the line that says what is missing.
  std::string text;
  while (!absl::StrContains(text, "DROPPED")) ReadSome(text);
  writer.Write("after\n");
  while (!absl::EndsWith(text, "after\n")) ReadSome(text);
  // Every line is there or counted, in its place.
  uint64_t next = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (line == "after") continue;
    const std::pair<absl::string_view, absl::string_view> words = absl::StrSplit(line, ' ');
    if (words.first == "DROPPED") {
      next += std::stoull(std::string(words.second));
    } else {
      EXPECT_EQ(words.first, absl::StrCat(next++));
    }
  }
  EXPECT_EQ(next, kLines);
}

TEST_F(LineWriterTest, AReaderThatHasGoneEndsNothing) {
  CloseReader();
  LineWriter writer(fd(), Dropped);
  for (int i = 0; i < 10; ++i) writer.Write("line\n");  // SIGPIPE would end the test.
  AwaitRest(writer);
  EXPECT_EQ(writer.dropped_total(), 10u);
}

TEST_F(LineWriterTest, AFullDiskEndsNothing) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  LineWriter writer(full, Dropped);
  close(full);  // The writer has its own.
  for (int i = 0; i < 10; ++i) writer.Write("line\n");
  AwaitRest(writer);
  EXPECT_EQ(writer.dropped_total(), 10u);
}

TEST_F(LineWriterTest, GoesWhileItsThreadIsStuck) {
  FillPipe();
  LineWriter writer(fd(), Dropped);
  writer.Write("line\n");
  EXPECT_FALSE(writer.AtRest());
}

}  // namespace
}  // namespace baton
