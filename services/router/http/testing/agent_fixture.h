// The fixture of the fronts that agents speak: a model that reasons and calls tools, and what a
// request becomes as a chat.
#ifndef SERVICES_ROUTER_HTTP_TESTING_AGENT_FIXTURE_H_
#define SERVICES_ROUTER_HTTP_TESTING_AGENT_FIXTURE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/tokenizer/chat/jinja/json.h"
#include "services/router/http/testing/handler_fixture.h"

namespace baton::router {

class AgentFixture : public HandlerFixture {
 protected:
  AgentFixture() {
    gateway_.format.tools = chat::ToolFormat::kHermes;
    gateway_.format.template_takes_tools = true;
    gateway_.format.reasoning = chat::ReasoningFormat::kThink;
  }

  // The model writes `text`, a character for each token.
  void Finish(const std::string& text, Outcome outcome = Finished(FinishReason::kStop)) {
    for (const char c : text) gateway_.sinks.back()->OnTokens({std::string(1, c), {Token("x", 0)}});
    gateway_.sinks.back()->OnFinished(std::move(outcome));
  }
  static Json Shown(const jinja::Value& value) {
    jinja::Budget budget{jinja::RenderLimits()};
    return Json::parse(jinja::ToJson(value, {}, budget).value().bytes());
  }
  // The messages of the chat that a request has become, as the template hears them.
  Json HeardOf(const FakeExchange& exchange) const {
    EXPECT_FALSE(exchange.response.has_value()) << exchange.response->body;
    Json messages = Json::array();
    for (const ChatMessage& message : gateway_.encoded_chat.messages) {
      messages.push_back(Shown(message.fields));
    }
    return messages;
  }
  // The events of a stream, the name of each checked.
  static std::vector<Json> NamedEvents(const FakeExchange& exchange) {
    std::vector<Json> events;
    for (size_t i = 0; i < exchange.events.size(); ++i) {
      events.push_back(exchange.Event(i));
      EXPECT_EQ(exchange.names[i], events.back()["type"]);
    }
    return events;
  }
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_TESTING_AGENT_FIXTURE_H_
