// Prompts as clients write them: texts, token ids, lists of either, and conversations.
#ifndef SERVICES_ROUTER_HTTP_REQUEST_PROMPT_H_
#define SERVICES_ROUTER_HTTP_REQUEST_PROMPT_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "services/router/gateway.h"
#include "services/router/http/json_input.h"
#include "services/router/http/request_fields.h"

namespace baton::router {

// What one request may ask for, prompts times choices: every one of these calls of the gateway
// holds a place in the router and pages in a decode service.
inline constexpr size_t kMaxCallsPerAnswer = 128;

struct PromptList {
  std::vector<Prompt> prompts;
  bool is_list = false;  // Written as a list of prompts, be it of one.
};

// A text, a list of texts, a list of token ids, or a list of such lists. Texts are moved out of
// `object`, since a prompt may have megabytes.
absl::StatusOr<PromptList> ReadPrompts(Json& object, const std::string& name);

// The field "messages", and the chat template's other inputs: tools (unless tool_choice is none),
// add_generation_prompt, continue_final_message, chat_template_kwargs and reasoning_effort.
// Messages of the assistant and of tools may have no content. `body` is the text of `fields`:
// templates write keys in the order in which they stand there.
absl::StatusOr<ChatPrompt> ReadMessages(std::string_view body, const Fields& fields,
                                        UnknownFields unknown, std::vector<std::string>& warnings);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_REQUEST_PROMPT_H_
