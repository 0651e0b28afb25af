#include "services/router/decision_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LoggedDecision Logged() {
  auto considered = std::make_shared<Considered>();
  considered->asked = {.prompt_tokens = 4400, .has_key = true, .length_place = 0.25};
  Candidate first;
  first.cached_tokens = 512;
  first.queued_tokens = 9'000'000'000;
  first.ring_distance = ~uint64_t{0};
  first.queue_us = 1234.5;
  Candidate second;
  second.full = second.beside = true;
  second.wait_us = 1e9;
  considered->candidates = {first, second};
  considered->names = {{"c0", "d0"}, {"c1", "d\"1"}};
  considered->picked = 1;
  LoggedDecision logged;
  logged.request_id = "r1";
  logged.policy = "cost";
  logged.unix_ms = 1'700'000'000'123;
  logged.outcome = "ok";
  logged.decision = {2, considered, 0, 1500, 512};
  return logged;
}

TEST(DecisionLogTest, ALineSaysAllThatAPolicyGoesBy) {
  const LoggedDecision written = Logged();
  const std::string line = LineOf(written);
  const absl::StatusOr<LoggedDecision> read = ParseDecision(line);
  ASSERT_EQ(read.status(), absl::OkStatus()) << line;
  EXPECT_EQ(LineOf(*read), line);
  EXPECT_EQ(read->request_id, "r1");
  EXPECT_EQ(read->unix_ms, 1'700'000'000'123);
  EXPECT_EQ(read->decision.attempt, 2);
  EXPECT_EQ(read->decision.ttft_us, 1500);
  EXPECT_EQ(read->decision.considered->picked, 1u);
  const Candidate& first = read->decision.considered->candidates[0];
  EXPECT_EQ(first.queued_tokens, 9'000'000'000);
  EXPECT_EQ(first.ring_distance, ~uint64_t{0});
  EXPECT_EQ(first.queue_us, 1234.5);
  EXPECT_EQ(read->decision.considered->names[1].second, "d\"1");
}

TEST(DecisionLogTest, AnIdThatIsNoTextIsWrittenAllTheSame) {
  LoggedDecision logged = Logged();
  logged.request_id = "\xff\xfe";
  EXPECT_EQ(ParseDecision(LineOf(logged)).status(), absl::OkStatus());
}

TEST(DecisionLogTest, WhatIsNoDecisionIsRefused) {
  std::string line = LineOf(Logged());
  EXPECT_EQ(ParseDecision("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseDecision("[]").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseDecision(line.substr(0, line.size() / 2)).status().code(),
            absl::StatusCode::kInvalidArgument);
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"\"picked\":1", "\"picked\":2"},
                                                        {"\"picked\":1", "\"picked\":-1"},
                                                        {"\"place\":", "\"places\":"},
                                                        {"\"full\":true", "\"full\":1"},
                                                        {"\"policy\":\"cost\"", "\"policy\":7"}}) {
    std::string broken = line;
    const size_t at = broken.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    broken.replace(at, from.size(), to);
    EXPECT_FALSE(ParseDecision(broken).ok()) << to;
  }
}

class DecisionFileTest : public ::testing::Test {
 protected:
  std::vector<std::string> Lines() const {
    std::ifstream file(path_);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

  const std::string path_ = std::string(std::getenv("TEST_TMPDIR")) + "/decisions.jsonl";
};

TEST_F(DecisionFileTest, EachAttemptHasItsLine) {
  const auto log = DecisionLog::Open(path_, Policy::kLeastLoad);
  ASSERT_EQ(log.status(), absl::OkStatus());
  FinishCall end;
  end.outcome = FinishReason::kStop;
  end.decisions = {Logged().decision, Logged().decision};
  end.decisions[0].failure = "d0 died";
  (*log)->Write("r7", end, /*now_us=*/5'000, /*unix_ms=*/1'000);
  end.outcome = absl::UnavailableError("c1 died");
  (*log)->Write("r8", end, 5'000, 1'000);
  for (int i = 0; i < 2000 && Lines().size() < 4; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::vector<std::string> outcomes;
  for (const std::string& line : Lines()) {
    const auto read = ParseDecision(line);
    ASSERT_EQ(read.status(), absl::OkStatus());
    EXPECT_EQ(read->policy, "least_load");
    EXPECT_EQ(read->unix_ms, 995);
    outcomes.push_back(read->outcome);
  }
  EXPECT_THAT(outcomes, ElementsAre("d0 died", "ok", "d0 died", "c1 died"));
}

TEST_F(DecisionFileTest, AFileThatCannotBeOpenedIsAnError) {
  const auto log = DecisionLog::Open(path_ + "/no/such/file", Policy::kCost);
  EXPECT_THAT(std::string(log.status().message()), HasSubstr("--decision-log"));
}

}  // namespace
}  // namespace baton::router
