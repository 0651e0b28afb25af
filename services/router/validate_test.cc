#include "services/router/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "common/base/status.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

RequestLimits Limits() {
  RequestLimits limits;
  limits.served_model_name = "tiny";
  limits.vocab_size = 100;
  limits.max_context_tokens = 50;
  limits.longest_token_bytes = 4;
  limits.default_max_tokens = 16;
  limits.request_timeout_ms = 1000;
  return limits;
}

GenerateCall GoodCall() {
  GenerateCall call;
  call.prompt = "hello";
  return call;
}

struct Row {
  std::string field;
  std::function<void(GenerateCall&)> change;
  std::string message = "";
};

std::vector<Row> BadSampling() {
  const auto sampling = [](auto change) {
    return [change](GenerateCall& call) { change(call.sampling); };
  };
  return {
      {"temperature", sampling([](auto& s) { s.temperature = -0.1; }), "is -0.1"},
      {"temperature", sampling([](auto& s) { s.temperature = kNan; }), "nan"},
      {"temperature", sampling([](auto& s) { s.temperature = kInfinity; })},
      {"temperature", sampling([](auto& s) { s.temperature = 1e300; })},
      {"top_p", sampling([](auto& s) { s.top_p = 0; }), "greater than 0 and at most 1, is 0"},
      {"top_p", sampling([](auto& s) { s.top_p = 1.5; })},
      {"top_p", sampling([](auto& s) { s.top_p = kNan; })},
      {"top_p", sampling([](auto& s) { s.top_p = -kInfinity; })},
      {"min_p", sampling([](auto& s) { s.min_p = -0.5; })},
      {"min_p", sampling([](auto& s) { s.min_p = 1.01; })},
      {"min_p", sampling([](auto& s) { s.min_p = kNan; })},
      {"top_k", sampling([](auto& s) { s.top_k = -2; })},
      {"top_k", sampling([](auto& s) { s.top_k = int64_t{1} << 31; })},
      {"max_tokens", sampling([](auto& s) { s.max_tokens = 0; }), "from 1 to 2147483647, is 0"},
      {"max_tokens", sampling([](auto& s) { s.max_tokens = -5; })},
      {"max_tokens", sampling([](auto& s) { s.max_tokens = int64_t{1} << 40; })},
      {"min_tokens", sampling([](auto& s) { s.min_tokens = -1; })},
      {"min_tokens", sampling([](auto& s) {
         s.max_tokens = 4;
         s.min_tokens = 5;
       }),
       "at most max_tokens = 4, is 5"},
      {"min_tokens", sampling([](auto& s) { s.min_tokens = 17; }), "(the default)"},
      {"top_logprobs", sampling([](auto& s) {
         s.logprobs = true;
         s.top_logprobs = 21;
       }),
       "from 0 to 20"},
      {"top_logprobs", sampling([](auto& s) {
         s.logprobs = true;
         s.top_logprobs = -1;
       })},
      {"top_logprobs", sampling([](auto& s) { s.top_logprobs = 1; }), "needs logprobs"},
      {"stop", sampling([](auto& s) { s.stop = {""}; }), "empty"},
      {"stop", sampling([](auto& s) { s.stop = {std::string(1025, 'x')}; }), "1025"},
      {"stop", sampling([](auto& s) { s.stop.assign(17, "x"); }), "at most 16"},
      {"stop", sampling([](auto& s) {
         s.stop = {"ok", "\xff"};
       }),
       "UTF-8"},
      {"stop_token_ids", sampling([](auto& s) { s.stop_token_ids = {100}; }), "0 to 99"},
      {"stop_token_ids", sampling([](auto& s) {
         s.stop_token_ids = {1, -1};
       }),
       "index 1"},
      {"stop_token_ids", sampling([](auto& s) { s.stop_token_ids.assign(65, 1); })},
  };
}

std::vector<Row> BadRequests() {
  return {
      {"request_id", [](auto& c) { c.request_id = std::string(129, 'a'); }, "has 129"},
      {"request_id", [](auto& c) { c.request_id = "a\nb"; }, "printable"},
      {"request_id", [](auto& c) { c.request_id = "\xc3\xa9"; }},
      {"timeout_ms", [](auto& c) { c.timeout_ms = -1; }},
      {"prompt", [](auto& c) { c.prompt = ""; }, "empty"},
      {"prompt", [](auto& c) { c.prompt = "ab\xc3"; }, "byte 2"},
      {"prompt", [](auto& c) { c.prompt = std::string(201, 'a'); }, "has 201 bytes"},
      {"prompt", [](auto& c) { c.prompt = TokenIdsPrompt(); }, "empty"},
      {"prompt",
       [](auto& c) {
         c.prompt = TokenIdsPrompt{1, 100};
       },
       "100 at index 1"},
      {"prompt", [](auto& c) { c.prompt = TokenIdsPrompt{-1}; }},
      {"prompt", [](auto& c) { c.prompt = TokenIdsPrompt{int64_t{1} << 40}; }},
      {"prompt", [](auto& c) { c.prompt = TokenIdsPrompt(50, 1); }, "has 50 tokens"},
      {"prompt", [](auto& c) { c.prompt = ChatPrompt{}; }, "empty"},
      {"prompt[0].content",
       [](auto& c) {
         c.prompt = ChatPrompt{{{"user", "\xff"}}};
       }},
      {"prompt[0].role",
       [](auto& c) {
         c.prompt = ChatPrompt{{{"\xff", "x"}}};
       }},
      {"prompt",
       [](auto& c) {
         c.prompt = ChatPrompt{{{"user", std::string(150, 'a')}, {"user", std::string(51, 'a')}}};
       },
       "has 201 bytes"},
  };
}

TEST(ValidateTest, BadFieldsAreRefusedByName) {
  std::vector<Row> rows = BadSampling();
  for (Row& row : BadRequests()) rows.push_back(std::move(row));
  for (size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(std::to_string(i) + " " + rows[i].field);
    GenerateCall call = GoodCall();
    rows[i].change(call);
    const absl::Status status = CheckCall(call, Limits());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(FieldOf(status), rows[i].field);
    EXPECT_THAT(std::string(status.message()), HasSubstr(rows[i].message));
  }
}

TEST(ValidateTest, FieldsAreCalledAsTheClientCallsThem) {
  GenerateCall call = GoodCall();
  call.names.prompt = "messages";
  call.names.max_tokens = "max_completion_tokens";
  call.prompt = ChatPrompt{};
  EXPECT_EQ(FieldOf(CheckCall(call, Limits())), "messages");
  call.sampling.max_tokens = 0;
  EXPECT_EQ(FieldOf(CheckCall(call, Limits())), "max_completion_tokens");
}

TEST(ValidateTest, AnotherModelIsNotFound) {
  GenerateCall call = GoodCall();
  call.model = "other";
  const absl::Status status = CheckCall(call, Limits());
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FieldOf(status), "model");
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"tiny\""));
  call.model = "tiny";
  EXPECT_TRUE(CheckCall(call, Limits()).ok());
}

TEST(ValidateTest, TheBordersAreIn) {
  GenerateCall call = GoodCall();
  SamplingRequest& s = call.sampling;
  s.temperature = 0;
  s.top_p = 1;
  s.min_p = 1;
  s.top_k = 0;
  s.max_tokens = 2147483647;
  s.min_tokens = 2147483647;
  s.logprobs = true;
  s.top_logprobs = 20;
  s.stop.assign(16, std::string(1024, 'x'));
  s.stop_token_ids.assign(64, 99);
  call.request_id = std::string(128, '~');
  call.prompt = TokenIdsPrompt(49, 99);
  EXPECT_EQ(CheckCall(call, Limits()), absl::OkStatus());
}

TEST(ValidateTest, SamplingIsCompletedAndBoundedByTheContext) {
  const v1::SamplingParams defaults = ResolveSampling({}, 10, 77, Limits());
  EXPECT_EQ(defaults.temperature(), 1);
  EXPECT_EQ(defaults.top_k(), -1);
  EXPECT_EQ(defaults.top_p(), 1);
  EXPECT_TRUE(defaults.has_min_p());
  EXPECT_EQ(defaults.seed(), 77);
  EXPECT_EQ(defaults.max_tokens(), 16);

  SamplingRequest request;
  request.seed = 0;
  request.max_tokens = 1000;
  request.min_tokens = 900;
  request.temperature = 0;
  request.top_p = 1e-300;
  const v1::SamplingParams bounded = ResolveSampling(request, 10, 77, Limits());
  EXPECT_EQ(bounded.seed(), 0);
  EXPECT_EQ(bounded.max_tokens(), 40);
  EXPECT_EQ(bounded.min_tokens(), 40);
  EXPECT_EQ(bounded.temperature(), 0);
  EXPECT_GT(bounded.top_p(), 0);
}

}  // namespace
}  // namespace baton::router
