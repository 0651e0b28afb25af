#include "services/router/traffic_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kSecond = 1'000'000;

class TrafficLogTest : public ::testing::Test {
 protected:
  TrafficLog Make(bool requests) {
    return TrafficLog(requests,
                      [this](std::string_view message, std::initializer_list<LogField> fields) {
                        lines_.push_back(TextRecord(message, fields));
                      });
  }
  static RequestEnd End() {
    RequestEnd end;
    end.request_id = "req-1";
    end.endpoint = Endpoint::kChatCompletions;
    end.reason = FinishReason::kLength;
    end.duration_us = 1'500'000;
    end.prompt_tokens = 40;
    end.completion_tokens = 11;
    end.ttft_us = 250'500;
    end.decode_us = 200'000;
    end.chain_id = "chain-0";
    end.decode_instance = "decode-0";
    end.attempts = 1;
    return end;
  }

  std::vector<std::string> lines_;
};

TEST_F(TrafficLogTest, ARequestIsOneLine) {
  TrafficLog log = Make(true);
  log.LogEnd(End());
  EXPECT_THAT(
      lines_,
      ElementsAre("request id=req-1 endpoint=chat_completions status=OK "
                  "finish=length tokens_in=40 tokens_out=11 cached=0 ttft_ms=250.5 "
                  "tpot_ms=20 e2e_ms=1500 chain=chain-0 decode=decode-0 attempts=1 resumes=0 "
                  "trace_id=\"\" error=\"\""));
}

TEST_F(TrafficLogTest, WhatFailedSaysWhy) {
  TrafficLog log = Make(true);
  RequestEnd end = End();
  end.status = absl::UnavailableError("decode d0 has left");
  end.completion_tokens = 0;
  end.trace_id = "0af7";
  log.LogEnd(end);
  log.LogRefused(Endpoint::kCompletions, "bad\nid", "0af8",
                 absl::InvalidArgumentError("top_p: odd"));
  EXPECT_THAT(lines_,
              ElementsAre("request id=req-1 endpoint=chat_completions status=UNAVAILABLE "
                          "finish=error tokens_in=40 tokens_out=0 cached=0 ttft_ms=- tpot_ms=- "
                          "e2e_ms=1500 chain=chain-0 decode=decode-0 attempts=1 resumes=0 "
                          "trace_id=0af7 error=\"decode d0 has left\"",
                          "request id=bad\\nid endpoint=completions status=INVALID_ARGUMENT "
                          "trace_id=0af8 error=\"top_p: odd\""));
}

TEST_F(TrafficLogTest, RequestLinesCanBeTurnedOff) {
  TrafficLog log = Make(false);
  log.LogEnd(End());
  log.LogRefused(Endpoint::kCompletions, "x", "", absl::InvalidArgumentError("odd"));
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(TrafficLogTest, RatesComeEveryTenSecondsWhileThereIsTraffic) {
  TrafficLog log = Make(false);
  for (int64_t second = 1; second < 100; ++second) log.Wake(second * kSecond, {}, 1);
  EXPECT_THAT(lines_, IsEmpty());
  RouterLoad load;
  load.in_flight = 3;
  load.waiting = 1;
  load.prefilling = 1;
  load.decoding = 1;
  log.CountPrompt(1000);
  log.Wake(100 * kSecond, load, 2);
  for (int i = 0; i < 50; ++i) log.CountToken();
  log.LogEnd(End());
  log.Wake(109 * kSecond, load, 2);
  EXPECT_THAT(lines_, IsEmpty());
  log.Wake(110 * kSecond, load, 2);
  EXPECT_THAT(lines_, ElementsAre("traffic requests=1 tokens_in_per_s=100 tokens_out_per_s=5 "
                                  "running=2 waiting=1 ready_pairs=2"));
  lines_.clear();
  // Nothing happens, but requests are there: that is worth a line.
  log.Wake(120 * kSecond, load, 2);
  EXPECT_THAT(lines_, ElementsAre("traffic requests=0 tokens_in_per_s=0 tokens_out_per_s=0 "
                                  "running=2 waiting=1 ready_pairs=2"));
  lines_.clear();
  for (int64_t second = 121; second < 200; ++second) log.Wake(second * kSecond, {}, 2);
  EXPECT_THAT(lines_, IsEmpty());
}

}  // namespace
}  // namespace baton::router
