// What Anthropic's messages consist of, said in a chat.
#ifndef SERVICES_ROUTER_HTTP_MESSAGES_BLOCKS_H_
#define SERVICES_ROUTER_HTTP_MESSAGES_BLOCKS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/tokenizer/chat/jinja/value.h"
#include "services/router/http/chat_body.h"
#include "services/router/http/json_input.h"
#include "services/router/http/request_fields.h"

namespace baton::router {

// The field "system": a text or blocks of it.
absl::Status AddSystem(const Fields& fields, UnknownFields unknown,
                       std::vector<std::string>& warnings, ChatBody& chat);

// The field "messages"; `ordered` is its value, keys in the client's order. Messages of one role
// that follow one another become one, as Anthropic has it. A last message of the assistant is gone
// on with.
absl::Status AddMessages(const Fields& fields, const jinja::Value& ordered, UnknownFields unknown,
                         std::vector<std::string>& warnings, ChatBody& chat);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_MESSAGES_BLOCKS_H_
