// Anthropic's /v1/messages and /v1/messages/count_tokens: bodies as chats, answers, errors.
#ifndef SERVICES_ROUTER_HTTP_MESSAGES_H_
#define SERVICES_ROUTER_HTTP_MESSAGES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/http/http_handler.h"
#include "common/tokenizer/chat/jinja/value.h"
#include "services/router/http/block_answer.h"
#include "services/router/http/chat_body.h"
#include "services/router/http/json_input.h"
#include "services/router/http/request_fields.h"

namespace baton::router {

// ---- Requests ----

// `counts`: only the prompt's length is asked for, so max_tokens may be absent. `timeout`: the
// header X-Request-Timeout. INVALID_ARGUMENT names the field in Anthropic's words.
absl::StatusOr<FrontRequest> ParseMessagesRequest(std::string_view body, UnknownFields unknown,
                                                  std::string_view timeout, bool counts);

// ---- What messages consist of, said in a chat ----

// The field "system": a text or blocks of it.
absl::Status AddSystem(const Fields& fields, UnknownFields unknown,
                       std::vector<std::string>& warnings, ChatBody& chat);

// The field "messages"; `ordered` is its value, keys in the client's order. Messages of one role
// that follow one another become one, as Anthropic has it. A last message of the assistant is gone
// on with.
absl::Status AddMessages(const Fields& fields, const jinja::Value& ordered, UnknownFields unknown,
                         std::vector<std::string>& warnings, ChatBody& chat);

// ---- Answers ----

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

#endif  // SERVICES_ROUTER_HTTP_MESSAGES_H_
