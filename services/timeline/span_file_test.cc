#include "services/timeline/span_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/tracing/otlp_encode.h"

namespace baton::timeline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct ChunkSpan {
  uint64_t request = 1;  // Its trace, and its chunks' parent.
  int64_t begin_us = 0;
  int64_t end_us = 0;
  int64_t plan = 1;
  int64_t token_begin = 0;
  int64_t tokens = 64;
};

constexpr int64_t kUnixUs = 1'700'000'000'000'000;

// What a stage writes of chunks, as its exporter does.
std::string Line(const std::string& chain, int stage, const std::vector<ChunkSpan>& chunks,
                 const std::string& rank = "") {
  std::vector<tracing::Span> spans;
  for (const ChunkSpan& chunk : chunks) {
    tracing::Span& span = spans.emplace_back();
    span.name = "prefill chunk";
    span.context.trace = {7, chunk.request};
    span.context.span = 100 + chunk.request;
    span.parent = chunk.request;
    span.begin_us = chunk.begin_us;
    span.end_us = chunk.end_us;
    span.attributes = {{"baton.stage", int64_t{stage}},
                       {"baton.plan.number", chunk.plan},
                       {"baton.chunk.token_begin", chunk.token_begin},
                       {"baton.chunk.tokens", chunk.tokens}};
  }
  tracing::Span& other = spans.emplace_back();
  other.name = "kv hand-off";
  other.context.trace = {7, 7};
  other.context.span = 1;
  tracing::ResourceAttributes resource = {{"baton.chain.id", chain},
                                          {"baton.stage", absl::StrCat(stage)}};
  if (!rank.empty()) resource.emplace_back("baton.rank", rank);
  return tracing::OtlpJsonLine(tracing::EncodeSpans(spans, resource, kUnixUs));
}

absl::StatusOr<SpanRun> Read(const std::string& text, TimelineWindow window = WindowOfMs(0, 0)) {
  std::istringstream stream(text);
  return ReadSpans(stream, "run.jsonl", window);
}

// Request 9 begins first; the second plan has chunks of both.
std::string TwoStages() {
  return absl::StrCat(Line("chain-0", 1, {{9, 2000, 3000, 1, 0, 64}, {9, 5000, 8000, 2, 64, 32}}),
                      "\n", Line("chain-0", 0, {{9, 1000, 2000, 1, 0, 64}}),
                      Line("chain-0", 0, {{4, 2000, 5000, 2, 0, 96}, {9, 2000, 5000, 2, 64, 32}}),
                      Line("chain-0", 1, {{4, 5000, 8000, 2, 0, 96}}));
}

TEST(SpanFileTest, RowsAreStagesAndAPlansChunksAreTogether) {
  const auto run = Read(TwoStages());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->spans, 10);
  EXPECT_EQ(run->requests, 2);
  EXPECT_EQ(run->begin_us, kUnixUs + 1000);
  ASSERT_EQ(run->timeline.chains.size(), 1u);
  const std::vector<Row>& rows = run->timeline.chains[0];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].name, "chain-0, stage 0");
  EXPECT_EQ(rows[1].name, "chain-0, stage 1");
  for (const Row& row : rows) {
    ASSERT_EQ(row.computes.size(), 2u);
    EXPECT_EQ(row.computes[0].items, (std::vector<ComputeRecord::Item>{{0, 0, 64}}));
    EXPECT_EQ(row.computes[1].items, (std::vector<ComputeRecord::Item>{{0, 64, 32}, {1, 0, 96}}));
  }
  EXPECT_EQ(rows[0].computes[0].begin_us, 0);
  EXPECT_EQ(rows[1].computes[1].begin_us, 4000);
  EXPECT_EQ(rows[1].computes[1].end_us, 7000);
}

TEST(SpanFileTest, ChainsStagesAndRanksAreInOrder) {
  const auto run =
      Read(absl::StrCat(Line("b", 10, {{1, 0, 1}}), Line("b", 9, {{1, 0, 1}}),
                        Line("a", 0, {{1, 0, 1}}, "1"), Line("a", 0, {{1, 0, 1}}, "0")));
  ASSERT_TRUE(run.ok()) << run.status();
  std::vector<std::string> names;
  for (const auto& chain : run->timeline.chains) {
    for (const Row& row : chain) names.push_back(row.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"a, stage 0, rank 0", "a, stage 0, rank 1",
                                             "b, stage 9", "b, stage 10"}));
  EXPECT_EQ(run->timeline.chains.size(), 2u);
}

TEST(SpanFileTest, PlansOfTwoEpochsWithOneNumberAreTwo) {
  const auto run = Read(Line("a", 0, {{1, 0, 10, 1}, {1, 20, 30, 1}}));
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->timeline.chains[0][0].computes.size(), 2u);
}

TEST(SpanFileTest, AWindowKeepsWhatBeginsInIt) {
  const auto run = Read(TwoStages(), {1000, 4000, 100});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->timeline.chains[0][0].computes.size(), 1u);
  EXPECT_EQ(run->timeline.chains[0][1].computes.size(), 1u);
  EXPECT_FALSE(run->timeline.full);
  EXPECT_EQ(run->requests, 2) << "numbers do not depend on the window";

  const auto few = Read(TwoStages(), {0, 1 << 20, 4});
  ASSERT_TRUE(few.ok()) << few.status();
  EXPECT_TRUE(few->timeline.full);
  EXPECT_EQ(few->timeline.chains[0][0].computes.size(), 2u);
  EXPECT_EQ(few->timeline.chains[0][1].computes.size(), 1u) << "its second begins last";
}

// What an OpenTelemetry Collector's file exporter adds is none of ours.
TEST(SpanFileTest, OtherFieldsAreLeftAlone) {
  const std::string line =
      absl::StrReplaceAll(Line("a", 0, {{1, 0, 1}}),
                          {{"{\"resourceSpans\":[{", "{\"resourceSpans\":[{\"schemaUrl\":\"x\","},
                           {"\"startTimeUnixNano\":\"1700000000000000000\"",
                            "\"startTimeUnixNano\":1700000000000000000"}});
  const auto run = Read(line);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->requests, 1);
}

TEST(SpanFileTest, SaysTheLineAndTheFieldOfWhatIsWrong) {
  const std::string good = Line("chain-0", 0, {{1, 5, 10}});
  struct Case {
    std::string from;
    std::string to;
    std::vector<std::string> says;
  };
  const std::string span = "resourceSpans[0].scopeSpans[0].spans[0]";
  const std::vector<Case> cases = {
      {good, "{\"resourceSpans\":[\n", {"line 2: "}},
      {good, "7\n", {"the line", "no object", "7"}},
      {good, "{}\n", {"resourceSpans", "missing", "a list"}},
      {good, "{\"resourceSpans\": 3}\n", {"resourceSpans", "a list", "3"}},
      {good, "{\"resourceSpans\": [3]}\n", {"resourceSpans[0]", "an object", "3"}},
      {"\"resource\":", "\"resort\":", {"resourceSpans[0].resource", "missing"}},
      {"baton.chain.id", "chain", {"resourceSpans[0].resource.attributes", "baton.chain.id"}},
      {"\"startTimeUnixNano\":\"1700000000000005000\"",
       "\"startTimeUnixNano\":\"soon\"",
       {span + ".startTimeUnixNano", "whole number", "soon"}},
      {"\"endTimeUnixNano\":\"1700000000000010000\"",
       "\"endTimeUnixNano\":\"1700000000000004000\"",
       {span + ".endTimeUnixNano", "from 1700000000000005000"}},
      {"\"parentSpanId\":", "\"parent\":", {span + ".parentSpanId", "missing", "text"}},
      {"baton.plan.number", "plan", {span + ".attributes", "has no baton.plan.number"}},
      {"\"intValue\":\"64\"",
       "\"intValue\":\"-64\"",
       {span + ".attributes[3].value.intValue", "-64"}},
      {"\"intValue\":\"64\"", "\"intValue\":\"0\"", {span, "a chunk without tokens"}},
      {"\"intValue\":\"64\"",
       "\"doubleValue\":64.5",
       {span + ".attributes[3].value.intValue", "missing"}},
      {"\"name\":\"prefill chunk\"", "\"name\":7", {span + ".name", "text", "7"}},
  };
  for (const Case& bad : cases) {
    ASSERT_THAT(good, HasSubstr(bad.from));
    const auto run = Read(absl::StrCat(good, absl::StrReplaceAll(good, {{bad.from, bad.to}})));
    ASSERT_FALSE(run.ok()) << bad.to;
    EXPECT_EQ(run.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string message(run.status().message());
    EXPECT_EQ(message.rfind("run.jsonl: line 2: ", 0), 0u) << message;
    for (const std::string& part : bad.says) EXPECT_THAT(message, HasSubstr(part));
  }
}

TEST(SpanFileTest, AFileWithoutAChunkSaysWhatItHas) {
  EXPECT_EQ(Read("").status().code(), absl::StatusCode::kNotFound);
  const auto others = Read(Line("a", 0, {}));
  EXPECT_EQ(others.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(others.status().message()),
              AllOf(HasSubstr("run.jsonl"), HasSubstr("1 spans in 1 lines")));
}

}  // namespace
}  // namespace baton::timeline
