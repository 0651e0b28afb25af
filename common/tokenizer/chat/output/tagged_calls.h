// Calls whose arguments stand between marks, each by itself.
#ifndef COMMON_TOKENIZER_CHAT_OUTPUT_TAGGED_CALLS_H_
#define COMMON_TOKENIZER_CHAT_OUTPUT_TAGGED_CALLS_H_

#include <optional>
#include <string_view>

#include "common/tokenizer/chat/output/tool_call.h"

namespace baton::chat {

// The call in `body`; nullopt if it is malformed. A value is a string if the schema says so or if
// it is no JSON; Python's constants count as JSON's. Work is linear in `body`.
// f<arg_key>a</arg_key><arg_value>1</arg_value>
std::optional<ToolCall> ParseGlmCall(std::string_view body, const OfferedTools& offered);
// <function=f><parameter=a>1</parameter></function>
std::optional<ToolCall> ParseQwenCoderCall(std::string_view body, const OfferedTools& offered);

// Whether `body`, which is malformed, breaks off within a value.
bool GlmEndsInValue(std::string_view body);
bool QwenCoderEndsInValue(std::string_view body);

}  // namespace baton::chat

#endif  // COMMON_TOKENIZER_CHAT_OUTPUT_TAGGED_CALLS_H_
