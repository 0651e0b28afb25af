// Where an answer's bytes are made, and when.
#include "services/router/http/testing/handler_fixture.h"

namespace baton::router {
namespace {

class AnswerGroupTest : public HandlerFixture {
 protected:
  // What the sinks of an answer hear from now on waits for its connection.
  std::shared_ptr<FakeExchange> Begin(const std::string& body) {
    auto exchange = Send("POST", "/v1/completions", body);
    exchange->holds_tasks = true;
    return exchange;
  }
  static void RunTasks(FakeExchange& exchange) {
    for (const auto& task : std::exchange(exchange.tasks, {})) task();
  }
};

TEST_F(AnswerGroupTest, EventsAreMadeWhereTheyAreWritten) {
  const auto exchange = Begin(R"({"prompt":"x","stream":true})");
  gateway_.sinks[0]->OnTokens({"He", {Token("a", 0)}});
  gateway_.sinks[0]->OnTokens({"y", {Token("b", 0)}});
  gateway_.sinks[0]->OnFinished(Finished(FinishReason::kStop));
  gateway_.sinks.clear();
  EXPECT_TRUE(exchange->events.empty());
  EXPECT_EQ(exchange->tasks.size(), 3U) << "a stream's tokens leave one by one";
  RunTasks(*exchange);
  ASSERT_EQ(exchange->events.size(), 4U);
  EXPECT_EQ(exchange->Event(0)["choices"][0]["text"], "He");
  EXPECT_EQ(exchange->Event(1)["choices"][0]["text"], "y");
  EXPECT_TRUE(exchange->ended);
}

TEST_F(AnswerGroupTest, AWholeAnswerHearsOfManyTokensTogether) {
  const auto exchange = Begin(R"({"prompt":"x"})");
  for (int i = 0; i < 70; ++i) gateway_.sinks[0]->OnTokens({"a", {Token("a", 0)}});
  EXPECT_EQ(exchange->tasks.size(), 2U);
  gateway_.sinks[0]->OnFinished(Finished(FinishReason::kStop, "b"));
  RunTasks(*exchange);
  EXPECT_EQ(exchange->Body()["choices"][0]["text"], std::string(70, 'a') + "b");
}

TEST_F(AnswerGroupTest, NothingIsWrittenBehindAnError) {
  const auto exchange = Begin(R"({"prompt":["x","y"]})");
  gateway_.sinks[0]->OnError(absl::UnavailableError("decode-0 is lost"));
  gateway_.sinks[1]->OnTokens({"a", {}});
  gateway_.sinks[1]->OnFinished(Finished(FinishReason::kStop));
  RunTasks(*exchange);
  EXPECT_EQ(exchange->response->status, 503);
  EXPECT_EQ(gateway_.cancelled, (std::vector<uint64_t>{1, 2}));
}

TEST_F(AnswerGroupTest, NothingIsWrittenForAClientThatHasLeft) {
  const auto exchange = Begin(R"({"prompt":"x","stream":true})");
  gateway_.sinks[0]->OnTokens({"a", {}});
  exchange->gone();
  RunTasks(*exchange);
  EXPECT_FALSE(exchange->streaming);
}

}  // namespace
}  // namespace baton::router
