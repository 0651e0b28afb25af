#include "common/tokenizer/chat/output/call_grammar.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/strings.h"

namespace baton::chat {
namespace {

// What stands around a call, as texts of the grammar; kNone's is empty.
struct Shape {
  std::string first;   // Before all calls.
  std::string begin;   // Before a call's name,
  std::string middle;  // between it and its arguments,
  std::string end;     // and behind these.
  std::string between;
  std::string last;
  std::string mark;  // What tells that a call begins, and is not part of `begin`.
};

std::string Quoted(std::string_view text) {
  return absl::StrCat(
      "\"", absl::StrReplaceAll(ToAbsl(text), {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}),
      "\"");
}

std::string Special(std::string_view mark) { return "%special " + Quoted(mark); }

Shape ShapeOf(ToolFormat format) {
  const std::string json = Quoted("{\"name\": \"");
  const std::string arguments = Quoted("\", \"arguments\": ");
  switch (format) {
    case ToolFormat::kHermes:
      return {.begin = Quoted("\n{\"name\": \""),
              .middle = arguments,
              .end = Quoted("}\n") + " " + Special("</tool_call>"),
              .between = Quoted("\n"),
              .mark = "<tool_call>"};
    case ToolFormat::kLlama3:
      return {.begin = json, .middle = Quoted("\", \"parameters\": "), .end = Quoted("}")};
    case ToolFormat::kJson:
      return {.begin = json, .middle = arguments, .end = Quoted("}")};
    case ToolFormat::kMistral:
      return {.begin = Quoted("[{\"name\": \""),
              .middle = arguments,
              .end = Quoted("}]"),
              .mark = "[TOOL_CALLS]"};
    case ToolFormat::kDeepSeekV3:
      return {.first = Special("<｜tool▁calls▁begin｜>"),
              .begin = Quoted("function") + " " + Special("<｜tool▁sep｜>"),
              .middle = Quoted("\n```json\n"),
              .end = Quoted("\n```") + " " + Special("<｜tool▁call▁end｜>"),
              .between = Quoted("\n"),
              .last = Special("<｜tool▁calls▁end｜>"),
              .mark = "<｜tool▁call▁begin｜>"};
    case ToolFormat::kKimi:
      return {.first = Special("<|tool_calls_section_begin|>"),
              .begin = Quoted("functions."),
              .middle = Quoted(":0") + " " + Special("<|tool_call_argument_begin|>"),
              .end = Special("<|tool_call_end|>"),
              .last = Special("<|tool_calls_section_end|>"),
              .mark = "<|tool_call_begin|>"};
    default:
      return {};
  }
}

}  // namespace

absl::StatusOr<std::string> CallGrammar(ToolFormat format, const std::vector<CallableTool>& tools,
                                        CallDemand demand) {
  const Shape shape = ShapeOf(format);
  if (shape.begin.empty() || (!demand.forced && shape.mark.empty())) {
    return absl::UnimplementedError(
        Concat("calls in the format ", NameOf(format), " cannot be constrained"));
  }
  std::string body;
  for (const CallableTool& tool : tools) {
    absl::StrAppend(&body, body.empty() ? "" : " | ", shape.begin, " ", Quoted(tool.name), " ",
                    shape.middle, " %json ", tool.schema, " ", shape.end, "\n");
  }
  std::string root;
  if (demand.forced) {
    const std::string mark = shape.mark.empty() ? "" : Special(shape.mark);
    // Only where something stands between calls can there be several.
    const bool several = demand.parallel && !shape.between.empty();
    root = Concat(shape.first, " ", mark, " body ",
                  several ? Concat("(", shape.between, " ", mark, " body)*") : "", " ", shape.last);
  } else {
    root = Concat("(%until ", Quoted(shape.mark), " body)* %without ", Quoted(shape.mark));
  }
  return Concat("root ::= ", root, "\nbody ::= ", body);
}

}  // namespace baton::chat
