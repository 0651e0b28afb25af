#include "services/router/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "common/base/status.h"
#include "common/types/limits.h"

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

void AddBiases(v1::SamplingParams& sampling, const std::vector<std::pair<int, double>>& biases) {
  for (const auto& [id, bias] : biases) {
    v1::LogitBias& entry = *sampling.add_logit_bias();
    entry.set_token_id(id);
    entry.set_bias(static_cast<float>(bias));
  }
}
void AddStops(v1::SamplingParams& sampling, const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) sampling.add_stop(stop);
}
void AddStopIds(v1::SamplingParams& sampling, const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) sampling.add_stop_token_ids(id);
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
      {"temperature", sampling([](auto& s) { s.set_temperature(-0.1); }), "is -0.1"},
      {"temperature", sampling([](auto& s) { s.set_temperature(kNan); }), "nan"},
      {"temperature", sampling([](auto& s) { s.set_temperature(kInfinity); })},
      {"temperature", sampling([](auto& s) { s.set_temperature(-kInfinity); })},
      {"top_p", sampling([](auto& s) { s.set_top_p(0); }), "greater than 0 and at most 1, is 0"},
      {"top_p", sampling([](auto& s) { s.set_top_p(1.5); })},
      {"top_p", sampling([](auto& s) { s.set_top_p(kNan); })},
      {"top_p", sampling([](auto& s) { s.set_top_p(-kInfinity); })},
      {"min_p", sampling([](auto& s) { s.set_min_p(-0.5); })},
      {"min_p", sampling([](auto& s) { s.set_min_p(1.01); })},
      {"min_p", sampling([](auto& s) { s.set_min_p(kNan); })},
      {"top_k", sampling([](auto& s) { s.set_top_k(-2); })},
      {"max_tokens", sampling([](auto& s) { s.set_max_tokens(-5); }),
       "from 0 to 2147483647, is -5"},
      {"min_tokens", sampling([](auto& s) { s.set_min_tokens(-1); })},
      {"min_tokens", sampling([](auto& s) {
         s.set_max_tokens(4);
         s.set_min_tokens(5);
       }),
       "at most max_tokens = 4, is 5"},
      {"min_tokens", sampling([](auto& s) { s.set_min_tokens(17); }), "(the default)"},
      {"top_logprobs", sampling([](auto& s) {
         s.set_logprobs(true);
         s.set_top_logprobs(21);
       }),
       "from 0 to 20"},
      {"top_logprobs", sampling([](auto& s) {
         s.set_logprobs(true);
         s.set_top_logprobs(-1);
       })},
      {"top_logprobs", sampling([](auto& s) { s.set_top_logprobs(1); }), "needs logprobs"},
      {"presence_penalty", sampling([](auto& s) { s.set_presence_penalty(2.1); }), "from -2 to 2"},
      {"frequency_penalty", sampling([](auto& s) { s.set_frequency_penalty(-2.1); })},
      {"frequency_penalty", sampling([](auto& s) { s.set_frequency_penalty(kNan); })},
      {"repetition_penalty", sampling([](auto& s) { s.set_repetition_penalty(0); }),
       "greater than 0"},
      {"repetition_penalty", sampling([](auto& s) { s.set_repetition_penalty(2.5); })},
      {"logit_bias", sampling([](auto& s) {
         AddBiases(s, {{1, 100.5}});
       }),
       "from -100 to 100"},
      {"logit_bias", sampling([](auto& s) {
         AddBiases(s, {{1, kNan}});
       })},
      {"logit_bias", sampling([](auto& s) {
         AddBiases(s, {{100, 1}});
       }),
       "outside the vocabulary"},
      {"logit_bias", sampling([](auto& s) {
         AddBiases(s, {{3, 1}, {5, 1}, {3, 2}});
       }),
       "token 3 twice"},
      {"logit_bias", sampling([](auto& s) {
         AddBiases(s, std::vector<std::pair<int, double>>(1025, {1, 1}));
       }),
       "at most 1024"},
      {"stop", sampling([](auto& s) { AddStops(s, {""}); }), "empty"},
      {"stop", sampling([](auto& s) { AddStops(s, {std::string(1025, 'x')}); }), "1025"},
      {"stop", sampling([](auto& s) { AddStops(s, std::vector<std::string>(17, "x")); }),
       "at most 16"},
      {"stop", sampling([](auto& s) {
         AddStops(s, {"ok", "\xff"});
       }),
       "UTF-8"},
      {"stop_token_ids", sampling([](auto& s) { AddStopIds(s, {100}); }), "0 to 99"},
      {"stop_token_ids", sampling([](auto& s) {
         AddStopIds(s, {1, -1});
       }),
       "index 1"},
      {"stop_token_ids", sampling([](auto& s) { AddStopIds(s, std::vector<int32_t>(65, 1)); })},
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
      {"truncate_prompt_tokens", [](auto& c) { c.truncate_prompt_tokens = 0; }, "-1 or from 1"},
      {"truncate_prompt_tokens", [](auto& c) { c.truncate_prompt_tokens = 51; }, "is 51"},
      {"max_tokens",
       [](auto& c) {
         c.prompt = TokenIdsPrompt(40, 1);
         c.sampling.set_max_tokens(11);
       },
       "is 50 tokens, but 40 of the prompt and 11 of max_tokens are 51"},
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
  call.sampling.set_max_tokens(-1);
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
  v1::SamplingParams& s = call.sampling;
  s.set_temperature(0);
  s.set_top_p(1);
  s.set_min_p(1);
  s.set_top_k(0);
  s.set_max_tokens(1);
  s.set_min_tokens(1);
  s.set_logprobs(true);
  s.set_top_logprobs(20);
  AddStops(s, std::vector<std::string>(16, std::string(1024, 'x')));
  AddStopIds(s, std::vector<int32_t>(64, 99));
  s.set_presence_penalty(-2);
  s.set_frequency_penalty(2);
  s.set_repetition_penalty(2);
  AddBiases(s, {{0, -100}, {99, 100}});
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

  EXPECT_EQ(defaults.repetition_penalty(), 1);
  EXPECT_EQ(defaults.presence_penalty(), 0);

  v1::SamplingParams request;
  request.set_seed(0);
  request.set_min_tokens(15);
  request.set_temperature(0);
  request.set_top_p(std::numeric_limits<float>::min());
  request.set_repetition_penalty(std::numeric_limits<float>::min());
  request.set_frequency_penalty(0.5);
  request.set_prompt_logprobs(true);
  AddBiases(request, {{7, -1.5}});
  const v1::SamplingParams bounded = ResolveSampling(request, 40, 77, Limits());
  EXPECT_EQ(bounded.seed(), 0);
  EXPECT_EQ(bounded.max_tokens(), 10);
  EXPECT_EQ(bounded.min_tokens(), 10);
  EXPECT_EQ(bounded.temperature(), 0);
  EXPECT_GT(bounded.top_p(), 0);
  EXPECT_GT(bounded.repetition_penalty(), 0);
  EXPECT_EQ(bounded.frequency_penalty(), 0.5F);
  EXPECT_TRUE(bounded.prompt_logprobs());
  ASSERT_EQ(bounded.logit_bias_size(), 1);
  EXPECT_EQ(bounded.logit_bias(0).token_id(), 7);
  EXPECT_EQ(bounded.logit_bias(0).bias(), -1.5F);
}

TEST(ValidateTest, NoNewTokensRunAsOne) {
  v1::SamplingParams request;
  request.set_max_tokens(0);
  EXPECT_EQ(ResolveSampling(request, 10, 77, Limits()).max_tokens(), 1);
}

TEST(ValidateTest, OnlyWhatWasAskedForIsRefusedForItsLength) {
  GenerateCall call = GoodCall();
  EXPECT_EQ(CheckContext(call, 49, Limits()), absl::OkStatus());
  EXPECT_THAT(DefaultNote(call, 49, Limits()), HasSubstr("at most 1 are generated"));
  EXPECT_THAT(DefaultNote(call, 34, Limits()), HasSubstr("the server's default of 16"));
  call.sampling.set_max_tokens(2);
  EXPECT_EQ(DefaultNote(call, 49, Limits()), "");
  EXPECT_EQ(CheckContext(call, 48, Limits()), absl::OkStatus());
  const absl::Status status = CheckContext(call, 49, Limits());
  EXPECT_TRUE(IsContextOverflow(status));
  EXPECT_EQ(FieldOf(status), "max_tokens");
  EXPECT_THAT(std::string(status.message()), HasSubstr("ask for at most 1"));
  EXPECT_TRUE(IsContextOverflow(CheckContext(call, 50, Limits())));
  EXPECT_FALSE(IsContextOverflow(CheckContext(call, 0, Limits())));
}

TEST(ValidateTest, TooManyLogprobsOfAPromptAreRefusedWithWhatWouldDo) {
  GenerateCall call = GoodCall();
  call.names.top_logprobs = "logprobs";
  call.sampling.set_top_logprobs(3);
  constexpr size_t kMost = kMaxPromptLogprobs / 4;
  EXPECT_EQ(CheckPromptLogprobs(call, kMost + 1), absl::OkStatus()) << "none were asked for";
  call.sampling.set_prompt_logprobs(true);
  EXPECT_EQ(CheckPromptLogprobs(call, kMost), absl::OkStatus());
  absl::Status status = CheckPromptLogprobs(call, kMost + 1);
  EXPECT_EQ(FieldOf(status), "logprobs");
  EXPECT_THAT(std::string(status.message()), HasSubstr("524292 log-probabilities"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("at most 2 alternatives"));
  call.sampling.set_top_logprobs(2);
  EXPECT_EQ(CheckPromptLogprobs(call, kMost + 1), absl::OkStatus()) << "as it was told";
  status = CheckPromptLogprobs(call, kMaxPromptLogprobs + 1);
  EXPECT_EQ(FieldOf(status), "prompt");
  EXPECT_FALSE(IsContextOverflow(status));
}

TEST(ValidateTest, PromptsAreCutAtTheirBeginning) {
  GenerateCall call = GoodCall();
  std::vector<int32_t> ids(60);
  for (int i = 0; i < 60; ++i) ids[i] = i;
  const auto cut = [&] {
    std::vector<int32_t> copy = ids;
    TruncatePrompt(call, Limits(), copy);
    return copy;
  };
  EXPECT_EQ(cut(), ids);
  call.truncate_prompt_tokens = 3;
  EXPECT_EQ(cut(), (std::vector<int32_t>{57, 58, 59}));
  call.truncate_prompt_tokens = -1;
  EXPECT_EQ(cut().size(), 34u) << "the default max_tokens is 16";
  call.sampling.set_max_tokens(40);
  EXPECT_EQ(cut().size(), 10u);
  call.prompt = std::string(300, 'a');
  EXPECT_EQ(CheckCall(call, Limits()), absl::OkStatus()) << "what is cut off need not fit";
}

TEST(ValidateTest, TheModelsDefaultsHoldWhereTheRequestSaysNothing) {
  RequestLimits limits = Limits();
  limits.defaults = {
      .temperature = 0.5, .top_k = 20, .top_p = 0.75, .min_p = 0.25, .repetition_penalty = 1.5};
  v1::SamplingParams params = ResolveSampling({}, 10, 77, limits);
  EXPECT_EQ(params.temperature(), 0.5f);
  EXPECT_EQ(params.top_k(), 20);
  EXPECT_EQ(params.top_p(), 0.75f);
  EXPECT_EQ(params.min_p(), 0.25f);
  EXPECT_EQ(params.repetition_penalty(), 1.5f);
  v1::SamplingParams asked;
  asked.set_temperature(1);
  asked.set_top_k(-1);
  asked.set_top_p(1);
  asked.set_min_p(0);
  asked.set_repetition_penalty(1);
  params = ResolveSampling(asked, 10, 77, limits);
  EXPECT_EQ(params.temperature(), 1.0f);
  EXPECT_EQ(params.top_k(), -1);
  EXPECT_EQ(params.top_p(), 1.0f);
  EXPECT_EQ(params.min_p(), 0.0f);
  EXPECT_EQ(params.repetition_penalty(), 1.0f);
}

TEST(ValidateTest, WithoutADefaultTheContextIsTheEnd) {
  RequestLimits limits = Limits();
  limits.default_max_tokens = 0;
  EXPECT_EQ(ResolveSampling({}, 10, 77, limits).max_tokens(), 40);
  EXPECT_EQ(DefaultNote(GoodCall(), 10, limits), "");
  GenerateCall call = GoodCall();
  call.sampling.set_min_tokens(45);
  EXPECT_EQ(CheckCall(call, limits), absl::OkStatus());
  EXPECT_EQ(ResolveSampling(call.sampling, 10, 77, limits).min_tokens(), 40);
  call.truncate_prompt_tokens = -1;
  std::vector<int32_t> ids(60);
  TruncatePrompt(call, limits, ids);
  EXPECT_EQ(ids.size(), 25u) << "half of the context is for the answer";
}

// --generation-config none: workers know other ids.
TEST(ValidateTest, OtherEndIdsTakeThePlaceOfTheWorkers) {
  RequestLimits limits = Limits();
  limits.end_ids = {7, 8};
  v1::SamplingParams request;
  AddStopIds(request, {3});
  v1::SamplingParams params = ResolveSampling(request, 10, 77, limits);
  EXPECT_TRUE(params.ignore_eos());
  EXPECT_THAT(params.stop_token_ids(), testing::ElementsAre(3, 7, 8));
  request.set_ignore_eos(true);
  EXPECT_THAT(ResolveSampling(request, 10, 77, limits).stop_token_ids(), testing::ElementsAre(3));
}

}  // namespace
}  // namespace baton::router
