// Which template --chat-template names.
#include <array>
#include <utility>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/chat_template.h"

namespace baton {
namespace {

constexpr size_t kMaxTemplateBytes = 1 << 20;

struct BuiltIn {
  std::string_view name;
  std::array<std::string_view, 4> tokens;  // The special tokens that it writes.
  std::string_view jinja;
};

// <|im_start|>user\nHello<|im_end|>\n. The results of tools are told by the user, between tags, all
// that follow each other in one turn.
constexpr BuiltIn kChatMl = {"chatml",
                             {"<|im_start|>", "<|im_end|>"},
                             R"({%- for message in messages -%}
{%- set content = message.content or '' -%}
{%- if message.role not in ['system', 'user', 'assistant', 'tool'] -%}
{{- raise_exception('the role must be system, user, assistant or tool, is ' + message.role) -}}
{%- endif -%}
{%- if message.role == 'tool' -%}
{{- '<|im_start|>user\n' if loop.first or loop.previtem.role != 'tool' else '\n' -}}
{{- '<tool_response>\n' + content + '\n</tool_response>' -}}
{{- '<|im_end|>\n' if loop.last or loop.nextitem.role != 'tool' -}}
{%- else -%}
{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{{- '<|im_start|>assistant\n' if add_generation_prompt -}})"};

// <|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>, with white space
// around the content dropped. Tools speak as "ipython".
constexpr BuiltIn kLlama3 = {
    "llama3",
    {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
    R"({{- '<|begin_of_text|>' -}}
{%- for message in messages -%}
{%- if message.role not in ['system', 'user', 'assistant', 'tool'] -%}
{{- raise_exception('the role must be system, user, assistant or tool, is ' + message.role) -}}
{%- endif -%}
{%- set role = 'ipython' if message.role == 'tool' else message.role -%}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' -}}
{{- (message.content or '') | trim + '<|eot_id|>' -}}
{%- endfor -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' if add_generation_prompt -}})"};

// The first of the template's special tokens that `tokenizer` lacks; empty if it has all.
std::string_view MissingToken(const BuiltIn& built_in, const Tokenizer& tokenizer) {
  for (const std::string_view token : built_in.tokens) {
    if (token.empty()) continue;
    const std::optional<int32_t> id = tokenizer.TokenId(token);
    if (!id.has_value() || !tokenizer.IsSpecial(*id)) return token;
  }
  return {};
}

absl::StatusOr<jinja::Template> ParseFrom(const ChatTemplateSource& source) {
  absl::StatusOr<jinja::Template> parsed = jinja::Template::Parse(source.jinja);
  if (!parsed.ok()) return Annotate(parsed.status(), Concat(source.file, ": chat template"));
  return parsed;
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> Make(const ChatTemplateSource& source,
                                                   const Tokenizer& tokenizer,
                                                   const ChatTemplateSource* tool_use = nullptr) {
  BATON_ASSIGN_OR_RETURN(jinja::Template plain, ParseFrom(source));
  std::optional<jinja::Template> with_tools;
  if (tool_use != nullptr) {
    BATON_ASSIGN_OR_RETURN(with_tools, ParseFrom(*tool_use));
  }
  jinja::Dict tokens;
  for (const auto& [role, token] : tokenizer.named_tokens()) {
    tokens.Set(role, jinja::Value::String(token));
  }
  std::string text = source.jinja;
  if (tool_use != nullptr) text += "\n" + tool_use->jinja;
  return std::make_unique<ChatTemplate>(source.file, std::move(text), std::move(plain),
                                        std::move(with_tools), std::move(tokens));
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> MakeBuiltIn(const BuiltIn& built_in,
                                                          const Tokenizer& tokenizer) {
  if (const std::string_view missing = MissingToken(built_in, tokenizer); !missing.empty()) {
    return absl::InvalidArgumentError(Concat("--chat-template=", built_in.name,
                                             ": the tokenizer has no special token ", missing));
  }
  return Make({std::string(built_in.name), std::string(built_in.jinja)}, tokenizer);
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> MakeAuto(const Tokenizer& tokenizer) {
  const auto& templates = tokenizer.chat_templates();
  if (const auto own = templates.find("default"); own != templates.end()) {
    const auto tool_use = templates.find("tool_use");
    return Make(own->second, tokenizer, tool_use == templates.end() ? nullptr : &tool_use->second);
  }
  for (const BuiltIn* built_in : {&kChatMl, &kLlama3}) {
    if (MissingToken(*built_in, tokenizer).empty()) return MakeBuiltIn(*built_in, tokenizer);
  }
  return std::make_unique<ChatTemplate>();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> MakeChatTemplate(std::string_view choice,
                                                               const Tokenizer& tokenizer) {
  if (choice == "auto" || choice.empty()) return MakeAuto(tokenizer);
  const auto& templates = tokenizer.chat_templates();
  if (const auto named = templates.find(std::string(choice)); named != templates.end()) {
    return Make(named->second, tokenizer);
  }
  for (const BuiltIn* built_in : {&kChatMl, &kLlama3}) {
    if (choice == built_in->name) return MakeBuiltIn(*built_in, tokenizer);
  }
  if (choice.find('/') != std::string_view::npos || choice.ends_with(".jinja")) {
    ChatTemplateSource source{std::string(choice), ""};
    absl::StatusOr<std::string> text = ReadBoundedFile(source.file, kMaxTemplateBytes);
    if (!text.ok()) return Annotate(text.status(), "--chat-template");
    source.jinja = *std::move(text);
    return Make(source, tokenizer);
  }
  std::string names;
  for (const auto& [name, source] : templates) names += Concat(name, ", ");
  return absl::InvalidArgumentError(Concat("--chat-template=", choice,
                                           ": must be auto, chatml, llama3, ", names,
                                           "or a file's path with a / or the ending .jinja"));
}

}  // namespace baton
