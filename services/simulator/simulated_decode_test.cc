// Simulated decode services of one and of several stages, against closed forms.
#include "services/simulator/simulated_decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "services/simulator/simulated_cluster_fixture.h"

namespace baton::simulator {
namespace {

using prefill::StageDoing;

// Decode services with so many layers in each stage, behind a chain of one.
ClusterShape DecodesOf(const std::vector<int>& stage_layers) {
  const ClusterShape split = ShapeOf(stage_layers);
  ClusterShape shape = ShapeOf({split.profile.layers});
  shape.decode_stages = split.stages;
  return shape;
}

int64_t DecodeMicros(const RequestRecord& request) {
  return request.last_token_us - request.first_token_us;
}

TEST(SimulatedDecodeTest, ATokenTakesItsStepThroughEveryStage) {
  for (const std::vector<int>& layers : {std::vector<int>{8}, {4, 4}, {1, 7}, {2, 3, 3}}) {
    ClusterShape shape = DecodesOf(layers);
    const auto hops = static_cast<int64_t>(layers.size()) - 1;
    const Workload workload = Asked({{0, 100, 4}});
    const RunRecord record = RunIt(shape, workload);
    // Three steps, behind 100, 101 and 102 tokens. Each stage's share is in whole microseconds.
    const int64_t steps_us = DecodeMicros(record.requests[0]);
    EXPECT_NEAR(static_cast<double>(steps_us), 3 * 5100 + 303, static_cast<double>(3 * hops));
    ASSERT_EQ(record.decodes[0].stages.size(), layers.size());
    int64_t busy_us = 0;
    for (size_t stage = 0; stage < layers.size(); ++stage) {
      EXPECT_EQ(record.decodes[0].stages[stage].layers, layers[stage]);
      EXPECT_EQ(record.decodes[0].stages[stage].plans, 3);
      busy_us += record.decodes[0].stages[stage].times.Of(StageDoing::kBusy);
    }
    EXPECT_EQ(busy_us, steps_us);
    // Activations from each stage to the next, and the token back to the first.
    shape.latency_us = 70;
    EXPECT_EQ(DecodeMicros(RunIt(shape, workload).requests[0]),
              steps_us + (hops == 0 ? 0 : hops + 1) * 3 * 70);
    shape.latency_us = 0;
    shape.activation_gbps = 1;  // A row of 1000 bytes: 8 us.
    EXPECT_EQ(DecodeMicros(RunIt(shape, workload).requests[0]), steps_us + hops * 3 * 8);
  }
}

double TokensPerSecond(const std::vector<int>& layers, int slots) {
  ClusterShape shape = DecodesOf(layers);
  shape.max_running_requests = slots;
  const RunRecord record = RunIt(shape, Asked(std::vector<WorkloadRequest>(8, {0, 64, 200})));
  EXPECT_EQ(record.decodes[0].open.most(), slots);
  return 8 * 200 * 1e6 / static_cast<double>(record.end_us);
}

// While one stage computes a request's token, the other computes another's.
TEST(SimulatedDecodeTest, TwoSlotsKeepTwoStagesBusy) {
  const double one_slot = TokensPerSecond({4, 4}, 1);
  EXPECT_NEAR(one_slot / TokensPerSecond({8}, 1), 1, 0.01);
  EXPECT_NEAR(TokensPerSecond({4, 4}, 2) / one_slot, 2, 0.1);
  EXPECT_NEAR(TokensPerSecond({2, 6}, 2) / one_slot, 8.0 / 6, 0.1) << "the slower stage decides";
}

TEST(SimulatedDecodeTest, EachStageHasAConnectionForItsLayers) {
  const auto last_first_token_us = [](const std::vector<int>& layers) {
    ClusterShape shape = DecodesOf(layers);
    shape.chains = 2;
    shape.kv_gbps = 1;
    const RunRecord record = RunIt(shape, Asked({{0, 256, 1}, {0, 256, 1}}));
    return std::max(record.requests[0].ttft_us(), record.requests[1].ttft_us());
  };
  // From each of two chains 4 pages of 4 layers, 64 * 2 * 125 * 2 bytes each: 4096 us.
  EXPECT_EQ(last_first_token_us({4}), last_first_token_us({2, 2}) + 4096);
  EXPECT_EQ(last_first_token_us({3, 1}), last_first_token_us({2, 2}) + 2048);
}

TEST(SimulatedDecodeTest, AnySplitServesAnyChain) {
  int64_t retractions = 0;
  for (const std::vector<int>& prefill : {std::vector<int>{8}, {3, 5}, {1, 2, 5}}) {
    for (const std::vector<int>& decode : {std::vector<int>{8}, {5, 3}, {1, 2, 4, 1}}) {
      ClusterShape shape = ShapeOf(prefill);
      shape.decode_stages = ShapeOf(decode).stages;
      shape.decodes = 2;
      shape.decode_pages = 24;
      shape.reserved_decode_tokens = 8;
      shape.latency_us = 50;
      shape.activation_gbps = shape.kv_gbps = 10;
      Workload workload = Many(60, 5'000);
      for (WorkloadRequest& request : workload.requests) {
        request.prompt_tokens /= 10;
        request.output_tokens *= 8;
      }
      const RunRecord record = RunIt(shape, workload);
      for (size_t i = 0; i < record.requests.size(); ++i) {
        EXPECT_TRUE(record.requests[i].answered()) << record.requests[i].status;
        EXPECT_EQ(record.requests[i].tokens, workload.requests[i].output_tokens);
      }
      for (const ChainRecord& service : record.decodes) retractions += service.retractions;
    }
  }
  EXPECT_GT(retractions, 100);
}

}  // namespace
}  // namespace baton::simulator
