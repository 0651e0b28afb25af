// Decode services that are several ranks, as a router sees them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "services/router/core/fit.h"
#include "services/router/core/membership_ranks_fixture.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class MembershipDecodeRanksTest : public MembershipRanksTest {
 protected:
  void BeatAll(const std::vector<WorkerInfo>& workers) {
    for (const WorkerInfo& worker : workers) Beat(worker);
  }
};

TEST_F(MembershipDecodeRanksTest, AServiceIsWholeWithEachOfItsRanks) {
  const WorkerInfo stage = TestStage("c0", 0, 1);
  std::vector<WorkerInfo> service = Service(3);
  for (WorkerInfo& rank : service) rank.fingerprint.kv_layout.kv_heads = 3;
  WorkerInfo chain = stage;
  chain.fingerprint.kv_layout.kv_heads = 3;
  JoinAll({chain, service[2], service[0]});
  EXPECT_THAT(members_.ReadyPairs(), IsEmpty());
  EXPECT_EQ(members_.WhatIsMissing(), "decode service 0 lacks tensor-parallel rank 1 of 3");
  JoinAll({service[1]});
  BeatAll({chain, service[2], service[0]});
  ASSERT_THAT(members_.ReadyPairs(), SizeIs(1));
  const Pair pair = members_.ReadyPairs()[0];
  EXPECT_EQ(pair.decode, service[0].instance);
  EXPECT_THAT(pair.followers, ElementsAre(service[1].instance, service[2].instance));
  for (const WorkerInfo& rank : service) EXPECT_TRUE(pair.Decodes(rank.instance));
  EXPECT_FALSE(pair.Decodes(stage.instance));
}

TEST_F(MembershipDecodeRanksTest, AServiceTakesWhatFitsIntoEachOfItsRanksAndTellsOfRank0) {
  std::vector<WorkerInfo> service = Service(2);
  service[0].max_running_requests = 7;
  service[1].page_count = 32;  // 512 tokens.
  service[1].max_context_tokens = 500;
  JoinAll(Together({TestStage("c0", 0, 1)}, service));
  const auto beat = [&](const WorkerInfo& rank, int running) {
    members_.Heartbeat(rank.instance, true, {.running_requests = running}, now_us_,
                       LinkedBy(members_, rank.instance));
  };
  beat(service[0], 3);
  beat(service[1], 5);
  ASSERT_THAT(members_.ReadyPairs(), SizeIs(1));
  const Pair pair = members_.ReadyPairs()[0];
  EXPECT_EQ(pair.decode_slots, 7);
  EXPECT_EQ(pair.decode_capacity_tokens, 512);
  EXPECT_EQ(pair.max_context_tokens, 500);
}

// Processes of one rank are services of their own, whatever they say of an id.
TEST_F(MembershipDecodeRanksTest, ServicesOfOneAndOfMoreRanksStandBesideOneAnother) {
  WorkerInfo alone = TestDecode("d8");
  alone.decode_id = "0";
  WorkerInfo other = TestDecode("d9");
  other.decode_id = "0";
  JoinAll(
      Together({TestStage("c0", 0, 1), alone, other}, Together(Service(2, "0"), Service(2, "1"))));
  BeatAll({TestStage("c0", 0, 1)});
  std::vector<std::string> names;
  for (const Pair& pair : members_.ReadyPairs()) names.push_back(pair.decode.id);
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("d8", "d9", "d0-0", "d1-0"));
}

// Two KV heads. With more prefill ranks than heads some have copies: they write where the decode
// service has as many copies, too.
TEST_F(MembershipDecodeRanksTest, WhoWritesDependsOnTheRanksOfBothSides) {
  const std::vector<std::pair<std::pair<int, int>, std::vector<std::string>>> rows = {
      {{1, 1}, {"c0-0-0", "c0-1-0"}},
      {{1, 2}, {"c0-0-0", "c0-1-0"}},
      {{1, 4}, {"c0-0-0", "c0-1-0"}},
      {{2, 1}, {"c0-0-0", "c0-0-1", "c0-1-0", "c0-1-1"}},
      {{2, 2}, {"c0-0-0", "c0-0-1", "c0-1-0", "c0-1-1"}},
      {{2, 4}, {"c0-0-0", "c0-0-1", "c0-1-0", "c0-1-1"}},
      {{4, 1}, {"c0-0-0", "c0-0-2", "c0-1-0", "c0-1-2"}},
      {{4, 2}, {"c0-0-0", "c0-0-2", "c0-1-0", "c0-1-2"}},
      {{4, 4}, {"c0-0-0", "c0-0-1", "c0-0-2", "c0-0-3", "c0-1-0", "c0-1-1", "c0-1-2", "c0-1-3"}},
  };
  for (const auto& [ranks, writers] : rows) {
    SCOPED_TRACE(::testing::Message() << ranks.first << " to " << ranks.second);
    members_ = Membership(MembershipOptions{.lease_us = 1000});
    JoinAll(Together(Grid(ranks.first), Service(ranks.second)));
    ASSERT_THAT(members_.ReadyPairs(), SizeIs(1));
    std::vector<std::string> names;
    const Pair pair = members_.ReadyPairs()[0];
    for (const KvWriter& writer : pair.writers) {
      names.push_back(writer.instance.id);
      EXPECT_EQ(writer.tensor_rank.size, ranks.first);
    }
    EXPECT_EQ(names, writers);
  }
}

// The same chain, and two decode services of different sizes beside one another.
TEST_F(MembershipDecodeRanksTest, WritersAreThoseOfEachPair) {
  JoinAll(Together(Grid(4), Together(Service(1, "1"), Service(4, "4"))));
  ASSERT_THAT(members_.ReadyPairs(), SizeIs(2));
  for (const Pair& pair : members_.ReadyPairs()) {
    EXPECT_THAT(pair.writers, SizeIs(pair.followers.empty() ? 4 : 8)) << pair.decode.id;
  }
}

TEST_F(MembershipDecodeRanksTest, OneRankThatCantServeKeepsTheServiceOutOfPairs) {
  const std::vector<WorkerInfo> grid = Grid();
  const std::vector<WorkerInfo> service = Service();
  JoinAll(Together(grid, service));
  for (const WorkerInfo& rank : service) {
    SCOPED_TRACE(rank.instance.id);
    ASSERT_THAT(members_.ReadyPairs(), SizeIs(1));
    members_.Suspect(rank.instance, now_us_);
    EXPECT_THAT(members_.ReadyPairs(), IsEmpty());
    EXPECT_EQ(members_.WhatIsMissing(), rank.instance.id + " does not answer");
    Beat(rank);
    ASSERT_THAT(members_.ReadyPairs(), SizeIs(1));
    members_.Heartbeat(rank.instance, false, {}, now_us_);
    EXPECT_THAT(members_.ReadyPairs(), IsEmpty());
    EXPECT_EQ(members_.WhatIsMissing(), rank.instance.id + " is not ready");
    Beat(rank);
  }
  members_.SaysDraining(service[1].instance);
  EXPECT_THAT(members_.ReadyPairs(), IsEmpty());
  EXPECT_EQ(members_.WhatIsMissing(), "d0-1 is draining");
}

TEST_F(MembershipDecodeRanksTest, ARankThatIsStartedAgainIsInNoPairBeforeRank0KnowsIt) {
  const WorkerInfo stage = TestStage("c0", 0, 1);
  std::vector<WorkerInfo> service = Service();
  JoinAll(Together({stage}, service));
  ASSERT_THAT(members_.ReadyPairs(), SizeIs(1));
  EXPECT_TRUE(members_.Suspect(service[1].instance, now_us_));
  service[1].instance.incarnation = 200;
  ASSERT_EQ(Join(service[1]), absl::OkStatus());
  ASSERT_THAT(lost_, SizeIs(1));
  EXPECT_EQ(lost_[0].info.instance.incarnation, 102u);
  Beat(service[1]);
  Beat(stage);
  EXPECT_THAT(members_.ReadyPairs(), IsEmpty()) << "rank 0 may speak of the former one";
  Beat(service[0]);
  ASSERT_THAT(members_.ReadyPairs(), SizeIs(1));
  EXPECT_THAT(members_.ReadyPairs()[0].followers, ElementsAre(service[1].instance));
}

TEST_F(MembershipDecodeRanksTest, ALostRankIsExpectedBackInItsPlace) {
  Membership patient{MembershipOptions{.lease_us = 1000, .pair_grace_us = 5000}};
  const std::vector<WorkerInfo> all = Together({TestStage("c0", 0, 1)}, Service(2));
  for (const WorkerInfo& worker : {all[0], all[1]}) {
    ASSERT_EQ(patient.Register(worker, now_us_, lost_), absl::OkStatus());
  }
  EXPECT_EQ(patient.PairExpectedUntilUs(now_us_), 0) << "rank 1 never was here";
  ASSERT_EQ(patient.Register(all[2], now_us_, lost_), absl::OkStatus());
  EXPECT_EQ(patient.PairExpectedUntilUs(now_us_), now_us_ + 5000);
  for (const WorkerInfo& worker : {all[0], all[1]}) {
    patient.Heartbeat(worker.instance, true, {}, now_us_ + 900);
  }
  const std::vector<Worker> lost = patient.Expire(now_us_ + 1000);
  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_EQ(lost[0].info.instance.id, "d0-1");
  EXPECT_EQ(patient.PairExpectedUntilUs(now_us_ + 1001), now_us_ + 1000 + 5000);
  EXPECT_EQ(patient.PairExpectedUntilUs(now_us_ + 6000), 0);
}

TEST_F(MembershipDecodeRanksTest, RanksOfOneServiceMustAgree) {
  const WorkerInfo first = TestDecodeRank(0);
  ASSERT_EQ(Join(first), absl::OkStatus());
  const std::vector<std::pair<std::function<void(WorkerInfo&)>, std::vector<std::string>>> changes{
      {[](auto& w) {
         w.tensor_rank = {1, 4};
       },
       {"tp_size of decode service 0", "4", "2"}},
      {[](auto& w) { w.agreed.row_parallel_chunks = 0; },
       {"row_parallel_chunks of decode service 0", "auto", "4"}},
      {[](auto& w) { w.agreed.row_parallel_threshold = 64; },
       {"row_parallel_chunk_threshold of decode service 0", "64", "8192"}},
      {[](auto& w) { w.fingerprint.dtype = "bfloat16"; }, {"dtype", "bfloat16", "float32"}},
      {[](auto& w) {
         w.tensor_rank = {0, 2};
       },
       {"tensor-parallel rank 0 of decode service 0 is taken: d0-1 wants it, d0-0 has it"}},
  };
  for (const auto& [apply, parts] : changes) {
    WorkerInfo worker = TestDecodeRank(1);
    apply(worker);
    const absl::Status status = Join(worker);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    for (const std::string& part : parts) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
    for (const char* name : {"d0-0", "d0-1"}) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    }
  }
  WorkerInfo elsewhere = TestDecodeRank(1);  // It has no next stage to send slices to.
  elsewhere.agreed.sends_slices = false;
  EXPECT_EQ(Join(elsewhere), absl::OkStatus());
}

TEST_F(MembershipDecodeRanksTest, OneThatClaimsATakenPlaceIsTakenOnceThePlaceIsFree) {
  const std::vector<WorkerInfo> service = Service();
  JoinAll(Together({TestStage("c0", 0, 1)}, service));
  WorkerInfo rival = service[1];
  rival.instance = {"rival", 300};
  EXPECT_TRUE(absl::IsFailedPrecondition(Join(rival)));
  EXPECT_THAT(members_.WhatIsMissing(), HasSubstr("rival is refused for now"));
  members_.SaysDraining(service[1].instance);
  EXPECT_TRUE(absl::IsFailedPrecondition(Join(rival))) << "it drains, and has its place yet";
  ASSERT_TRUE(members_.Remove(service[1].instance, now_us_, lost_));
  EXPECT_EQ(Join(rival), absl::OkStatus());
  EXPECT_THAT(members_.Workers(), SizeIs(3));
}

// Who came first does not win: the ranks that make a service whole do.
TEST_F(MembershipDecodeRanksTest, RanksOfANewServiceTakeThePlaceOfAHalfOne) {
  const auto other_model = [](WorkerInfo worker) {
    for (auto& [layer, hash] : worker.fingerprint.layer_hashes) hash += 0xf00;
    return worker;
  };
  WorkerInfo old = other_model(TestDecodeRank(0));
  old.instance.id = "old";
  ASSERT_EQ(Join(old), absl::OkStatus());
  EXPECT_TRUE(absl::IsFailedPrecondition(Join(TestDecodeRank(0)))) << "one against one";
  EXPECT_EQ(Join(TestDecodeRank(1)), absl::OkStatus()) << "two against one";
  ASSERT_THAT(lost_, SizeIs(1));
  EXPECT_EQ(lost_[0].info.instance.id, "old");
  EXPECT_EQ(members_.CheckInvariants(), absl::OkStatus());
}

// Five seconds after the first registration who can form a pair never gives way; half a service
// can't.
TEST_F(MembershipDecodeRanksTest, HalfAServiceIsNoPair) {
  const auto other_model = [](std::vector<WorkerInfo> workers) {
    for (WorkerInfo& worker : workers) {
      worker.instance.id += "-new";
      for (auto& [layer, hash] : worker.fingerprint.layer_hashes) hash += 0xf00;
    }
    return workers;
  };
  Membership settled{MembershipOptions{.lease_us = 10'000, .settle_us = 100}};
  const std::vector<WorkerInfo> grid = Grid();
  for (const WorkerInfo& worker : Together(grid, {Service()[0]})) {
    ASSERT_EQ(settled.Register(worker, 0, lost_), absl::OkStatus());
  }
  std::vector<WorkerInfo> others = other_model({TestStage("c0", 0, 1), TestDecode("d9")});
  EXPECT_TRUE(absl::IsFailedPrecondition(settled.Register(others[0], 200, lost_)));
  EXPECT_EQ(settled.Register(others[1], 200, lost_), absl::OkStatus()) << "two that can serve";
  EXPECT_THAT(settled.Workers(), SizeIs(2));
}

TEST_F(MembershipDecodeRanksTest, RanksThatCantBeAreRefusedByField) {
  for (const TensorRank rank : {TensorRank{2, 2}, TensorRank{-1, 2}, TensorRank{0, 0},
                                TensorRank{0, 65}, TensorRank{0, 3}}) {
    WorkerInfo worker = TestDecodeRank(0);
    worker.tensor_rank = rank;
    EXPECT_EQ(FieldOf(Join(worker)), "tensor_rank") << rank.rank << " of " << rank.size;
  }
  WorkerInfo unnamed = TestDecodeRank(0);
  unnamed.decode_id.clear();
  EXPECT_EQ(FieldOf(Join(unnamed)), "decode_id");
}

// ---- Stages ----

TEST_F(MembershipDecodeRanksTest, AServiceIsWholeWithEachOfItsStages) {
  const WorkerInfo chain = TestStage("c0", 0, 1);
  JoinAll({chain, TestDecodeStage(1)});
  EXPECT_THAT(members_.ReadyPairs(), IsEmpty());
  EXPECT_EQ(members_.WhatIsMissing(), "decode service 0 lacks rank 0 of 2");
  JoinAll({TestDecodeStage(0)});
  BeatAll({chain, TestDecodeStage(1)});
  ASSERT_THAT(members_.ReadyPairs(), SizeIs(1));
  EXPECT_EQ(members_.ReadyPairs()[0].decode.id, "d0-0");
  EXPECT_THAT(members_.ReadyPairs()[0].followers, ElementsAre(TestDecodeStage(1).instance));
}

TEST_F(MembershipDecodeRanksTest, AStageOfAnotherBuildIsRefusedWithBothNames) {
  JoinAll({TestDecodeStage(0)});
  const auto refusal = [&](const WorkerInfo& other) {
    return std::string(CheckFit(other, TestDecodeStage(0)).message());
  };
  WorkerInfo config = TestDecodeStage(1);
  config.fingerprint.config_hash = 0xbad;
  EXPECT_THAT(refusal(config), HasSubstr("model config"));
  EXPECT_THAT(refusal(config), HasSubstr("d0-1 has"));
  EXPECT_THAT(refusal(config), HasSubstr("d0-0 has"));
  WorkerInfo gap = TestDecodeStage(1);
  gap.layers.begin = 3;
  EXPECT_THAT(refusal(gap), HasSubstr("layers of decode service 0 leave a gap: d0-1"));
  WorkerInfo shape = TestDecodeStage(1);
  shape.pp_size = 3;
  EXPECT_THAT(refusal(shape), HasSubstr("pp_size of decode service 0 differs"));
  WorkerInfo holder = Named(TestDecodeStage(0), "twin");
  EXPECT_THAT(refusal(holder), HasSubstr("rank 0 of decode service 0 is taken"));
}

}  // namespace
}  // namespace baton::router
