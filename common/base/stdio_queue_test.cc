#include "common/base/stdio_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton {
namespace {

// Runs `body` in a process whose standard output and error are one pipe.
class OutputQueueTest : public testing::Test {
 protected:
  void Start(const std::function<void()>& body) {
    ASSERT_EQ(pipe2(ends_.data(), O_CLOEXEC), 0);
    child_ = fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      close(ends_[0]);
      dup2(ends_[1], STDOUT_FILENO);
      dup2(ends_[1], STDERR_FILENO);
      BATON_CHECK(
          QueueOutput([](uint64_t lines) { return absl::StrCat("DROPPED ", lines, "\n"); }).ok());
      body();
      _Exit(0);
    }
    close(ends_[1]);
  }
  std::string ReadAll() {
    std::string text;
    std::array<char, 65536> buffer;
    ssize_t got = 0;
    while ((got = read(ends_[0], buffer.data(), buffer.size())) > 0) {
      text.append(buffer.data(), static_cast<size_t>(got));
    }
    return text;
  }
  // How the process ended, as wait tells it.
  int End() {
    int status = 0;
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    return status;
  }
  void TearDown() override { close(ends_[0]); }

  std::array<int, 2> ends_{-1, -1};
  pid_t child_ = -1;
};

TEST_F(OutputQueueTest, WhatIsPrintedComesOutInOrder) {
  Start([] {
    for (int i = 0; i < 100; ++i) {
      std::fprintf(stderr, "error %d\n", i);
      std::printf("output %d\n", i);
      std::fflush(stdout);
    }
    std::fprintf(stderr, "no newline");
    FlushOutput();
  });
  std::string expected;
  for (int i = 0; i < 100; ++i) absl::StrAppend(&expected, "error ", i, "\noutput ", i, "\n");
  EXPECT_EQ(ReadAll(), expected + "no newline");
  EXPECT_EQ(End(), 0);
}

TEST_F(OutputQueueTest, NobodyWaitsForAReader) {
  Start([] {
    const std::string line(1000, 'x');
    for (int i = 0; i < 20'000; ++i) std::fprintf(stderr, "%s\n", line.c_str());
    FlushOutput(/*timeout_ms=*/1);
    _Exit(DroppedOutputLines() > 0 ? 0 : 1);
  });
  EXPECT_EQ(End(), 0);  // Before anything is read.
}

TEST_F(OutputQueueTest, AReaderThatHasGoneEndsNothing) {
  Start([] {
    signal(SIGPIPE, SIG_DFL);
    while (DroppedOutputLines() == 0) std::fprintf(stderr, "line\n");
  });
  close(std::exchange(ends_[0], -1));
  EXPECT_EQ(End(), 0);
}

TEST_F(OutputQueueTest, ABrokenInvariantIsTheLastWord) {
  Start([] {
    std::fprintf(stderr, "before\n");
    BATON_CHECK(1 + 1 == 3) << "numbers are broken";
  });
  const std::string text = ReadAll();
  EXPECT_EQ(text.find("before\n"), 0u) << text;
  EXPECT_NE(text.find("broken invariant: 1 + 1 == 3 numbers are broken\n"), std::string::npos);
  EXPECT_EQ(WTERMSIG(End()), SIGABRT);
}

}  // namespace
}  // namespace baton
