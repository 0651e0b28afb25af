// What the input of OpenAI's Responses consists of, said in a chat.
#ifndef SERVICES_ROUTER_HTTP_RESPONSES_ITEMS_H_
#define SERVICES_ROUTER_HTTP_RESPONSES_ITEMS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/router/http/chat_body.h"
#include "services/router/http/json_input.h"
#include "services/router/http/request_fields.h"

namespace baton::router {

// The field "input": a text, which is the user's, or items. What the assistant has reasoned, said
// and called without a result between is one message.
absl::Status AddInput(const Fields& fields, UnknownFields unknown,
                      std::vector<std::string>& warnings, ChatBody& chat);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_RESPONSES_ITEMS_H_
