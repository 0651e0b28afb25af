// Bodies of OpenAI's API as calls of the gateway.
#ifndef SERVICES_ROUTER_HTTP_OPENAI_REQUEST_H_
#define SERVICES_ROUTER_HTTP_OPENAI_REQUEST_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "services/router/gateway.h"

namespace baton::router {

struct OpenAiRequest {
  GenerateCall call;
  bool stream = false;
  bool include_usage = false;  // A last chunk with the usage.
};

// `endpoint`: kCompletions or kChatCompletions. Types are checked here, ranges by the gateway. What
// would change the answer and is not supported (n > 1, penalties, tools, ...) is INVALID_ARGUMENT;
// what changes nothing in it (user, metadata, ...) is ignored.
absl::StatusOr<OpenAiRequest> ParseOpenAiRequest(Endpoint endpoint, std::string_view body);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_OPENAI_REQUEST_H_
