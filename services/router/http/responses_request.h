// Bodies of OpenAI's /v1/responses as chats.
#ifndef SERVICES_ROUTER_HTTP_RESPONSES_REQUEST_H_
#define SERVICES_ROUTER_HTTP_RESPONSES_REQUEST_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "services/router/http/chat_body.h"

namespace baton::router {

// No response is kept: what needs one that was is refused, and so is `store`. `timeout`: the header
// X-Request-Timeout. INVALID_ARGUMENT names the field in the client's words.
absl::StatusOr<FrontRequest> ParseResponsesRequest(std::string_view body, UnknownFields unknown,
                                                   std::string_view timeout);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_RESPONSES_REQUEST_H_
