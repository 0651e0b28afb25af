// /generate, SGLang's own endpoint.
#include "services/router/http/testing/handler_fixture.h"

namespace baton::router {
namespace {

class GenerateTest : public HandlerFixture {
 protected:
  std::shared_ptr<FakeExchange> Generate(const Json& body) { return Post("/generate", body); }
};

TEST_F(GenerateTest, SchemasMayBeObjects) {
  const auto schema_of = [&](size_t back) {
    return gateway_.calls[gateway_.calls.size() - back].sampling.structure().json_schema();
  };
  Send("POST", "/generate",
       R"({"text": "a", "sampling_params": {"json_schema": {"z": 1, "a": [2]}}})");
  EXPECT_EQ(schema_of(1), R"({"z": 1, "a": [2]})") << "in the client's order";
  Send("POST", "/generate",
       R"({"text": ["a", "b"], "sampling_params": [{"json_schema": {"z": 1, "a": 2}},
                                                   {"json_schema": "{}"}]})");
  EXPECT_EQ(schema_of(2), R"({"z": 1, "a": 2})");
  EXPECT_EQ(schema_of(1), "{}");
  EXPECT_EQ(
      ErrorOf("/generate", R"({"text": "a", "sampling_params": {"json_schema": 3}})")["param"],
      "sampling_params.json_schema");
}

TEST_F(GenerateTest, AnswersWhatTheBenchmarkSends) {
  const auto exchange = Generate(
      {{"text", "abc"},
       {"sampling_params", {{"temperature", 0.0}, {"max_new_tokens", 5}, {"ignore_eos", true}}},
       {"stream", true},
       {"lora_path", nullptr},
       {"return_logprob", false},
       {"logprob_start_len", -1}});
  ASSERT_EQ(gateway_.calls.size(), 1u);
  EXPECT_EQ(gateway_.calls[0].sampling.max_tokens(), 5);
  EXPECT_TRUE(gateway_.calls[0].sampling.ignore_eos());
  EXPECT_EQ(gateway_.calls[0].sampling.temperature(), 0);
  gateway_.sinks[0]->OnTokens({"He", {Token("H", 0)}});
  gateway_.sinks[0]->OnTokens({"y", {Token("y", 0)}});
  gateway_.sinks[0]->OnFinished(Finished(FinishReason::kLength, "!"));
  ASSERT_EQ(exchange->events.size(), 4u);
  EXPECT_EQ(exchange->Event(1)["text"], "Hey") << "each event has the whole text so far";
  EXPECT_EQ(exchange->Event(1)["meta_info"]["completion_tokens"], 2);
  EXPECT_EQ(exchange->Event(1)["meta_info"]["prompt_tokens"], 3);
  EXPECT_TRUE(exchange->Event(1)["meta_info"]["finish_reason"].is_null());
  EXPECT_EQ(exchange->Event(2)["text"], "Hey!");
  EXPECT_EQ(exchange->Event(2)["output_ids"], (Json{'H', 'y'}));
  EXPECT_EQ(exchange->Event(2)["meta_info"]["finish_reason"]["type"], "length");
  EXPECT_EQ(exchange->events[3], "[DONE]");
  EXPECT_TRUE(exchange->ended);
}

TEST_F(GenerateTest, AListIsAnsweredByAList) {
  const auto exchange = Generate(
      {{"input_ids", {Json{1, 2}, Json{3}}},
       {"rid", {"x", "y"}},
       {"sampling_params", {{{"max_new_tokens", 1}}, {{"max_new_tokens", 2}, {"stop", "z"}}}}});
  ASSERT_EQ(gateway_.calls.size(), 2u);
  EXPECT_EQ(gateway_.calls[1].sampling.max_tokens(), 2);
  EXPECT_EQ(gateway_.calls[1].request_id, "y");
  Outcome stopped = Finished(FinishReason::kStop);
  stopped.matched_stop = "z";
  gateway_.sinks[1]->OnFinished(stopped);
  gateway_.sinks[0]->OnFinished(Finished(FinishReason::kLength, "a"));
  const Json answer = exchange->Body();
  ASSERT_EQ(answer.size(), 2u);
  EXPECT_EQ(answer[0]["text"], "a");
  EXPECT_EQ(answer[1]["meta_info"]["id"], "y");
  EXPECT_EQ(answer[1]["meta_info"]["finish_reason"], (Json{{"type", "stop"}, {"matched", "z"}}));
}

TEST_F(GenerateTest, SeveralTextsOfOnePrompt) {
  Generate({{"text", "a"}, {"sampling_params", {{"n", 2}, {"sampling_seed", 4}}}, {"rid", "r"}});
  ASSERT_EQ(gateway_.calls.size(), 2u);
  EXPECT_EQ(gateway_.calls[0].request_id, "r-0");
  EXPECT_EQ(gateway_.calls[0].sampling.seed(), 4u);
  EXPECT_NE(gateway_.calls[1].sampling.seed(), 4u);
}

TEST_F(GenerateTest, TheHttpRequestsIdIsTheAnswersWithoutRid) {
  const auto exchange = Generate({{"text", "a"}});  // The fixture calls it client-1.
  EXPECT_EQ(gateway_.calls.at(0).request_id, "client-1");
  gateway_.sinks[0]->OnFinished(Finished(FinishReason::kLength));
  EXPECT_EQ(exchange->Body()["meta_info"]["id"], "client-1");
  Generate({{"text", {"a", "b"}}});
  EXPECT_EQ(gateway_.calls.at(2).request_id, "client-2-1");
  Generate({{"text", "a"}, {"rid", "own"}});
  EXPECT_EQ(gateway_.calls.at(3).request_id, "own");
}

TEST_F(GenerateTest, LogprobsOfInputAndOutput) {
  const auto exchange = Generate({{"text", "ab"},
                                  {"return_logprob", true},
                                  {"logprob_start_len", 0},
                                  {"top_logprobs_num", 1},
                                  {"return_text_in_logprobs", true}});
  EXPECT_TRUE(gateway_.calls[0].sampling.prompt_logprobs());
  EXPECT_EQ(gateway_.calls[0].sampling.top_logprobs(), 1);
  TokenPiece first = Token("a", 0);
  first.logprob.reset();
  TokenPiece second = Token("b", -2);
  second.top = {{'c', "c", -1}};
  gateway_.sinks[0]->OnPromptTokens({first, second});
  gateway_.sinks[0]->OnTokens({"x", {Token("x", -0.5F)}});
  gateway_.sinks[0]->OnFinished(Finished(FinishReason::kLength));
  const Json meta = exchange->Body()["meta_info"];
  EXPECT_EQ(meta["input_token_logprobs"], (Json{{nullptr, 97, "a"}, {-2.0, 98, "b"}}));
  EXPECT_EQ(meta["input_top_logprobs"][1][0], (Json{-1.0, 99, "c"}));
  EXPECT_TRUE(meta["input_top_logprobs"][0].is_null());
  EXPECT_EQ(meta["output_token_logprobs"], Json::array({Json{-0.5, 120, "x"}}));
}

TEST_F(GenerateTest, RefusesByName) {
  const std::vector<std::pair<std::string, std::string>> bodies = {
      {"{}", "input_ids"},
      {R"({"text":"a","input_ids":[1]})", "input_ids"},
      {R"({"text":"a","sampling_params":3})", "sampling_params"},
      {R"({"text":"a","sampling_params":[{},{}]})", "sampling_params"},
      {R"({"text":"a","sampling_params":{"max_token":3}})", "sampling_params.max_token"},
      {R"({"text":"a","sampling_params":{"regex":"a","json_schema":"{}"}})",
       "sampling_params.regex"},
      {R"({"text":"a","max_new_tokens":3})", "max_new_tokens"},
      {R"({"text":"a","image_data":["x"]})", "image_data"},
      {R"({"text":"a","rid":["x","y"]})", "rid"},
      {R"({"text":"a","logprob_start_len":-2})", "logprob_start_len"},
      {R"({"text":["a","b"],"sampling_params":{"n":65}})", "sampling_params.n"},
  };
  for (const auto& [body, field] : bodies) {
    EXPECT_EQ(ErrorOf("/generate", body)["param"], field) << body;
  }
  EXPECT_TRUE(gateway_.calls.empty());
}

}  // namespace
}  // namespace baton::router
