// Bodies of /v1/completions and /v1/chat/completions as calls of the gateway.
#ifndef SERVICES_ROUTER_HTTP_OPENAI_REQUEST_H_
#define SERVICES_ROUTER_HTTP_OPENAI_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/chat/output/tool_call.h"
#include "services/router/gateway.h"
#include "services/router/http/request_fields.h"
#include "services/router/http/request_structure.h"

namespace baton::router {

struct OpenAiRequest {
  GenerateCall call;            // What all choices share: everything but the prompt.
  std::vector<Prompt> prompts;  // At least one.
  int n = 1;                    // Choices per prompt that are answered,
  int best_of = 1;              // of so many that are generated; >= n.
  bool logprobs = false;        // In the answer; the call may ask for more, to rank.
  int64_t top_logprobs = 0;     // Alternatives in them; the call may ask for more, for the prompt.
  std::optional<int64_t> prompt_logprobs;  // Alternatives of each of the prompt's tokens.
  bool echo = false;                       // The prompt stands before each text.
  bool return_token_ids = false;
  bool stream = false;
  bool include_usage = false;     // A last chunk with the usage.
  bool continuous_usage = false;  // Every chunk has the usage so far.
  bool include_progress = false;  // Chunks that say how far a long prompt is.
  // In chats:
  chat::OfferedTools offered;               // What the model may call.
  bool parallel_calls = true;               // More than one of them.
  CallRules call_rules;                     // What they ask of the text.
  std::optional<int64_t> reasoning_budget;  // Tokens of reasoning, after which it is ended.
  bool separate_reasoning = true;           // Reasoning is no content,
  bool include_reasoning = true;            // and is told.
};

// `endpoint`: kCompletions or kChatCompletions; `timeout`: the header X-Request-Timeout. Types are
// checked here, ranges by the gateway. A field that would change the answer and is not supported is
// INVALID_ARGUMENT, and so is an unknown one unless `unknown` says otherwise.
absl::StatusOr<OpenAiRequest> ParseOpenAiRequest(Endpoint endpoint, std::string_view body,
                                                 UnknownFields unknown,
                                                 std::string_view timeout = "");

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_OPENAI_REQUEST_H_
