#include "common/base/stop_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

namespace baton {
namespace {

TEST(StopSignalTest, HoldsFromTheSignalOnWhoeverTakesIt) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &set, nullptr), 0);
  EXPECT_FALSE(StopRequested());
  kill(getpid(), SIGTERM);
  EXPECT_TRUE(StopRequested());
  std::thread([] { EXPECT_TRUE(StopRequested()); }).join();
  int number = 0;
  ASSERT_EQ(sigwait(&set, &number), 0);
  NoteStopRequested();
  EXPECT_TRUE(StopRequested());
}

}  // namespace
}  // namespace baton
