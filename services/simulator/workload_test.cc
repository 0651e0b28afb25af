#include "services/simulator/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"

namespace baton::simulator {
namespace {

using testing::HasSubstr;

std::vector<int> Drawn(const std::string& text, int count) {
  const auto lengths = LengthDistribution::Parse(text, "prompt_tokens");
  EXPECT_TRUE(lengths.ok()) << lengths.status();
  std::vector<int> drawn;
  drawn.reserve(static_cast<size_t>(count));
  Random random(7);
  for (int i = 0; i < count; ++i) drawn.push_back(lengths->Draw(random));
  std::sort(drawn.begin(), drawn.end());
  return drawn;
}

TEST(LengthDistributionTest, EachNotationDrawsWhatItSays) {
  EXPECT_EQ(Drawn("4096", 3), (std::vector<int>{4096, 4096, 4096}));
  const std::vector<int> range = Drawn("10-12", 300);
  EXPECT_EQ(range.front(), 10);
  EXPECT_EQ(range.back(), 12);
  EXPECT_NEAR(static_cast<double>(std::count(range.begin(), range.end(), 11)), 100, 30);
  const std::vector<int> lognormal = Drawn("lognormal:2000:0.5", 4001);
  EXPECT_NEAR(lognormal[2000], 2000, 100) << "the median";
  EXPECT_NEAR(std::log(lognormal[3366] / 2000.0), 0.5, 0.05) << "one sigma above it";
  EXPECT_EQ(Drawn("lognormal:2000:2:3000", 200).back(), 3000);
  const std::vector<int> mixed = Drawn("5@3,100-200@1", 1000);
  EXPECT_NEAR(static_cast<double>(std::count(mixed.begin(), mixed.end(), 5)), 750, 50);
  EXPECT_GE(mixed[999], 100);
}

TEST(LengthDistributionTest, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "'' has '', expected a whole number from 1 to 16777216"},
      {"0", "has '0'"},
      {"-5", "has ''"},
      {"16777217", "has '16777217'"},
      {"9-3", "begins above its end"},
      {"1-2-3", "is neither a number, a range"},
      {"normal:3:4", "is neither a number, a range"},
      {"lognormal:100", "is not lognormal:MEDIAN:SIGMA"},
      {"lognormal:100:0", "has no sigma"},
      {"lognormal:100:nan", "has no sigma"},
      {"lognormal:100:1:99", "a largest length below its median"},
      {"5@0", "has no weight"},
      {"5@1@2", "has no weight"},
      {"5,x", "'x' has 'x'"},
  };
  for (const auto& [text, words] : cases) {
    const auto lengths = LengthDistribution::Parse(text, "output_tokens");
    ASSERT_FALSE(lengths.ok()) << text;
    EXPECT_THAT(std::string(lengths.status().message()), HasSubstr(words)) << text;
    EXPECT_THAT(std::string(lengths.status().message()), HasSubstr("output_tokens")) << text;
  }
}

absl::StatusOr<std::vector<WorkloadRequest>> Parse(const std::string& text, int64_t limit = 0,
                                                   double speed = 1) {
  return ParseTrace(text, "trace.jsonl", limit, speed);
}

constexpr char kTwo[] =
    "{\"timestamp\": 1000, \"input_length\": 6955, \"output_length\": 52, \"hash_ids\": [46, 47]}\n"
    "\r\n"
    "{\"timestamp\": 3000.5, \"input_length\": 1, \"output_length\": 2}";

TEST(TraceTest, LinesAreRequestsFromTheFirstOneOn) {
  const auto requests = Parse(kTwo);
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_EQ((*requests)[0].arrival_us, 0);
  EXPECT_EQ((*requests)[0].prompt_tokens, 6955);
  EXPECT_EQ((*requests)[0].output_tokens, 52);
  EXPECT_EQ((*requests)[1].arrival_us, 2'000'500);
  EXPECT_EQ((*requests)[1].prompt_tokens, 1);
  EXPECT_EQ((*Parse(kTwo, 0, 2))[1].arrival_us, 1'000'250);
  EXPECT_EQ(Parse(kTwo, 1)->size(), 1u);
}

TEST(TraceTest, EqualHashesAreEqualTokens) {
  const auto line = [](int length, const char* hashes) {
    return absl::StrCat("{\"timestamp\": 0, \"input_length\": ", length,
                        ", \"output_length\": 1, \"hash_ids\": [", hashes, "]}\n");
  };
  const auto requests =
      Parse(line(1100, "1, 2, 3") + line(1030, "1, 9, 3") + line(1100, "1, 2") + line(9, ""));
  ASSERT_TRUE(requests.ok()) << requests.status();
  const auto prompt = [&](size_t index) { return PromptOf((*requests)[index], index); };
  const auto common = [&](size_t a, size_t b) {
    const std::vector<int32_t> one = prompt(a);
    const std::vector<int32_t> other = prompt(b);
    return std::mismatch(one.begin(), one.end(), other.begin(), other.end()).first - one.begin();
  };
  EXPECT_EQ(prompt(0).size(), 1100u);
  EXPECT_EQ(common(0, 1), 512);
  EXPECT_EQ(common(0, 2), 1024);
  EXPECT_TRUE(prompt(3).empty());
  EXPECT_EQ(Parse(line(1100, "1, 2, 3, 4"))->front().hash_ids.size(), 3u);
  for (const char* wrong : {"-1", "1.5", "\"x\""}) {
    const auto refused = Parse(line(1100, wrong));
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("trace.jsonl:1: hash_ids"));
  }
}

TEST(TraceTest, WhatIsWrongIsNamedByFileLineAndField) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\"input_length\": 1, \"output_length\": 1}",
       "trace.jsonl:3: timestamp is missing, expected milliseconds from 0"},
      {"{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}", "timestamp is -1"},
      {"{\"timestamp\": 1e300, \"input_length\": 1, \"output_length\": 1}", "timestamp is 1e+300"},
      {"{\"timestamp\": \"x\", \"input_length\": 1, \"output_length\": 1}", "timestamp is \"x\""},
      {"{\"timestamp\": 9, \"output_length\": 1}",
       "trace.jsonl:3: input_length is missing, expected a whole number from 1 to 16777216"},
      {"{\"timestamp\": 9, \"input_length\": 0, \"output_length\": 1}", "input_length is 0"},
      {"{\"timestamp\": 9, \"input_length\": 1.5, \"output_length\": 1}", "input_length is 1.5"},
      {"{\"timestamp\": 9, \"input_length\": 1, \"output_length\": 99999999999}",
       "trace.jsonl:3: output_length is 99999999999"},
      {"{\"timestamp\": 8, \"input_length\": 1, \"output_length\": 1}",
       "trace.jsonl:3: timestamp is before that of the line before"},
      {"[1]", "trace.jsonl:3: is no JSON object"},
      {"{\"timestamp\": 9", "trace.jsonl:3: "},
      {"{\"timestamp\": 9, \"timestamp\": 9}", "trace.jsonl:3: the key \"timestamp\" stands twice"},
  };
  const std::string good = "{\"timestamp\": 9, \"input_length\": 1, \"output_length\": 1}\n\n";
  for (const auto& [line, words] : cases) {
    const auto requests = Parse(good + line + "\n");
    ASSERT_FALSE(requests.ok()) << line;
    EXPECT_EQ(requests.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(requests.status().message()), HasSubstr(words));
  }
  EXPECT_THAT(std::string(Parse(" \n\n").status().message()), HasSubstr("has no request"));
}

TEST(TraceTest, MoreThanIsSimulatedIsRefusedAtItsLine) {
  std::string text;
  for (int64_t i = 0; i <= kRequestsMax; ++i) {
    text += "{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n";
  }
  EXPECT_THAT(std::string(Parse(text).status().message()),
              HasSubstr("trace.jsonl:200001: is one request too many"));
  EXPECT_EQ(Parse(text, 5)->size(), 5u);
}

v1::Options Drawing(const std::string& arrival, const std::string& rate) {
  v1::Options options;
  options.set_arrival(arrival);
  options.set_request_rate(rate);
  options.set_trace_speed("1");
  options.set_concurrency(3);
  options.set_requests(2000);
  options.set_prompt_tokens("100-200");
  options.set_output_tokens("10");
  options.set_workload_seed(5);
  return options;
}

TEST(WorkloadTest, RequestsComeAsTheArrivalSays) {
  const auto poisson = MakeWorkload(Drawing("poisson", "4"));
  ASSERT_TRUE(poisson.ok()) << poisson.status();
  ASSERT_EQ(poisson->requests.size(), 2000u);
  const double seconds = static_cast<double>(poisson->requests.back().arrival_us) * 1e-6;
  EXPECT_NEAR(seconds, 500, 40) << "2000 requests, 4 a second";
  EXPECT_NE(poisson->requests[1].arrival_us - poisson->requests[0].arrival_us,
            poisson->requests[2].arrival_us - poisson->requests[1].arrival_us);
  const auto constant = MakeWorkload(Drawing("constant", "0.5"));
  EXPECT_EQ(constant->requests[3].arrival_us, 6'000'000);
  const auto burst = MakeWorkload(Drawing("burst", "1"));
  EXPECT_EQ(burst->requests.back().arrival_us, 0);
  EXPECT_EQ(burst->concurrency, 0);
  EXPECT_EQ(MakeWorkload(Drawing("closed", "1"))->concurrency, 3);
}

TEST(WorkloadTest, AnotherSeedIsAnotherWorkloadAndAnotherAnswerLengthTheSamePrompts) {
  const auto lengths = [](const v1::Options& options) {
    std::vector<int> prompts;
    const auto workload = MakeWorkload(options);
    for (const WorkloadRequest& request : workload->requests) {
      prompts.push_back(request.prompt_tokens);
    }
    return prompts;
  };
  v1::Options options = Drawing("poisson", "1");
  const std::vector<int> first = lengths(options);
  EXPECT_EQ(first, lengths(options));
  options.set_output_tokens("1-100");
  EXPECT_EQ(first, lengths(options));
  options.set_workload_seed(6);
  EXPECT_NE(first, lengths(options));
}

TEST(WorkloadTest, WrongRatesNameTheirOption) {
  for (const char* rate : {"", "x", "0", "-1", "nan", "inf", "1e9", "1e-9"}) {
    const absl::Status status = MakeWorkload(Drawing("poisson", rate)).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("request_rate")) << rate;
  }
  v1::Options trace = Drawing("poisson", "1");
  trace.set_trace("/nonexistent/trace.jsonl");
  EXPECT_EQ(MakeWorkload(trace).status().code(), absl::StatusCode::kNotFound);
  trace.set_trace_speed("fast");
  EXPECT_THAT(std::string(MakeWorkload(trace).status().message()), HasSubstr("trace_speed"));
}

}  // namespace
}  // namespace baton::simulator
