#include "common/tokenizer/chat/output/output_format.h"

#include <algorithm>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "common/base/strings.h"

namespace baton::chat {
namespace {

template <typename Format>
struct Name {
  std::string_view name;
  Format format;
};

// The first name of a format is its own; the others are those of vLLM and SGLang.
constexpr Name<ToolFormat> kToolNames[] = {
    {"none", ToolFormat::kNone},
    {"hermes", ToolFormat::kHermes},
    {"qwen", ToolFormat::kHermes},
    {"qwen25", ToolFormat::kHermes},
    {"qwen3", ToolFormat::kHermes},
    {"llama3", ToolFormat::kLlama3},
    {"llama3_json", ToolFormat::kLlama3},
    {"llama4_json", ToolFormat::kLlama3},
    {"pythonic", ToolFormat::kPythonic},
    {"llama4_pythonic", ToolFormat::kPythonic},
    {"mistral", ToolFormat::kMistral},
    {"deepseek-v3", ToolFormat::kDeepSeekV3},
    {"deepseek_v3", ToolFormat::kDeepSeekV3},
    {"deepseekv3", ToolFormat::kDeepSeekV3},
    {"deepseek_v31", ToolFormat::kDeepSeekV3},
    {"deepseekv31", ToolFormat::kDeepSeekV3},
    {"kimi", ToolFormat::kKimi},
    {"kimi_k2", ToolFormat::kKimi},
    {"glm", ToolFormat::kGlm},
    {"glm45", ToolFormat::kGlm},
    {"glm47", ToolFormat::kGlm},
    {"qwen3-coder", ToolFormat::kQwenCoder},
    {"qwen3_coder", ToolFormat::kQwenCoder},
    {"qwen3_xml", ToolFormat::kQwenCoder},
    {"json", ToolFormat::kJson},
};

constexpr Name<ReasoningFormat> kReasoningNames[] = {
    {"none", ReasoningFormat::kNone},
    {"qwen3", ReasoningFormat::kThink},
    {"glm", ReasoningFormat::kThink},
    {"glm45", ReasoningFormat::kThink},
    {"kimi-k2", ReasoningFormat::kThink},
    {"kimi_k2", ReasoningFormat::kThink},
    {"deepseek-v3", ReasoningFormat::kThink},
    {"deepseek_v3", ReasoningFormat::kThink},
    {"deepseek-r1", ReasoningFormat::kThinkInside},
    {"deepseek_r1", ReasoningFormat::kThinkInside},
    {"qwen3-thinking", ReasoningFormat::kThinkInside},
    {"kimi", ReasoningFormat::kKimi},
    {"mistral", ReasoningFormat::kMistral},
};

// What only the templates of one family have in them. The order counts.
constexpr Name<ToolFormat> kToolSigns[] = {
    {"<｜tool▁calls▁begin｜>", ToolFormat::kDeepSeekV3},
    {"<|tool_calls_section_begin|>", ToolFormat::kKimi},
    {"<arg_key>", ToolFormat::kGlm},
    {"[TOOL_CALLS]", ToolFormat::kMistral},
    {"<parameter=", ToolFormat::kQwenCoder},
    // Others that stand in tags, perhaps between Hermes's marks. No parser here reads them.
    {"<function=", ToolFormat::kNone},
    {"<tool_call>", ToolFormat::kHermes},
    {"func_name1(", ToolFormat::kPythonic},
    {"<|python_tag|>", ToolFormat::kLlama3},
    {"\"parameters\": dictionary of argument name", ToolFormat::kLlama3},
};

constexpr Name<ReasoningFormat> kReasoningSigns[] = {
    {"◁think▷", ReasoningFormat::kKimi},
    {"[THINK]", ReasoningFormat::kMistral},
    {"<think>", ReasoningFormat::kThink},
    {"</think>", ReasoningFormat::kThink},
};

template <typename Format>
std::optional<Format> Find(std::span<const Name<Format>> names, std::string_view name) {
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](const Name<Format>& entry) { return entry.name == name; });
  if (found == names.end()) return std::nullopt;
  return found->format;
}

template <typename Format>
Format Detect(std::span<const Name<Format>> signs, std::string_view text) {
  for (const Name<Format>& sign : signs) {
    if (text.find(sign.name) != std::string_view::npos) return sign.format;
  }
  return Format::kNone;
}

template <typename Format>
absl::StatusOr<Format> Choose(std::string_view option, std::string_view name,
                              std::string_view template_text, std::span<const Name<Format>> names,
                              std::span<const Name<Format>> signs) {
  if (name.empty() || name == "auto") return Detect(signs, template_text);
  if (const auto format = Find(names, name)) return *format;
  std::string known = "auto";
  for (const Name<Format>& entry : names) known += Concat(", ", entry.name);
  return absl::InvalidArgumentError(Concat(option, "=", name, ": must be one of ", known));
}

template <typename Format>
std::string_view FirstName(std::span<const Name<Format>> names, Format format) {
  return std::find_if(names.begin(), names.end(),
                      [&](const Name<Format>& entry) { return entry.format == format; })
      ->name;
}

}  // namespace

absl::StatusOr<ToolFormat> ToolFormatFor(std::string_view name, std::string_view template_text) {
  return Choose<ToolFormat>("--tool-call-parser", name, template_text, kToolNames, kToolSigns);
}

absl::StatusOr<ReasoningFormat> ReasoningFormatFor(std::string_view name,
                                                   std::string_view template_text) {
  return Choose<ReasoningFormat>("--reasoning-parser", name, template_text, kReasoningNames,
                                 kReasoningSigns);
}

std::string_view NameOf(ToolFormat format) { return FirstName<ToolFormat>(kToolNames, format); }

std::string_view NameOf(ReasoningFormat format) {
  return FirstName<ReasoningFormat>(kReasoningNames, format);
}

ReasoningMarks MarksOf(ReasoningFormat format) {
  switch (format) {
    case ReasoningFormat::kNone:
      return {};
    case ReasoningFormat::kThink:
      return {"<think>", "</think>", false};
    case ReasoningFormat::kThinkInside:
      return {"<think>", "</think>", true};
    case ReasoningFormat::kKimi:
      return {"◁think▷", "◁/think▷", false};
    case ReasoningFormat::kMistral:
      return {"[THINK]", "[/THINK]", false};
  }
  return {};
}

const ToolMarks& MarksOf(ToolFormat format) {
  static const auto* none = new ToolMarks{};
  static const auto* hermes = new ToolMarks{{"<tool_call>"}, "</tool_call>", {}, {}};
  static const auto* llama3 = new ToolMarks{{"<|python_tag|>"}, "", {}, {}};
  static const auto* pythonic =
      new ToolMarks{{"<|python_start|>", "<|python_tag|>"}, "", {}, {"<|python_end|>"}};
  static const auto* mistral = new ToolMarks{{"[TOOL_CALLS]"}, "", {"[CALL_ID]", "[ARGS]"}, {}};
  static const auto* deepseek = new ToolMarks{{"<｜tool▁call▁begin｜>"},
                                              "<｜tool▁call▁end｜>",
                                              {"<｜tool▁sep｜>"},
                                              {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"}};
  static const auto* kimi =
      new ToolMarks{{"<|tool_call_begin|>"},
                    "<|tool_call_end|>",
                    {"<|tool_call_argument_begin|>"},
                    {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"}};
  static const auto* glm = new ToolMarks{{"<tool_call>"},
                                         "</tool_call>",
                                         {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},
                                         {}};
  switch (format) {
    case ToolFormat::kNone:
    case ToolFormat::kJson:
      return *none;
    case ToolFormat::kHermes:
    case ToolFormat::kQwenCoder:
      return *hermes;
    case ToolFormat::kLlama3:
      return *llama3;
    case ToolFormat::kPythonic:
      return *pythonic;
    case ToolFormat::kMistral:
      return *mistral;
    case ToolFormat::kDeepSeekV3:
      return *deepseek;
    case ToolFormat::kKimi:
      return *kimi;
    case ToolFormat::kGlm:
      return *glm;
  }
  return *none;
}

std::vector<std::string> AllMarks(ToolFormat tools, ReasoningFormat reasoning) {
  std::vector<std::string> all;
  const auto add = [&](std::string_view mark) {
    if (!mark.empty()) all.emplace_back(mark);
  };
  const ToolMarks& marks = MarksOf(tools);
  for (const auto* list : {&marks.begin, &marks.within, &marks.around}) {
    for (const std::string_view mark : *list) add(mark);
  }
  add(marks.end);
  add(MarksOf(reasoning).begin);
  add(MarksOf(reasoning).end);
  return all;
}

}  // namespace baton::chat
