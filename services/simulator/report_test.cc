#include "services/simulator/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace baton::simulator {
namespace {

using testing::HasSubstr;

TEST(SummaryTest, QuantilesAreNearestRanks) {
  std::vector<double> values(100);
  std::iota(values.begin(), values.end(), 1);
  std::reverse(values.begin(), values.end());
  const Distribution hundred = DistributionOf(values);
  EXPECT_EQ(hundred.p50, 50);
  EXPECT_EQ(hundred.p90, 90);
  EXPECT_EQ(hundred.p99, 99);
  EXPECT_EQ(hundred.most, 100);
  EXPECT_EQ(hundred.mean, 50.5);
  const Distribution one = DistributionOf(std::vector<double>{7});
  EXPECT_EQ(one.p50, 7);
  EXPECT_EQ(one.p99, 7);
  EXPECT_EQ(DistributionOf(std::vector<double>()).count, 0);
}

TEST(GaugeTest, TheMeanIsOverTime) {
  Gauge gauge;
  gauge.Set(10, 4);
  gauge.Set(30, 1);
  EXPECT_EQ(gauge.Mean(40), (20 * 4 + 10 * 1) / 40.0);
  EXPECT_EQ(gauge.most(), 4);
  EXPECT_EQ(gauge.Mean(0), 0);
}

TEST(TimeHistogramTest, QuantilesAreWithinTwoPercent) {
  TimeHistogram times;
  EXPECT_EQ(times.QuantileUs(0.5), 0);
  for (int64_t us = 1; us <= 100'000; ++us) times.Add(us);
  EXPECT_EQ(times.count(), 100'000);
  EXPECT_EQ(times.MeanUs(), 50'000.5);
  EXPECT_EQ(times.most_us(), 100'000);
  for (const double share : {0.001, 0.1, 0.5, 0.9, 0.99}) {
    EXPECT_NEAR(times.QuantileUs(share) / (share * 100'000), 1, 0.02) << share;
  }
  EXPECT_LE(times.QuantileUs(1), 100'000);
  times.Add(0);
  times.Add(int64_t{1} << 62);
  EXPECT_EQ(times.QuantileUs(0), 0);
}

RequestRecord Answered(int64_t arrival_us, int64_t first_us, int64_t last_us, int tokens) {
  RequestRecord request;
  request.prompt_tokens = 100;
  request.tokens = request.output_tokens = tokens;
  request.arrival_us = arrival_us;
  request.first_token_us = first_us;
  request.last_token_us = request.end_us = last_us;
  request.attempts = 1;
  return request;
}

// Two requests that were answered, one in 2 ms and then 1 ms a token, one in 8 and 3, and one that
// was not.
RunRecord Three() {
  RunRecord record;
  record.requests = {Answered(0, 2000, 4000, 3), Answered(1000, 9000, 12'000, 2), {}};
  record.requests[2].arrival_us = record.requests[2].end_us = 5000;
  record.requests[2].status = absl::ResourceExhaustedError("the context is <too> long");
  record.end_us = 2'000'000;
  record.chains.resize(1);
  record.chains[0].page_count = 10;
  record.chains[0].stages.resize(2);
  record.decodes.resize(1);
  record.decodes[0].page_count = 10;
  return record;
}

TEST(SummaryTest, GoodputCountsWhatKeepsBothObjectives) {
  const RunRecord record = Three();
  const auto good = [&](Objectives objectives) { return Summarize(record, objectives).good; };
  EXPECT_EQ(good({0, 0}), 2);
  EXPECT_EQ(good({2, 0}), 1);
  EXPECT_EQ(good({8, 0}), 2);
  EXPECT_EQ(good({0, 1}), 1);
  EXPECT_EQ(good({8, 3}), 2);
  EXPECT_EQ(good({1, 3}), 0);
  const Summary summary = Summarize(record, {2, 0});
  EXPECT_EQ(summary.requests, 3);
  EXPECT_EQ(summary.answered, 2);
  EXPECT_EQ(summary.failed.at("RESOURCE_EXHAUSTED"), 1);
  EXPECT_EQ(summary.ttft_ms.mean, 5);
  EXPECT_EQ(summary.tpot_ms.p50, 1);
  EXPECT_EQ(summary.requests_per_s, 1);
  EXPECT_EQ(summary.output_tokens_per_s, 2.5);
  EXPECT_EQ(summary.goodput_per_s, 0.5);
}

TEST(ReportTest, TableAndJsonSayTheSame) {
  const RunRecord record = Three();
  const Objectives objectives{2, 0};
  const Summary summary = Summarize(record, objectives);
  ClusterShape shape;
  shape.stages = {{0, 2}, {2, 5}};
  const Workload workload{{}, 0, "three"};
  const ReportedRun run{shape, workload, record, summary, objectives};
  const std::string table = ReportTable(run);
  EXPECT_THAT(table, HasSubstr("1 chain of 2 stages (2,3 layers), 1 decode service"));
  EXPECT_THAT(table, HasSubstr("2 of 3 answered in 2.0 s of virtual time, 1 RESOURCE_EXHAUSTED "
                               "(the first: the context is <too> long)"));
  EXPECT_THAT(table, HasSubstr("TTFT                  5.0        2.0        8.0        8.0"));
  EXPECT_THAT(table, HasSubstr("0.500 requests/s, 33.3 % of all: TTFT <= 2 ms"));
  const auto json = nlohmann::json::parse(ReportJson(run));
  EXPECT_EQ(json["ttft_ms"]["mean"], 5);
  EXPECT_EQ(json["failed_requests"]["RESOURCE_EXHAUSTED"], 1);
  ASSERT_EQ(json["requests"].size(), 3u);
  for (const auto& row : json["requests"]) {
    EXPECT_EQ(row.size(), json["request_columns"].size());
  }
  EXPECT_TRUE(json["requests"][2][3].is_null()) << "it had no first token";
}

TEST(RunTimelineTest, HasARowForEachStage) {
  RunRecord record = Three();
  record.chains[0].stages[0].computes = {{0, 1000, {{0, 0, 64}}},
                                         {1000, 3000, {{0, 64, 32}, {1, 0, 96}}}};
  record.chains.push_back(record.chains[0]);
  record.timeline_full = true;
  const timeline::Timeline drawn = TimelineOf(record);
  EXPECT_TRUE(drawn.full);
  ASSERT_EQ(drawn.chains.size(), 2u);
  ASSERT_EQ(drawn.chains[1].size(), 2u);
  EXPECT_EQ(drawn.chains[1][0].name, "chain 1, stage 0");
  ASSERT_EQ(drawn.chains[1][0].computes.size(), 2u);
  EXPECT_EQ(drawn.chains[1][0].computes[1].items, record.chains[0].stages[0].computes[1].items);
  EXPECT_TRUE(drawn.chains[1][1].computes.empty());
}

}  // namespace
}  // namespace baton::simulator
