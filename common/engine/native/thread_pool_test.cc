#include "common/engine/native/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace baton {
namespace {

// Calls ParallelFor and counts how often each index came.
std::vector<int> Visits(ThreadPool& pool, int count) {
  std::vector<int> visits(static_cast<size_t>(count));
  pool.ParallelFor(count, [&](int begin, int end) {
    EXPECT_LT(begin, end);
    for (int i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
  });
  return visits;
}

TEST(ThreadPoolTest, VisitsEveryIndexOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int count : {0, 1, 2, 3, 7, 100}) {
      EXPECT_EQ(Visits(pool, count), std::vector<int>(static_cast<size_t>(count), 1));
    }
  }
}

TEST(ThreadPoolTest, ResultsAreVisibleToTheCallerRoundAfterRound) {
  ThreadPool pool(3);
  std::vector<int> sums(30);
  for (int round = 0; round < 500; ++round) {
    pool.ParallelFor(30, [&](int begin, int end) {
      for (int i = begin; i < end; ++i) sums[static_cast<size_t>(i)] += i;
    });
  }
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), 0), 500 * 29 * 30 / 2);
}

// Between two loops, and in one, threads sleep now and then.
TEST(ThreadPoolTest, AThreadThatSleepsIsWoken) {
  const auto rest = [](int round) {
    if (round % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  ThreadPool pool(3);
  std::atomic<int> parts = 0;
  for (int round = 0; round < 60; ++round) {
    rest(round);
    pool.ParallelFor(3, [&](int begin, int /*end*/) {
      rest(round + begin);
      ++parts;
    });
    ASSERT_EQ(parts, 3 * (round + 1));
  }
}

}  // namespace
}  // namespace baton
