// Bodies of Anthropic's /v1/messages and /v1/messages/count_tokens as chats.
#ifndef SERVICES_ROUTER_HTTP_MESSAGES_REQUEST_H_
#define SERVICES_ROUTER_HTTP_MESSAGES_REQUEST_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "services/router/http/chat_body.h"

namespace baton::router {

// `counts`: only the prompt's length is asked for, so max_tokens may be absent. `timeout`: the
// header X-Request-Timeout. INVALID_ARGUMENT names the field in Anthropic's words.
absl::StatusOr<FrontRequest> ParseMessagesRequest(std::string_view body, UnknownFields unknown,
                                                  std::string_view timeout, bool counts);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_MESSAGES_REQUEST_H_
