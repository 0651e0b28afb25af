// Several calls behind one answer: choices, candidates, lists of prompts, echoes.
#include <set>

#include "services/router/http/openai_answer.h"
#include "services/router/http/testing/handler_fixture.h"

namespace baton::router {
namespace {

class ChoicesTest : public HandlerFixture {
 protected:
  void Say(size_t call, const std::string& text, float logprob = -1) {
    gateway_.sinks.at(call)->OnTokens({text, {Token(text, logprob)}});
  }
  void Finish(size_t call, FinishReason reason = FinishReason::kStop) {
    gateway_.sinks.at(call)->OnFinished(Finished(reason));
  }
  // The prompt's tokens as the router tells them.
  void EchoPrompt(size_t call, const std::vector<std::string>& tokens) {
    std::vector<TokenPiece> pieces;
    int64_t offset = 0;
    for (const std::string& token : tokens) {
      pieces.push_back(Token(token, -2, offset));
      offset += static_cast<int64_t>(token.size());
    }
    pieces.front().logprob.reset();
    gateway_.sinks.at(call)->OnPromptTokens(std::move(pieces));
  }
};

TEST_F(ChoicesTest, AListOfPromptsTimesNIsAnsweredInOrder) {
  const auto exchange = Complete({{"prompt", {"a", "b"}}, {"n", 2}, {"seed", 9}});
  ASSERT_EQ(gateway_.calls.size(), 4u);
  EXPECT_EQ(std::get<TokenIdsPrompt>(gateway_.calls[2].prompt), TokenIdsPrompt{'b'});
  EXPECT_EQ(gateway_.calls[0].sampling.seed(), 9u) << "the first is what it would be alone";
  EXPECT_EQ(gateway_.calls[2].sampling.seed(), 9u);
  EXPECT_EQ(gateway_.calls[1].sampling.seed(), gateway_.calls[3].sampling.seed());
  EXPECT_NE(gateway_.calls[1].sampling.seed(), 9u);
  EXPECT_NE(gateway_.calls[0].request_id, gateway_.calls[1].request_id);
  for (const size_t call : {3, 1, 0}) {
    Say(call, std::string(1, static_cast<char>('0' + call)));
    Finish(call);
  }
  EXPECT_FALSE(exchange->response.has_value());
  Say(2, "2");
  Finish(2);
  const Json answer = exchange->Body();
  ASSERT_EQ(answer["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_EQ(answer["choices"][i]["text"], std::to_string(i));
  }
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 6) << "each prompt once";
  EXPECT_EQ(answer["usage"]["completion_tokens"], 8);
}

TEST_F(ChoicesTest, APromptIsNotCopiedForItsOneChoice) {
  OpenAiRequest request;
  request.prompts = {std::string(100, 'a'), std::string(100, 'b')};
  const char* const text = std::get<std::string>(request.prompts[1]).data();
  const auto plan = PlanAnswer(gateway_, std::move(request), "id", 0);
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->calls.size(), 2U);
  EXPECT_EQ(std::get<std::string>(plan->calls[1].prompt).data(), text);
}

TEST_F(ChoicesTest, WithoutSeedEachChoiceDrawsItsOwn) {
  Complete({{"prompt", "a"}, {"n", 2}});
  EXPECT_FALSE(gateway_.calls[0].sampling.has_seed());
  EXPECT_FALSE(gateway_.calls[1].sampling.has_seed());
}

TEST_F(ChoicesTest, CandidateSeedsAreDistinctAndRepeatable) {
  std::set<uint64_t> seeds;
  for (const uint64_t seed : {0, 1, 2, 3}) {
    for (int i = 0; i < 128; ++i) seeds.insert(CandidateSeed(seed, i));
  }
  EXPECT_EQ(seeds.size(), 4u * 128u);
  EXPECT_EQ(CandidateSeed(7, 3), CandidateSeed(7, 3));
}

TEST_F(ChoicesTest, TheBestByMeanLogprobAreAnswered) {
  const auto exchange = Complete({{"prompt", "a"}, {"best_of", 3}, {"n", 2}});
  ASSERT_EQ(gateway_.calls.size(), 3u);
  EXPECT_TRUE(gateway_.calls[0].sampling.logprobs());
  Say(0, "x", -3);
  Say(1, "y", -1);
  Say(1, "y", -2);
  Say(2, "z", -2);
  for (const size_t call : {0, 1, 2}) Finish(call);
  const Json answer = exchange->Body();
  ASSERT_EQ(answer["choices"].size(), 2u);
  EXPECT_EQ(answer["choices"][0]["text"], "yy");
  EXPECT_EQ(answer["choices"][1]["text"], "z");
  EXPECT_EQ(answer["choices"][1]["index"], 1);
  EXPECT_TRUE(answer["choices"][0]["logprobs"].is_null()) << "they were not asked for";
  EXPECT_EQ(answer["usage"]["completion_tokens"], 6) << "all candidates were generated";
}

TEST_F(ChoicesTest, StreamsInterleaveByIndexAndEndOnce) {
  const auto exchange = Complete(
      {{"prompt", "a"}, {"n", 2}, {"stream", true}, {"stream_options", {{"include_usage", true}}}});
  Say(1, "x");
  Say(0, "y");
  Finish(1);
  Say(0, "z");
  EXPECT_FALSE(exchange->ended);
  Finish(0);
  ASSERT_EQ(exchange->events.size(), 7u);
  std::vector<int> indices;
  for (size_t i = 0; i < 5; ++i) indices.push_back(exchange->Event(i)["choices"][0]["index"]);
  EXPECT_EQ(indices, (std::vector<int>{1, 0, 1, 0, 0}));
  EXPECT_TRUE(exchange->Event(0)["usage"].is_null());
  EXPECT_EQ(exchange->Event(5)["usage"]["completion_tokens"], 4);
  EXPECT_EQ(exchange->Event(5)["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(exchange->events[6], "[DONE]");
  EXPECT_TRUE(exchange->ended);
}

TEST_F(ChoicesTest, ContinuousUsageCountsWhatWasSent) {
  const auto exchange =
      Complete({{"prompt", "abc"},
                {"stream", true},
                {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}});
  Say(0, "x");
  Say(0, "y");
  EXPECT_EQ(exchange->Event(0)["usage"]["completion_tokens"], 1);
  EXPECT_EQ(exchange->Event(1)["usage"]["completion_tokens"], 2);
  EXPECT_EQ(exchange->Event(1)["usage"]["prompt_tokens"], 3);
}

TEST_F(ChoicesTest, OneFailureCancelsTheOthers) {
  const auto exchange = Complete({{"prompt", "a"}, {"n", 3}});
  Say(0, "x");
  Finish(0);
  gateway_.sinks[1]->OnError(absl::UnavailableError("decode-0 is lost"));
  EXPECT_EQ(exchange->response->status, 503);
  EXPECT_EQ(gateway_.cancelled, (std::vector<uint64_t>{1, 2, 3}));
  Say(2, "late");  // Already on its way.
  gateway_.sinks[2]->OnError(absl::UnavailableError("again"));
}

TEST_F(ChoicesTest, ARefusalInTheMiddleCancelsWhatWasTaken) {
  gateway_.refusal = absl::ResourceExhaustedError("too many");
  gateway_.accepted = 2;
  const auto exchange = Complete({{"prompt", "a"}, {"n", 4}});
  EXPECT_EQ(exchange->response->status, 429);
  EXPECT_EQ(gateway_.calls.size(), 2u);
  EXPECT_EQ(gateway_.cancelled, (std::vector<uint64_t>{1, 2}));
}

TEST_F(ChoicesTest, AClientThatLeavesCancelsAll) {
  const auto exchange = Complete({{"prompt", {"a", "b"}}, {"stream", true}});
  Say(0, "x");
  exchange->gone();
  EXPECT_EQ(gateway_.cancelled, (std::vector<uint64_t>{1, 2}));
  const size_t events = exchange->events.size();
  Say(1, "y");
  EXPECT_EQ(exchange->events.size(), events);
}

TEST_F(ChoicesTest, EchoStandsBeforeTheText) {
  gateway_.adds_bos = true;
  const auto exchange = Complete({{"prompt", "a\u00e9"}, {"echo", true}, {"logprobs", 0}});
  EXPECT_TRUE(gateway_.calls[0].sampling.prompt_logprobs());
  EchoPrompt(0, {"<s>", "a", "\xc3", "\xa9"});
  gateway_.sinks[0]->OnTokens({"xy", {Token("x", -1, 0), Token("y", -1, 1)}});
  Finish(0);
  const Json choice = exchange->Body()["choices"][0];
  EXPECT_EQ(choice["text"], "a\u00e9xy");
  const Json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"].size(), 6u);
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["token_logprobs"][1], -2);
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  EXPECT_EQ(logprobs["text_offset"][1], 0) << "the added token is not in the text";
  EXPECT_EQ(logprobs["text_offset"][4], 2);
  EXPECT_EQ(logprobs["text_offset"][5], 3);
}

TEST_F(ChoicesTest, PromptLogprobsStandBesideTheText) {
  TokenPiece said = Token("b", -2, 1);
  said.top = {{'c', "c", -0.5F}, {'d', "d", -1}, {'b', "b", -2}};
  const auto expected = [](const char* own, const Json& rank) {
    return Json{nullptr,
                {{own, {{"logprob", -2}, {"rank", rank}, {"decoded_token", "b"}}},
                 {"99", {{"logprob", -0.5}, {"rank", 1}, {"decoded_token", "c"}}}}};
  };
  TokenPiece first = Token("a", 0);
  first.logprob.reset();
  TokenPiece output = Token("x", -1, 0);
  output.top = said.top;
  const auto whole = Complete({{"prompt", "ab"}, {"prompt_logprobs", 1}, {"logprobs", 2}});
  EXPECT_TRUE(gateway_.calls[0].sampling.prompt_logprobs());
  EXPECT_EQ(gateway_.calls[0].sampling.top_logprobs(), 2);
  gateway_.sinks[0]->OnPromptTokens({first, said});
  gateway_.sinks[0]->OnTokens({"x", {output}});
  Finish(0);
  const Json choice = whole->Body()["choices"][0];
  EXPECT_EQ(choice["text"], "x");
  EXPECT_EQ(choice["prompt_logprobs"], expected("98", 3));
  EXPECT_EQ(choice["logprobs"]["tokens"], Json{"x"}) << "the prompt is not echoed";
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][0].size(), 3u) << "two, and the token";

  const auto chat = Post("/v1/chat/completions", {{"messages", {{{"role", ""}, {"content", "ab"}}}},
                                                  {"prompt_logprobs", 1}});
  EXPECT_EQ(gateway_.calls[1].sampling.top_logprobs(), 1);
  said.top.resize(1);
  gateway_.sinks[1]->OnPromptTokens({first, said});
  gateway_.sinks[1]->OnTokens({"x", {output}});
  Finish(1);
  EXPECT_EQ(chat->Body()["prompt_logprobs"], expected("98", nullptr));
  EXPECT_TRUE(chat->Body()["choices"][0]["logprobs"].is_null());
}

TEST_F(ChoicesTest, AStreamEchoesTheSame) {
  const auto exchange =
      Complete({{"prompt", "ab"}, {"echo", true}, {"logprobs", 0}, {"stream", true}});
  EchoPrompt(0, {"a"});
  gateway_.sinks[0]->OnPromptTokens({Token("b", -2, 1)});
  EXPECT_TRUE(exchange->events.empty());
  gateway_.sinks[0]->OnTokens({"x", {Token("x", -1, 0)}});
  Finish(0);
  ASSERT_EQ(exchange->events.size(), 4u);
  EXPECT_EQ(exchange->Event(0)["choices"][0]["text"], "ab");
  EXPECT_EQ(exchange->Event(0)["choices"][0]["logprobs"]["tokens"], (Json{"a", "b"}));
  EXPECT_EQ(exchange->Event(1)["choices"][0]["logprobs"]["text_offset"], (Json{2}));
}

TEST_F(ChoicesTest, AnEchoWithoutItsLogprobsIsAnError) {
  const Json body = {{"prompt", "ab"}, {"echo", true}, {"logprobs", 0}};
  const auto exchange = Complete(body);
  Say(0, "x");
  Finish(0);
  EXPECT_EQ(exchange->response->status, 500);
}

TEST_F(ChoicesTest, AnEchoOfTokenIdsIsTheirText) {
  const auto exchange = Complete({{"prompt", {97, 98}}, {"echo", true}, {"max_tokens", 0}});
  EXPECT_EQ(gateway_.calls[0].sampling.max_tokens(), 0);
  Finish(0, FinishReason::kLength);
  EXPECT_EQ(exchange->Body()["choices"][0]["text"], "ab");
  EXPECT_EQ(exchange->Body()["choices"][0]["finish_reason"], "length");
}

TEST_F(ChoicesTest, TokenIdsAreReturnedIfAskedFor) {
  const auto whole = Complete({{"prompt", "ab"}, {"return_token_ids", true}});
  Say(0, "x");
  Finish(0);
  EXPECT_EQ(whole->Body()["choices"][0]["prompt_token_ids"], (Json{97, 98}));
  EXPECT_EQ(whole->Body()["choices"][0]["token_ids"], (Json{'x'}));
  const auto stream = Complete({{"prompt", "ab"}, {"return_token_ids", true}, {"stream", true}});
  Say(1, "y");
  EXPECT_EQ(stream->Event(0)["choices"][0]["prompt_token_ids"], (Json{97, 98}));
  EXPECT_EQ(stream->Event(1)["choices"][0]["token_ids"], (Json{'y'}));
}

TEST_F(ChoicesTest, TokensOfOneTextKeepTheLikeliest) {
  const auto exchange = Complete({{"prompt", "a"}, {"logprobs", 3}});
  TokenPiece token = Token("\xc3", -3);
  token.top = {{1, "\xff", -1}, {2, "\xfe", -2}, {0xC3, "\xc3", -3}};
  gateway_.sinks[0]->OnTokens({"", {token}});
  Finish(0);
  EXPECT_EQ(exchange->Body()["choices"][0]["logprobs"]["top_logprobs"][0], (Json{{"\uFFFD", -1}}));
}

}  // namespace
}  // namespace baton::router
