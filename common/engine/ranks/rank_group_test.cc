// What a stage model asks of its group, without a model: sums and logits of threads that are ranks.
#include "common/engine/ranks/rank_group.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/collective/testing/memory_group.h"

namespace baton {
namespace {

constexpr int kHidden = 3;

class RankGroupTest : public ::testing::Test {
 protected:
  void Form(int size, const RowParallelOptions& options, int64_t timeout_ms = 30'000) {
    communicators_ = testing::FormMemoryGroup(size, 1, timeout_ms);
    for (int rank = 0; rank < size; ++rank) {
      groups_.push_back(std::make_unique<RankGroup>(TensorRank{rank, size}, options, kHidden));
    }
  }
  ~RankGroupTest() override {
    for (const auto& rank : communicators_) rank->Abort(absl::CancelledError("the test is over"));
  }

  // On a thread for each rank, as processes would.
  void OnEachRank(const std::function<void(int rank, RankGroup& group)>& run) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < groups_.size(); ++rank) {
      threads.emplace_back([&, rank] { run(static_cast<int>(rank), *groups_[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void JoinAll() {
    OnEachRank([this](int rank, RankGroup& group) {
      const absl::Status joined = group.Join(communicators_[static_cast<size_t>(rank)], [](int) {});
      EXPECT_TRUE(joined.ok()) << joined;
    });
  }

  std::vector<std::shared_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<RankGroup>> groups_;
};

TEST_F(RankGroupTest, ChunksAreSummedEachByItself) {
  constexpr int kTokens = 10;
  Form(4, {4, 1});
  JoinAll();
  OnEachRank([](int rank, RankGroup& group) {
    for (int step = 0; step < 3; ++step) {
      ASSERT_TRUE(group.Begin(kTokens).ok());
      ASSERT_EQ(group.chunks().size(), 4u);
      for (size_t chunk = 0; chunk < 4; ++chunk) {
        const IndexRange rows = group.chunks()[chunk];
        for (int row = rows.begin; row < rows.end; ++row) {
          for (int i = 0; i < kHidden; ++i) {
            group.Rows(row)[i] = static_cast<float>((rank + 1) * (step + 1) * (row * kHidden + i));
          }
        }
        group.Reduce(chunk);
      }
      for (size_t chunk = 0; chunk < 4; ++chunk) {
        ASSERT_TRUE(group.Await(chunk).ok());
        const IndexRange rows = group.chunks()[chunk];
        for (int row = rows.begin; row < rows.end; ++row) {
          for (int i = 0; i < kHidden; ++i) {
            EXPECT_EQ(group.Rows(row)[i],
                      static_cast<float>(10 * (step + 1) * (row * kHidden + i)));
          }
        }
      }
    }
  });
}

TEST_F(RankGroupTest, LogitsComeTogetherByRowsOnRankZero) {
  constexpr int kRows = 2;
  Form(3, {});
  JoinAll();
  OnEachRank([](int rank, RankGroup& group) {
    const auto base = static_cast<float>(100 * rank);
    std::vector<float> mine = {base, base + 1, base + 10, base + 11};
    std::vector<float> all(rank == 0 ? 12 : 0);
    ASSERT_TRUE(group.Gather(mine, kRows, all).ok());
    if (rank == 0) {
      EXPECT_EQ(all, (std::vector<float>{0, 1, 100, 101, 200, 201, 10, 11, 110, 111, 210, 211}));
    }
  });
}

// Whatever else they cut by, ranks would submit different collectives.
TEST_F(RankGroupTest, AllRanksTakeRankZerosMeasurement) {
  Form(2, {0, 1});
  OnEachRank([this](int rank, RankGroup& group) {
    const absl::Status joined =
        group.Join(communicators_[static_cast<size_t>(rank)], [rank](int rows) {
          // Rank 1 computes on another machine.
          const int64_t us = int64_t{rows} * (rank == 0 ? 20 : 1);
          const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(us);
          while (std::chrono::steady_clock::now() < end) {
          }
        });
    EXPECT_TRUE(joined.ok()) << joined;
  });
  const RowParallelCosts& zero = groups_[0]->costs();
  const RowParallelCosts& one = groups_[1]->costs();
  EXPECT_GT(zero.matmul_call_ns + zero.matmul_row_ns, 0);
  EXPECT_EQ(zero.matmul_call_ns, one.matmul_call_ns);
  EXPECT_EQ(zero.matmul_row_ns, one.matmul_row_ns);
  EXPECT_EQ(zero.reduce_call_ns, one.reduce_call_ns);
  EXPECT_EQ(zero.reduce_row_ns, one.reduce_row_ns);
  for (const auto& group : groups_) ASSERT_TRUE(group->Begin(8192).ok());
  EXPECT_EQ(groups_[0]->chunks().size(), groups_[1]->chunks().size());
}

TEST_F(RankGroupTest, RefusesAStepWithoutAGroupAndAGroupOfOthers) {
  Form(2, {});
  EXPECT_EQ(groups_[0]->Begin(4).code(), absl::StatusCode::kFailedPrecondition);
  const absl::Status wrong = groups_[0]->Join(communicators_[1], [](int) {});
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(wrong.message().find("rank 0 of 2"), std::string::npos) << wrong;
  EXPECT_NE(wrong.message().find("prefill-0-1"), std::string::npos) << wrong;
  EXPECT_EQ(groups_[0]->Begin(4).code(), absl::StatusCode::kFailedPrecondition);
}

// A rank that fails between its collectives leaves nothing that others, or its own memory, wait
// for.
TEST_F(RankGroupTest, AFailureEndsWhatIsUnderWayEverywhere) {
  Form(2, {2, 1});
  JoinAll();
  std::promise<void> reduced;
  OnEachRank([&](int rank, RankGroup& group) {
    ASSERT_TRUE(group.Begin(4).ok());
    group.Reduce(0);
    if (rank == 0) {
      ASSERT_TRUE(group.Await(0).ok());
      group.Reduce(1);
      reduced.set_value();
      const absl::Status ended = group.Await(1);
      EXPECT_EQ(RankOf(ended), 1) << ended;
      EXPECT_NE(ended.message().find("no memory"), std::string::npos) << ended;
      group.Fail(ended);
      EXPECT_FALSE(group.Sum({group.Rows(0), 1}).ok()) << "the group is over";
    } else {
      ASSERT_TRUE(group.Await(0).ok());
      reduced.get_future().wait();
      group.Fail(absl::ResourceExhaustedError("no memory"));
    }
  });
}

TEST_F(RankGroupTest, SumsThatNeverEndAreWaitedForWhenAStepFails) {
  Form(2, {}, /*timeout_ms=*/60'000);
  JoinAll();
  RankGroup& group = *groups_[0];
  ASSERT_TRUE(group.Begin(4).ok());
  group.Reduce(0);  // Rank 1 never comes.
  group.Fail(absl::InternalError("failed"));
  EXPECT_TRUE(group.Await(0).ok()) << "nothing is under way any more";
}

}  // namespace
}  // namespace baton
