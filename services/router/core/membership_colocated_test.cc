// Colocated chains as members: who fits them, when they are ready, and what is expected of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "services/router/core/fit.h"
#include "services/router/core/membership_ranks_fixture.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class MembershipColocatedTest : public MembershipRanksTest {
 protected:
  // Two stages of two ranks.
  static std::vector<WorkerInfo> Colocated() {
    std::vector<WorkerInfo> grid = Grid();
    for (WorkerInfo& worker : grid) worker.decodes = true;
    return grid;
  }
  // Members that may be expected.
  void Expect() { members_ = Membership({.lease_us = 1000, .pair_grace_us = 500}); }
};

TEST_F(MembershipColocatedTest, AChainIsAPairWithItself) {
  std::vector<WorkerInfo> grid = Colocated();
  grid[0].max_running_requests = 5;
  grid[2].page_count = 32;
  JoinAll(grid);
  ASSERT_THAT(members_.ReadyPairs(), SizeIs(1));
  const Pair pair = members_.ReadyPairs()[0];
  EXPECT_TRUE(pair.colocated());
  EXPECT_EQ(pair.decode, grid[0].instance);
  EXPECT_EQ(pair.chain.stage0, grid[0].instance);
  EXPECT_THAT(pair.chain.stages, SizeIs(4));
  EXPECT_THAT(pair.followers, IsEmpty());
  EXPECT_THAT(pair.writers, IsEmpty());
  EXPECT_EQ(pair.decode_slots, 5);
  EXPECT_EQ(pair.page_size, 16);
  EXPECT_EQ(pair.decode_capacity_tokens, 512) << "the smallest stage's";
  EXPECT_EQ(pair.max_context_tokens, 512);
  EXPECT_EQ(OutputRoom(pair, 500), 12);
  EXPECT_EQ(members_.LargestContext(), 512);
}

TEST_F(MembershipColocatedTest, ItNeedsNoDecodeServiceAndIsPairedWithNone) {
  JoinAll(Together(Together(Colocated(), Service()), {TestStage("c9", 0, 1)}));
  for (const WorkerInfo& worker : Together(Colocated(), Service())) Beat(worker);
  Beat(TestStage("c9", 0, 1));
  int colocated = 0;
  for (const Pair& pair : members_.ReadyPairs()) {
    colocated += pair.colocated() ? 1 : 0;
    EXPECT_EQ(pair.colocated(), pair.chain.chain_id == "c0");
  }
  EXPECT_EQ(colocated, 1);
  EXPECT_THAT(members_.ReadyPairs(), SizeIs(2));
  EXPECT_THAT(members_.WholePairs(), SizeIs(2));
}

TEST_F(MembershipColocatedTest, EveryProcessHasToBeReadyAndLinked) {
  const std::vector<WorkerInfo> grid = Colocated();
  JoinAll(grid);
  for (const WorkerInfo& worker : grid) {
    members_.Heartbeat(worker.instance, false, {}, now_us_);
    EXPECT_THAT(members_.ReadyPairs(), IsEmpty());
    EXPECT_EQ(members_.WhatIsMissing(), worker.instance.id + " is not ready");
    Beat(worker);
    EXPECT_THAT(members_.ReadyPairs(), SizeIs(1));
    std::vector<uint64_t> others = LinkedBy(members_, grid[0].instance);
    std::erase(others, worker.instance.incarnation);
    BeatLinking(grid[0], others);
    EXPECT_THAT(members_.ReadyPairs(), IsEmpty()) << worker.instance.id;
    EXPECT_EQ(members_.WhatIsMissing(), "chain c0 has not linked its processes yet");
    Beat(grid[0]);
    EXPECT_THAT(members_.ReadyPairs(), SizeIs(1));
  }
  BeatLinking(grid[1], {});
  EXPECT_THAT(members_.ReadyPairs(), SizeIs(1)) << "it doesn't speak for the chain";
}

TEST_F(MembershipColocatedTest, AMemberThatDoesNotAgreeIsRefused) {
  ASSERT_TRUE(Join(TestColocated("c0", 0, 2)).ok());
  const absl::Status refusal = Join(TestStage("c0", 1, 2));
  EXPECT_EQ(refusal.message(),
            "disaggregation_mode of chain c0 differs: c0-1 has prefill, c0-0 has null");
  EXPECT_TRUE(Join(TestStage("c1", 1, 2)).ok()) << "another chain may be another kind";
  EXPECT_EQ(Join(TestColocated("c1", 0, 2)).message(),
            "disaggregation_mode of chain c1 differs: c1-0 has null, c1-1 has prefill");
}

TEST_F(MembershipColocatedTest, ADecodeServiceCannotBeOne) {
  WorkerInfo worker = TestDecode("d0");
  worker.decodes = true;
  const absl::Status refusal = Join(worker);
  EXPECT_TRUE(absl::IsInvalidArgument(refusal));
  EXPECT_EQ(FieldOf(refusal), "decodes");
}

TEST_F(MembershipColocatedTest, OnlyWhatIsNeededIsMissing) {
  ASSERT_TRUE(Join(TestColocated("c0", 0, 2)).ok());
  Beat(TestColocated("c0", 0, 2));
  EXPECT_EQ(members_.WhatIsMissing(), "chain c0 lacks rank 1 of 2");
  EXPECT_STREQ(members_.WhatServes(), "colocated chain");
  ASSERT_TRUE(Join(TestStage("c1", 0, 2)).ok());
  EXPECT_THAT(members_.WhatIsMissing(), HasSubstr("no decode service is registered"));
  EXPECT_STREQ(members_.WhatServes(), "pair of a prefill chain and a decode service");
}

TEST_F(MembershipColocatedTest, AChainThatHasNotLinkedALaterStageIsNotReady) {
  WorkerInfo later = TestColocated("c0", 1, 2);
  later.instance.incarnation = 2;
  ASSERT_TRUE(Join(TestColocated("c0", 0, 2)).ok());
  Beat(TestColocated("c0", 0, 2));
  ASSERT_TRUE(Join(later).ok());
  Beat(later);
  EXPECT_THAT(members_.ReadyPairs(), IsEmpty());
  EXPECT_EQ(members_.WhatIsMissing(), "chain c0 has not linked its processes yet");
}

TEST_F(MembershipColocatedTest, AWholeChainIsExpectedForAWhile) {
  Expect();
  ASSERT_TRUE(Join(TestColocated("c0", 0, 2)).ok());
  EXPECT_EQ(members_.PairExpectedUntilUs(now_us_), 0) << "half of it";
  ASSERT_TRUE(Join(TestDecode("d0")).ok());
  EXPECT_EQ(members_.PairExpectedUntilUs(now_us_), 0) << "a decode service is not its other half";
  now_us_ += 10;
  ASSERT_TRUE(Join(TestColocated("c0", 1, 2)).ok());
  EXPECT_EQ(members_.PairExpectedUntilUs(now_us_), now_us_ + 500);
  EXPECT_EQ(members_.PairExpectedUntilUs(now_us_ + 500), 0);
}

TEST_F(MembershipColocatedTest, WhoIsLostIsExpectedBack) {
  Expect();
  JoinAll({TestColocated("c0", 0, 2), TestColocated("c0", 1, 2)});
  now_us_ += 200;
  ASSERT_TRUE(members_.Remove({"c0-1", 1}, now_us_, lost_));
  EXPECT_EQ(members_.PairExpectedUntilUs(now_us_), now_us_ + 500);
  EXPECT_EQ(members_.PairExpectedUntilUs(now_us_ + 500), 0);
}

// As a pair does: it can serve, and who is against it cannot.
TEST_F(MembershipColocatedTest, AWholeChainGivesWayToNobodySmaller) {
  JoinAll({TestColocated("c0", 0, 2), TestColocated("c0", 1, 2)});
  for (const char* id : {"d0", "d1", "d2"}) {
    EXPECT_FALSE(Join(WithOtherWeights(TestDecode(id))).ok()) << id;
  }
  EXPECT_THAT(members_.Workers(), SizeIs(2));
  Membership strangers{MembershipOptions{.lease_us = 1000}};
  for (const char* id : {"d0", "d1", "d2"}) {
    ASSERT_TRUE(strangers.Register(WithOtherWeights(TestDecode(id)), now_us_, lost_).ok());
  }
  EXPECT_FALSE(strangers.Register(TestColocated("c0", 0, 2), now_us_, lost_).ok());
  EXPECT_TRUE(strangers.Register(TestColocated("c0", 1, 2), now_us_, lost_).ok())
      << "the chain is whole, and can serve";
  EXPECT_EQ(MembersOf(strangers), (std::set<std::string>{"c0-0", "c0-1"}));
}

}  // namespace
}  // namespace baton::router
