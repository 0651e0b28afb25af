// Answers and errors in the form of Anthropic's /v1/messages.
#ifndef SERVICES_ROUTER_HTTP_MESSAGES_ANSWER_H_
#define SERVICES_ROUTER_HTTP_MESSAGES_ANSWER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/http/http_handler.h"
#include "services/router/http/block_answer.h"

namespace baton::router {

struct MessageHeader {
  std::string id;  // "msg_..."
  std::string model;
  int64_t prompt_tokens = 0;
};

// {"type": "error", "error": {type, message}}, with Anthropic's types and statuses.
HttpResponse MessagesErrorResponse(const absl::Status& status);

std::unique_ptr<BlockForm> MakeWholeMessage(MessageHeader header,
                                            std::shared_ptr<HttpExchange> exchange);
std::unique_ptr<BlockForm> MakeMessageStream(MessageHeader header,
                                             std::shared_ptr<HttpExchange> exchange);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_MESSAGES_ANSWER_H_
