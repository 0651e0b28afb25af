// The simulated cluster against closed forms, and what holds of every run.
#include "services/simulator/simulated_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/chunking/flow_shop.h"
#include "services/simulator/report.h"
#include "services/simulator/simulated_cluster_fixture.h"

namespace baton::simulator {
namespace {

std::vector<int> ChunksOf(const RunRecord& record) {
  std::vector<int> tokens;
  for (const ComputeRecord& compute : record.chains[0].stages[0].computes) {
    tokens.push_back(compute.items.at(0).token_count);
  }
  return tokens;
}

std::vector<StageCost> CostsOf(const ClusterShape& shape) {
  std::vector<StageCost> costs;
  for (const LayerRange& stage : shape.stages) costs.push_back(shape.profile.OfStage(stage));
  return costs;
}

// ---- Closed forms ----

TEST(SimulatedClusterTest, ALonePromptIsAFlowShop) {
  for (const ChunkRule rule : {ChunkRule::kFixed, ChunkRule::kOptimal}) {
    for (const std::vector<int>& layers :
         {std::vector<int>{4}, {4, 4}, {2, 2, 2, 2}, {3, 5, 4}, {6, 1, 1, 1, 1, 1, 1, 1}}) {
      ClusterShape shape = ShapeOf(layers);
      shape.prefill.planner.chunk_rule = rule;
      const RunRecord record = RunIt(shape, Asked({{0, 3000, 1}}));
      const std::vector<int> chunks = ChunksOf(record);
      EXPECT_GT(chunks.size(), 3u);
      EXPECT_EQ(std::accumulate(chunks.begin(), chunks.end(), 0), 3000);
      const Timeline right = RunChunks(CostsOf(shape), 0, chunks);
      EXPECT_EQ(static_cast<double>(record.requests[0].ttft_us()), right.first_token_us);
      for (size_t stage = 0; stage < layers.size(); ++stage) {
        const auto busy_us = record.chains[0].stages[stage].times.Of(prefill::StageDoing::kBusy);
        EXPECT_EQ(static_cast<double>(busy_us), right.busy_us[stage]) << stage;
      }
    }
  }
}

TEST(SimulatedClusterTest, WhoHasMeasuredCutsTheFirstPromptBetter) {
  ClusterShape shape = ShapeOf({2, 2, 2, 2});
  shape.prefill.planner.chunk_rule = ChunkRule::kOptimal;
  shape.prefill.planner.chunk_tokens = 4096;
  const Workload workload = Asked({{0, 3000, 1}});
  const int64_t learning_us = RunIt(shape, workload).requests[0].ttft_us();
  for (const StageCost& cost : CostsOf(shape)) shape.known_costs.push_back({cost, 0});
  const RunRecord record = RunIt(shape, workload);
  EXPECT_LT(record.requests[0].ttft_us(), learning_us);
  // Chunks of unequal times may wait for a credit, too, which a flow shop does not know.
  const double flow_shop_us = RunChunks(CostsOf(shape), 0, ChunksOf(record)).first_token_us;
  EXPECT_GE(static_cast<double>(record.requests[0].ttft_us()), flow_shop_us);
  EXPECT_LE(static_cast<double>(record.requests[0].ttft_us()), 1.02 * flow_shop_us);
}

TEST(SimulatedClusterTest, EveryMessageTakesTheLatency) {
  ClusterShape shape = ShapeOf({2, 2, 2});
  shape.latency_us = 70;
  const RunRecord record = RunIt(shape, Asked({{0, 3000, 1}}));
  // Reserve and its reply, Start, the commit, the token; and a hop between stages.
  const Timeline right = RunChunks(CostsOf(shape), 0, ChunksOf(record), 70);
  EXPECT_EQ(static_cast<double>(record.requests[0].ttft_us()), right.first_token_us + 5 * 70);
}

TEST(SimulatedClusterTest, BytesTakeTheirBandwidth) {
  ClusterShape shape = ShapeOf({2, 2, 2});
  const Workload one_chunk = Asked({{0, 256, 1}});
  const int64_t without_us = RunIt(shape, one_chunk).requests[0].ttft_us();
  shape.activation_gbps = 1;  // 256 rows of 1000 bytes: 2048 us, twice.
  EXPECT_EQ(RunIt(shape, one_chunk).requests[0].ttft_us(), without_us + 4096);
  shape.activation_gbps = 0;
  shape.kv_gbps = 1;  // 4 pages of 2 layers: 64 * 2 * 125 * 2 bytes each, 2048 us from each stage.
  EXPECT_EQ(RunIt(shape, one_chunk).requests[0].ttft_us(), without_us + 2048);
}

TEST(SimulatedClusterTest, ALoneAnswerTakesItsSteps) {
  const ClusterShape shape = ShapeOf({4, 4});
  const RunRecord record = RunIt(shape, Asked({{0, 100, 4}}));
  const RequestRecord& request = record.requests[0];
  EXPECT_EQ(request.tokens, 4);
  // Three steps, behind 100, 101 and 102 tokens.
  EXPECT_EQ(request.last_token_us - request.first_token_us, 3 * 5100 + 303);
  EXPECT_EQ(request.tpot_us(), 5201);
  EXPECT_EQ(record.between_tokens.count(), 3);
  EXPECT_EQ(record.between_tokens.most_us(), 5202);
  EXPECT_EQ(record.decodes[0].stages[0].plans, 3);
  EXPECT_EQ(record.decodes[0].stages[0].times.Of(prefill::StageDoing::kBusy), 3 * 5100 + 303);
}

// ---- What holds of every run ----

TEST(SimulatedClusterTest, AllAreAnsweredAndEveryMicrosecondIsAccountedFor) {
  for (const int chains : {1, 2}) {
    ClusterShape shape = ShapeOf({2, 3, 3});
    shape.chains = shape.decodes = chains;
    shape.prefill.planner.chunk_rule = ChunkRule::kOptimal;
    shape.latency_us = 50;
    shape.activation_gbps = shape.kv_gbps = 10;
    const Workload workload = Many(120, 40'000);
    const RunRecord record = RunIt(shape, workload);
    int64_t prompt_tokens = 0;
    for (size_t i = 0; i < record.requests.size(); ++i) {
      const RequestRecord& request = record.requests[i];
      EXPECT_TRUE(request.answered()) << request.status;
      EXPECT_EQ(request.tokens, workload.requests[i].output_tokens);
      EXPECT_GE(request.first_token_us, request.arrival_us);
      prompt_tokens += request.prompt_tokens;
    }
    int64_t computed_tokens = 0;
    for (const ChainRecord& chain : record.chains) {
      computed_tokens += chain.stages[0].tokens;
      EXPECT_GT(chain.stages[0].plans, 0);
      for (const StageRecord& stage : chain.stages) {
        EXPECT_EQ(stage.times.Together(), record.end_us);
        EXPECT_EQ(stage.tokens, chain.stages[0].tokens);
      }
    }
    EXPECT_EQ(computed_tokens, prompt_tokens);
  }
}

std::string JsonOf(const ClusterShape& shape, const Workload& workload) {
  const RunRecord record = RunIt(shape, workload);
  const Objectives objectives{100, 6};
  const Summary summary = Summarize(record, objectives);
  return ReportJson({shape, workload, record, summary, objectives});
}

TEST(SimulatedClusterTest, TheSameIsTheSame) {
  ClusterShape shape = ShapeOf({2, 2});
  shape.prefill.planner.chunk_rule = ChunkRule::kOptimal;
  shape.profile.noise_relative = 0.1;
  shape.chains = 2;
  const std::string first = JsonOf(shape, Many(50, 20'000));
  EXPECT_EQ(first, JsonOf(shape, Many(50, 20'000)));
  EXPECT_NE(first, JsonOf(shape, Many(50, 20'001)));
}

TEST(SimulatedClusterTest, ClosedClientsHaveOneRequestEach) {
  Workload workload = Many(40, 0);
  workload.concurrency = 3;
  const RunRecord record = RunIt(ShapeOf({2, 2}), workload);
  std::vector<std::pair<int64_t, int>> changes;
  for (const RequestRecord& request : record.requests) {
    EXPECT_TRUE(request.answered());
    changes.emplace_back(request.arrival_us, 1);
    changes.emplace_back(request.end_us, -1);
  }
  std::sort(changes.begin(), changes.end());  // Ends before arrivals of the same moment.
  int running = 0;
  int most = 0;
  for (const auto& [at_us, change] : changes) most = std::max(most, running += change);
  EXPECT_EQ(most, 3);
}

TEST(SimulatedClusterTest, ATimelineKeepsItsWindowUntilItIsFull) {
  const ClusterShape shape = ShapeOf({2, 2});
  const Workload workload = Asked({{0, 2560, 1}});  // Ten chunks on each of two stages.
  const auto kept = [&](const TimelineWindow& window) {
    SimulatedCluster cluster(shape, workload, window);
    const absl::StatusOr<RunRecord> record = cluster.Run();
    size_t computes = 0;
    for (const StageRecord& stage : record->chains[0].stages) computes += stage.computes.size();
    return std::pair(computes, record->timeline_full);
  };
  EXPECT_EQ(kept(kAll), std::pair(size_t{20}, false));
  EXPECT_EQ(kept({0, kAll.to_us, 20}), std::pair(size_t{20}, false));
  EXPECT_EQ(kept({0, kAll.to_us, 7}), std::pair(size_t{7}, true));
  EXPECT_EQ(kept({0, 1, 7}), std::pair(size_t{1}, false)) << "the first one begins at once";
  EXPECT_EQ(kept({int64_t{1} << 50, kAll.to_us, 7}), std::pair(size_t{0}, false));
}

// ---- Colocated chains ----

ClusterShape Colocated(const std::vector<int>& stage_layers) {
  ClusterShape shape = ShapeOf(stage_layers);
  shape.prefill.planner.decodes = true;
  shape.prefill.planner.reserved_decode_tokens = 64;
  shape.prefill.planner.max_open_requests = 64;
  shape.decodes = 0;
  return shape;
}

TEST(SimulatedClusterTest, AColocatedChainDecodesWhatItReads) {
  const ClusterShape shape = Colocated({2, 2});
  const RunRecord record = RunIt(shape, Asked({{0, 200, 3}}));
  const Timeline right = RunChunks(CostsOf(shape), 0, {200});
  EXPECT_EQ(static_cast<double>(record.requests[0].ttft_us()), right.first_token_us);
  // Each of two tokens through both stages: 5,000 + 100 + 1 for each token before, in whole
  // microseconds.
  const int64_t decode_us = record.requests[0].last_token_us - record.requests[0].first_token_us;
  EXPECT_NEAR(static_cast<double>(decode_us), 5'300 + 5'301, 4);
  EXPECT_TRUE(record.decodes.empty());
}

TEST(SimulatedClusterTest, ColocatedChainsAnswerAll) {
  ClusterShape shape = Colocated({2, 2, 2});
  shape.chains = 2;
  shape.latency_us = 100;
  const RunRecord record = RunIt(shape, Many(100, 20'000));
  for (const RequestRecord& request : record.requests) EXPECT_TRUE(request.answered());
  for (const ChainRecord& chain : record.chains) EXPECT_GT(chain.stages[0].plans, 0);
}

TEST(SimulatedClusterTest, TextsThatOutgrowTheirPagesAreReadAgain) {
  ClusterShape shape = Colocated({2, 2});
  shape.prefill_pages = 16;
  const RunRecord record = RunIt(shape, Asked({{0, 64, 300}, {0, 64, 300}, {0, 64, 300}}));
  for (const RequestRecord& request : record.requests) {
    EXPECT_TRUE(request.answered());
    EXPECT_EQ(request.tokens, 300);
  }
  EXPECT_GT(record.chains[0].retractions, 0);
}

// ---- Limits ----

TEST(SimulatedClusterTest, FullKvQueuesRequests) {
  ClusterShape shape = ShapeOf({2, 2});
  const Workload workload = Asked({{0, 640, 512}, {0, 640, 512}, {0, 640, 512}});
  const RunRecord roomy = RunIt(shape, workload);
  EXPECT_EQ(roomy.decodes[0].open.most(), 3);
  shape.decode_pages = 20;  // One request takes 18.
  const RunRecord tight = RunIt(shape, workload);
  EXPECT_EQ(tight.decodes[0].open.most(), 1);
  EXPECT_EQ(tight.decodes[0].pages.most(), 18);
  EXPECT_GT(tight.waiting.most() + tight.decodes[0].queued.most(), 0);
  EXPECT_GT(tight.requests[2].first_token_us, tight.requests[0].last_token_us);
  shape.decode_pages = 2048;
  shape.prefill_pages = 10;  // Exactly one prompt.
  const RunRecord narrow = RunIt(shape, workload);
  EXPECT_EQ(narrow.chains[0].open.most(), 1);
  EXPECT_EQ(narrow.chains[0].pages.most(), 10);
}

TEST(SimulatedClusterTest, WhatCannotBeServedIsRefusedAndTheRestIsServed) {
  ClusterShape shape = ShapeOf({2, 2});
  shape.decode_pages = 20;
  const RunRecord record = RunIt(shape, Asked({{0, 64, 2}, {0, 2000, 2}, {0, 64, 2}}));
  EXPECT_TRUE(record.requests[0].answered());
  EXPECT_EQ(record.requests[1].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(record.requests[2].answered());
}

TEST(SimulatedClusterTest, ADeadlineEndsWhatWaits) {
  ClusterShape shape = ShapeOf({2, 2});
  shape.request_timeout_us = 2'000'000;
  const RunRecord record = RunIt(shape, Asked({{0, 3000, 1}, {0, 3000, 1}}));
  EXPECT_EQ(record.requests[1].status.code(), absl::StatusCode::kDeadlineExceeded);
}

// Stage 0 gives up a plan that takes a stage 20 times as long as the one before, and 3 seconds.
TEST(SimulatedClusterTest, AChainThatRealOnesWouldBreakEndsTheRun) {
  ClusterShape shape = ShapeOf({1, 40});
  shape.profile.prefill.token_us = 1000.0 * shape.profile.layers;
  const Workload workload = Asked({{0, 256, 1}});
  SimulatedCluster cluster(shape, workload, kAll);
  const absl::Status status = cluster.Run().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("on stage 1"));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("as a real one would"));
}

}  // namespace
}  // namespace baton::simulator
