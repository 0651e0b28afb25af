// Chains whose stages are several ranks, as a router sees them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "services/router/core/membership_ranks_fixture.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(MembershipRanksTest, AChainIsWholeWithEachPlaceOfItsGrid) {
  const WorkerInfo decode = TestDecode("d0");
  std::vector<WorkerInfo> grid = Grid();
  JoinAll({decode, grid[0], grid[1], grid[2]});
  EXPECT_THAT(members_.ReadyPairs(), IsEmpty());
  EXPECT_THAT(members_.WhatIsMissing(),
              HasSubstr("chain c0 lacks tensor-parallel rank 1 of 2 of stage 1 of 2"));
  JoinAll({grid[3]});
  for (const WorkerInfo& worker : {grid[0], grid[1], grid[2], decode}) Beat(worker);
  ASSERT_THAT(members_.ReadyPairs(), SizeIs(1));
  const Pair pair = members_.ReadyPairs()[0];
  const Chain& chain = pair.chain;
  EXPECT_EQ(chain.stage0, grid[0].instance);
  ASSERT_THAT(chain.stages, SizeIs(4));
  for (size_t place = 0; place < 4; ++place) {
    EXPECT_EQ(chain.stages[place],
              (KvWriter{grid[place].instance, grid[place].layers, grid[place].tensor_rank}));
  }
  EXPECT_EQ(pair.writers, chain.stages);
}

// Two KV heads: of four ranks each two have the same one, and the first of them hands it over.
TEST_F(MembershipRanksTest, CopiesOfAHeadAreHandedOverOnce) {
  const std::vector<WorkerInfo> grid = Grid(4);
  const WorkerInfo decode = TestDecode("d0");
  std::vector<WorkerInfo> all = grid;
  all.push_back(decode);
  JoinAll(all);
  ASSERT_THAT(members_.ReadyPairs(), SizeIs(1));
  const Pair pair = members_.ReadyPairs()[0];
  EXPECT_THAT(pair.chain.stages, SizeIs(8));
  std::vector<std::string> writers;
  for (const KvWriter& writer : pair.writers) writers.push_back(writer.instance.id);
  EXPECT_EQ(writers, (std::vector<std::string>{"c0-0-0", "c0-0-2", "c0-1-0", "c0-1-2"}));
}

TEST_F(MembershipRanksTest, OneRankThatCantServeKeepsTheChainOutOfPairs) {
  const WorkerInfo decode = TestDecode("d0");
  const std::vector<WorkerInfo> grid = Grid();
  std::vector<WorkerInfo> all = grid;
  all.push_back(decode);
  JoinAll(all);
  for (const WorkerInfo& rank : grid) {
    ASSERT_THAT(members_.ReadyPairs(), SizeIs(1));
    members_.Suspect(rank.instance, now_us_);
    EXPECT_THAT(members_.ReadyPairs(), IsEmpty()) << rank.instance.id;
    Beat(rank);
    ASSERT_THAT(members_.ReadyPairs(), SizeIs(1));
  }
  members_.SaysDraining(grid[3].instance);
  EXPECT_THAT(members_.ReadyPairs(), IsEmpty());
}

TEST_F(MembershipRanksTest, ALostRankIsExpectedBackInItsPlace) {
  Membership patient{MembershipOptions{.lease_us = 1000, .pair_grace_us = 5000}};
  const WorkerInfo decode = TestDecode("d0");
  std::vector<WorkerInfo> all = Grid();
  all.push_back(decode);
  for (const WorkerInfo& worker : all) {
    ASSERT_EQ(patient.Register(worker, now_us_, lost_), absl::OkStatus());
  }
  std::vector<Worker> lost;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i == 1) continue;
    patient.Heartbeat(all[i].instance, true, {}, now_us_ + 900);
  }
  lost = patient.Expire(now_us_ + 1000);
  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_EQ(lost[0].info.instance.id, "c0-0-1");
  EXPECT_EQ(patient.PairExpectedUntilUs(now_us_ + 1001), now_us_ + 1000 + 5000);
}

TEST_F(MembershipRanksTest, RanksOfOneChainMustAgree) {
  ASSERT_EQ(Join(TestStageRank(0, 0)), absl::OkStatus());
  const std::vector<std::pair<std::function<void(WorkerInfo&)>, std::vector<std::string>>> changes{
      {[](auto& w) {
         w.tensor_rank = {1, 4};
       },
       {"tp_size of chain c0", "4", "2"}},
      {[](auto& w) { w.agreed.row_parallel_chunks = 0; },
       {"row_parallel_chunks of chain c0", "auto", "4"}},
      {[](auto& w) { w.agreed.row_parallel_threshold = 64; },
       {"row_parallel_chunk_threshold of chain c0", "64", "8192"}},
      {[](auto& w) { w.agreed.sends_slices = false; },
       {"pp_send_slice of chain c0", "c0-0-1 has false", "c0-0-0 has true"}},
      {[](auto& w) {
         w.layers = {0, 3};
       },
       {"layers of rank 0 of chain c0", "[0, 3)", "[0, 2)"}},
      {[](auto& w) {
         w.tensor_rank = {0, 2};
       },
       {"rank 0, tensor-parallel rank 0 of chain c0 is taken: c0-0-1 wants it, c0-0-0 has it"}},
  };
  for (const auto& [apply, parts] : changes) {
    WorkerInfo worker = TestStageRank(0, 1);
    apply(worker);
    const absl::Status status = Join(worker);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    for (const std::string& part : parts) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
    for (const char* name : {"c0-0-0", "c0-0-1"}) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    }
  }
  EXPECT_EQ(Join(TestStageRank(0, 1)), absl::OkStatus());
}

TEST_F(MembershipRanksTest, RanksThatCantBeAreRefusedByField) {
  for (const TensorRank rank : {TensorRank{2, 2}, TensorRank{-1, 2}, TensorRank{0, 0},
                                TensorRank{0, 65}, TensorRank{0, 3}}) {
    WorkerInfo worker = TestStageRank(0, 0);
    worker.tensor_rank = rank;
    const absl::Status status = Join(worker);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(FieldOf(status), "tensor_rank") << rank.rank << " of " << rank.size;
  }
}

}  // namespace
}  // namespace baton::router
