// Tools as a chat request offers them, and calls of them in its messages.
#ifndef SERVICES_ROUTER_HTTP_REQUEST_TOOLS_H_
#define SERVICES_ROUTER_HTTP_REQUEST_TOOLS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/chat/jinja/value.h"
#include "common/tokenizer/chat/output/tool_call.h"
#include "services/router/http/json_input.h"
#include "services/router/http/request_fields.h"

namespace baton::router {

inline constexpr size_t kMaxTools = 128;
inline constexpr size_t kMaxToolBytes = 1 << 20;  // All of them, as JSON.

// The fields tools and tool_choice: functions with different names, and auto, none, required
// or one of them.
absl::Status CheckTools(const Fields& fields, UnknownFields unknown,
                        std::vector<std::string>& warnings);

// Whether the model may call tools: some are offered and tool_choice is not none.
bool OffersTools(const Fields& fields);

// The following need what CheckTools has accepted.
// What the chat template hears: `ordered` is the value of the field "tools".
absl::StatusOr<jinja::Value> ShownTools(const jinja::Value& ordered);
// What calls are read with; empty if none are offered.
chat::OfferedTools ReadOfferedTools(const Fields& fields);

// The fields tool_calls and tool_call_id of a message.
absl::Status CheckCallsOf(const Fields& message);

// What says something: clients send null and empty lists for what a message or a function doesn't
// have, while templates ask whether it is there. `value`: a dict.
absl::StatusOr<jinja::Value> WithoutNothing(const jinja::Value& value);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_REQUEST_TOOLS_H_
