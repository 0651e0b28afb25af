// What a stream is before its first token: held back, open, progress, an error.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "services/router/http/testing/handler_fixture.h"

namespace baton::router {
namespace {

class StreamOpeningTest : public HandlerFixture {
 protected:
  StreamOpeningTest() { options_.set_sse_keepalive_ms(15'000); }
  std::shared_ptr<FakeExchange> Stream(const Json& more = Json::object()) {
    Json body = {{"prompt", "x"}, {"stream", true}};
    body.update(more);
    return Complete(body);
  }
  static Json ChatBody() {
    return {{"stream", true}, {"messages", {{{"role", "user"}, {"content", "x"}}}}};
  }
};

TEST_F(StreamOpeningTest, EveryStreamOpensWithoutATokenAndNothingElseDoes) {
  for (const auto& exchange : {Stream(), Post("/v1/chat/completions", ChatBody()),
                               Post("/generate", {{"text", "x"}, {"stream", true}})}) {
    ASSERT_TRUE(exchange->times.has_value());
    EXPECT_EQ(exchange->times->hold_ms, 1000);
    EXPECT_EQ(exchange->times->keepalive_ms, 15'000);
    EXPECT_FALSE(exchange->streaming);
  }
  EXPECT_FALSE(Complete({{"prompt", "x"}})->times.has_value());
  EXPECT_FALSE(Post("/generate", {{"text", "x"}})->times.has_value());
  // What is refused by its fields is no stream.
  const auto refused = Stream({{"nonsense", 1}});
  EXPECT_EQ(refused->response->status, 400);
  EXPECT_FALSE(refused->times.has_value());
}

TEST_F(StreamOpeningTest, IsHeldBackForNoLongerThanAComment) {
  options_.set_sse_keepalive_ms(200);
  EXPECT_EQ(Stream()->times->hold_ms, 200);
}

TEST_F(StreamOpeningTest, AnErrorBeforeTheHeadHasItsStatus) {
  const auto exchange = Stream();
  gateway_.sinks[0]->OnError(absl::UnavailableError("no workers"));
  EXPECT_EQ(exchange->response->status, 503);
  EXPECT_EQ(exchange->response->headers, (HttpHeaders{{"Retry-After", "1"}}));
}

TEST_F(StreamOpeningTest, AnErrorBehindTheHeadIsAnEventAndDone) {
  const std::vector<std::shared_ptr<FakeExchange>> exchanges = {
      Stream(), Post("/generate", {{"text", "x"}, {"stream", true}})};
  for (size_t i = 0; i < exchanges.size(); ++i) {
    FakeExchange& exchange = *exchanges[i];
    exchange.streaming = true;  // The time was over.
    gateway_.sinks[i]->OnError(absl::UnavailableError("no workers"));
    ASSERT_EQ(exchange.events.size(), 2u);
    EXPECT_EQ(exchange.Event(0)["error"]["message"], "no workers");
    EXPECT_EQ(exchange.Event(0)["error"]["type"], "server_error");
    EXPECT_EQ(exchange.events[1], "[DONE]");
    EXPECT_TRUE(exchange.ended);
    EXPECT_FALSE(exchange.response.has_value());
  }
}

TEST_F(StreamOpeningTest, AnErrorBehindATokenBreaksOff) {
  const auto exchange = Stream();
  gateway_.sinks[0]->OnTokens({"a", {Token("a", -1)}});
  gateway_.sinks[0]->OnError(absl::UnavailableError("decode-0 has gone"));
  EXPECT_EQ(exchange->Event(1)["error"]["message"], "decode-0 has gone");
  EXPECT_TRUE(exchange->aborted);
  EXPECT_FALSE(exchange->ended);
}

TEST_F(StreamOpeningTest, ProgressIsForThoseWhoAskForIt) {
  const auto silent = Stream();
  gateway_.sinks[0]->OnPromptProgress({64, 100});
  EXPECT_FALSE(silent->streaming);
  EXPECT_TRUE(silent->events.empty());

  const auto exchange = Stream({{"stream_options", {{"include_progress", true}}}, {"n", 2}});
  gateway_.sinks[2]->OnPromptProgress({64, 100});
  EXPECT_TRUE(exchange->streaming);
  const Json chunk = exchange->Event(0);
  EXPECT_EQ(chunk["object"], "text_completion");
  EXPECT_EQ(chunk["choices"], Json::array());
  EXPECT_EQ(chunk["progress"],
            (Json{{"index", 1}, {"computed_tokens", 64}, {"prompt_tokens", 100}}));
  // The first choice opens as it always does.
  gateway_.sinks[1]->OnTokens({"a", {Token("a", -1)}});
  EXPECT_EQ(exchange->Event(1)["choices"][0]["text"], "a");
}

TEST_F(StreamOpeningTest, ProgressOfAChatComesBeforeItsRole) {
  Json body = ChatBody();
  body["stream_options"] = {{"include_progress", true}, {"include_usage", true}};
  const auto exchange = Post("/v1/chat/completions", body);
  gateway_.sinks[0]->OnPromptProgress({1, 2});
  EXPECT_EQ(exchange->Event(0)["object"], "chat.completion.chunk");
  EXPECT_TRUE(exchange->Event(0)["usage"].is_null());
  gateway_.sinks[0]->OnTokens({"a", {Token("a", -1)}});
  EXPECT_EQ(exchange->Event(1)["choices"][0]["delta"]["role"], "assistant");
}

}  // namespace
}  // namespace baton::router
