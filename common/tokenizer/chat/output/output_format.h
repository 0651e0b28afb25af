// How a model writes calls of tools and reasoning into its text, by family.
#ifndef COMMON_TOKENIZER_CHAT_OUTPUT_OUTPUT_FORMAT_H_
#define COMMON_TOKENIZER_CHAT_OUTPUT_OUTPUT_FORMAT_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::chat {

enum class ToolFormat {
  kNone,
  kHermes,      // <tool_call>{"name": "f", "arguments": {}}</tool_call>
  kLlama3,      // {"name": "f", "parameters": {}}, perhaps after <|python_tag|>
  kPythonic,    // [f(a=1), g()]
  kMistral,     // [TOOL_CALLS][{"name": "f", "arguments": {}}] or [TOOL_CALLS]f[ARGS]{}
  kDeepSeekV3,  // <｜tool▁call▁begin｜>function<｜tool▁sep｜>f and JSON in a code block
  kKimi,        // <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>
  kGlm,         // <tool_call>f, then <arg_key>a</arg_key><arg_value>1</arg_value></tool_call>
  kQwenCoder,   // <tool_call><function=f><parameter=a>1</parameter></function></tool_call>
  kJson,        // {"name": "f", "arguments": {}}, or a list of these
};

enum class ReasoningFormat {
  kNone,
  kThink,        // <think>...</think>
  kThinkInside,  // The same, and a text without <think> begins inside.
  kKimi,         // ◁think▷...◁/think▷
  kMistral,      // [THINK]...[/THINK]
};

struct ReasoningMarks {
  std::string_view begin;
  std::string_view end;
  bool begins_inside = false;
};

// What is served: the model's formats and what its template and its tokenizer say of them.
struct ChatFormat {
  ToolFormat tools = ToolFormat::kNone;
  ReasoningFormat reasoning = ReasoningFormat::kNone;
  bool template_takes_tools = false;
  // Those of the formats' marks that are special tokens: without a parser no text shows them.
  std::vector<std::string> special_marks;
};

// The format for --tool-call-parser=`name`. "auto" looks into the text of the chat template and is
// kNone for one that it does not know. InvalidArgument, with the names, for an unknown one.
absl::StatusOr<ToolFormat> ToolFormatFor(std::string_view name, std::string_view template_text);
// The same for --reasoning-parser.
absl::StatusOr<ReasoningFormat> ReasoningFormatFor(std::string_view name,
                                                   std::string_view template_text);

// The name that the option has for it.
std::string_view NameOf(ToolFormat format);
std::string_view NameOf(ReasoningFormat format);

// Empty for kNone.
ReasoningMarks MarksOf(ReasoningFormat format);

// The fixed texts around calls. None is the beginning of another.
struct ToolMarks {
  std::vector<std::string_view> begin;  // What begins a call.
  std::string_view end;                 // What ends a call; empty: its value ends it.
  std::vector<std::string_view> within;
  std::vector<std::string_view> around;  // What stands around all calls together.
};
const ToolMarks& MarksOf(ToolFormat format);

// Every mark of both formats, each once.
std::vector<std::string> AllMarks(ToolFormat tools, ReasoningFormat reasoning);

}  // namespace baton::chat

#endif  // COMMON_TOKENIZER_CHAT_OUTPUT_OUTPUT_FORMAT_H_
