// The endpoints that agents speak beside OpenAI's chats: Anthropic's Messages
// and OpenAI's Responses.
#ifndef SERVICES_ROUTER_HTTP_AGENT_ENDPOINTS_H_
#define SERVICES_ROUTER_HTTP_AGENT_ENDPOINTS_H_

#include <memory>
#include <string>
#include <utility>

#include "common/http/http_handler.h"
#include "services/router/gateway.h"
#include "services/router/http/answer_group.h"
#include "services/router/http/block_answer.h"
#include "services/router/http/chat_body.h"
#include "services/router/http/request_fields.h"

namespace baton::router {

// Thread-safe. `gateway` outlives it and every exchange.
class AgentEndpoints {
 public:
  AgentEndpoints(Gateway& gateway, UnknownFields unknown, EventTimes event_times,
                 std::shared_ptr<RunningAnswers> running)
      : gateway_(gateway),
        unknown_(unknown),
        event_times_(event_times),
        running_(std::move(running)) {}

  void Messages(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) const;
  // /v1/messages/count_tokens: generates nothing.
  void CountTokens(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) const;
  void Responses(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) const;

 private:
  // Submits the plan's call; `form` writes its answer.
  void Start(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange,
             AnswerPlan plan, FieldRenames renames, bool stream,
             std::unique_ptr<BlockForm> form) const;

  Gateway& gateway_;
  const UnknownFields unknown_;
  const EventTimes event_times_;
  const std::shared_ptr<RunningAnswers> running_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_AGENT_ENDPOINTS_H_
