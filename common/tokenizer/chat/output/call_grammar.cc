#include "common/tokenizer/chat/output/call_grammar.h"

#include <algorithm>
#include <optional>
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
  std::string mark;             // What tells that a call begins, and is not part of `begin`.
  std::string value = "%json";  // How the arguments are written.
};

std::string Quoted(std::string_view text) {
  return absl::StrCat(
      "\"", absl::StrReplaceAll(ToAbsl(text), {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}),
      "\"");
}

std::string Special(std::string_view mark) { return "%special " + Quoted(mark); }

std::optional<Shape> ShapeOf(ToolFormat format) {
  const std::string json = Quoted("{\"name\": \"");
  const std::string arguments = Quoted("\", \"arguments\": ");
  switch (format) {
    case ToolFormat::kHermes:
      return Shape{.begin = Quoted("\n{\"name\": \""),
                   .middle = arguments,
                   .end = Quoted("}\n") + " " + Special("</tool_call>"),
                   .between = Quoted("\n"),
                   .mark = "<tool_call>"};
    case ToolFormat::kLlama3:
      return Shape{.begin = json, .middle = Quoted("\", \"parameters\": "), .end = Quoted("}")};
    case ToolFormat::kJson:
      return Shape{.begin = json, .middle = arguments, .end = Quoted("}")};
    case ToolFormat::kPythonic:
      return Shape{.first = Quoted("["),
                   .middle = Quoted("("),
                   .end = Quoted(")"),
                   .between = Quoted(", "),
                   .last = Quoted("]"),
                   .value = "%keywords"};
    case ToolFormat::kGlm:
      return Shape{.middle = Quoted("\n") + "?",
                   .end = Special("</tool_call>"),
                   .between = Quoted("\n"),
                   .mark = "<tool_call>",
                   .value = "%arg_tags"};
    case ToolFormat::kQwenCoder:
      return Shape{.begin = Quoted("\n<function="),
                   .middle = Quoted(">\n"),
                   .end = Quoted("</function>\n") + " " + Special("</tool_call>"),
                   .between = Quoted("\n"),
                   .mark = "<tool_call>",
                   .value = "%parameter_tags"};
    case ToolFormat::kMistral:
      return Shape{.begin = Quoted("[{\"name\": \""),
                   .middle = arguments,
                   .end = Quoted("}]"),
                   .mark = "[TOOL_CALLS]"};
    case ToolFormat::kDeepSeekV3:
      return Shape{.first = Special("<｜tool▁calls▁begin｜>"),
                   .begin = Quoted("function") + " " + Special("<｜tool▁sep｜>"),
                   .middle = Quoted("\n```json\n"),
                   .end = Quoted("\n```") + " " + Special("<｜tool▁call▁end｜>"),
                   .between = Quoted("\n"),
                   .last = Special("<｜tool▁calls▁end｜>"),
                   .mark = "<｜tool▁call▁begin｜>"};
    case ToolFormat::kKimi:
      return Shape{.first = Special("<|tool_calls_section_begin|>"),
                   .begin = Quoted("functions."),
                   .middle = Quoted(":0") + " " + Special("<|tool_call_argument_begin|>"),
                   .end = Special("<|tool_call_end|>"),
                   .last = Special("<|tool_calls_section_end|>"),
                   .mark = "<|tool_call_begin|>"};
    case ToolFormat::kNone:
      break;
  }
  return std::nullopt;
}

// A call behind its name.
std::string BodyOf(const CallableTool& tool, const Shape& shape) {
  // Without a schema only the parser knows what the arguments may be.
  if (tool.schema.empty() && shape.value != "%json") {
    return absl::StrCat("%until ", Quoted("</tool_call>"));
  }
  std::string value = shape.value;
  if (shape.value != "%json" && shape.value != "%keywords") {
    for (const std::string& name : tool.text_parameters) absl::StrAppend(&value, " ", Quoted(name));
  }
  return absl::StrCat(shape.middle, " ", value, " ",
                      tool.schema.empty() ? R"({"type": "object"})" : tool.schema, " ", shape.end);
}

bool IsPythonName(std::string_view name) {
  return std::all_of(name.begin(), name.end(), [](char c) {
    return c == '_' || c == '.' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9');
  });
}

}  // namespace

absl::StatusOr<std::string> CallGrammar(ToolFormat format, const std::vector<CallableTool>& tools,
                                        CallDemand demand) {
  const std::optional<Shape> found = ShapeOf(format);
  if (!found.has_value() || (!demand.forced && found->mark.empty())) {
    return absl::UnimplementedError(
        Concat("calls in the format ", NameOf(format), " cannot be constrained"));
  }
  const Shape& shape = *found;
  std::string body;
  for (const CallableTool& tool : tools) {
    if (format == ToolFormat::kPythonic && !IsPythonName(tool.name)) {
      return absl::UnimplementedError(
          Concat("the format ", NameOf(format), " has no function named ", tool.name));
    }
    absl::StrAppend(&body, body.empty() ? "" : " | ", shape.begin, " ", Quoted(tool.name), " ",
                    BodyOf(tool, shape), "\n");
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
