#include "common/tokenizer/chat/chat_template.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/jinja/json.h"
#include "common/tokenizer/chat/jinja/strings.h"
#include "common/tokenizer/words/utf8.h"

namespace baton {
namespace {

using jinja::Dict;
using jinja::List;
using jinja::Origin;
using jinja::Text;
using jinja::Value;

absl::Status CheckMessages(const std::vector<ChatMessage>& messages) {
  if (messages.empty()) return InvalidField("messages", "there must be at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto check = [&](std::string_view name, const std::string& text) {
      const std::optional<size_t> offset = FirstInvalidUtf8(text);
      if (!offset.has_value()) return absl::OkStatus();
      return InvalidField(Concat("messages[", i, "].", name),
                          Concat("is not UTF-8 at byte ", *offset));
    };
    BATON_RETURN_IF_ERROR(check("role", messages[i].role));
    BATON_RETURN_IF_ERROR(check("content", messages[i].content));
  }
  return absl::OkStatus();
}

// Templates write special tokens around a role ('<|' + role + '|>'), so these count as the
// template's own words; any other role is the client's.
bool IsUsualRole(std::string_view role) {
  constexpr std::string_view kRoles[] = {"system",  "user",        "assistant",
                                         "tool",    "developer",   "function",
                                         "ipython", "observation", "environment"};
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
}

// Clients write the arguments of a call as a string that holds JSON; templates expect its value.
absl::StatusOr<Value> WithArguments(const Value& function) {
  const Value* arguments =
      function.Is(Value::Kind::kDict) ? function.dict().Find("arguments") : nullptr;
  if (arguments == nullptr || !arguments->IsString()) return function;
  absl::StatusOr<Value> parsed = arguments->str().empty()
                                     ? Value::MakeDict({})
                                     : jinja::ParseJsonValue(arguments->str(), Origin::kClient);
  if (!parsed.ok() || !parsed->Is(Value::Kind::kDict)) return function;
  Dict changed = function.dict();
  changed.Set("arguments", *std::move(parsed));
  return Value::MakeDict(std::move(changed));
}

absl::StatusOr<Value> WithCalls(const Value& calls) {
  if (!calls.Is(Value::Kind::kList)) return calls;
  List changed;
  for (const Value& call : calls.items()) {
    const Value* function = call.Is(Value::Kind::kDict) ? call.dict().Find("function") : nullptr;
    if (function == nullptr) {
      changed.push_back(call);
      continue;
    }
    BATON_ASSIGN_OR_RETURN(Value with_arguments, WithArguments(*function));
    Dict copy = call.dict();
    copy.Set("function", std::move(with_arguments));
    BATON_ASSIGN_OR_RETURN(Value changed_call, Value::MakeDict(std::move(copy)));
    changed.push_back(std::move(changed_call));
  }
  return Value::MakeList(std::move(changed));
}

bool HasTextArguments(const ChatPrompt& prompt) {
  const auto member = [](const Value& value, std::string_view name) {
    return value.Is(Value::Kind::kDict) ? value.dict().Find(name) : nullptr;
  };
  const auto is_text = [&](const Value& call) {
    const Value* function = member(call, "function");
    const Value* arguments = function == nullptr ? nullptr : member(*function, "arguments");
    return arguments != nullptr && arguments->IsString();
  };
  return std::any_of(prompt.messages.begin(), prompt.messages.end(), [&](const auto& message) {
    const Value* calls = member(message.fields, "tool_calls");
    return calls != nullptr && calls->Is(Value::Kind::kList) &&
           std::any_of(calls->items().begin(), calls->items().end(), is_text);
  });
}

// `text` up to the end of `content`, its last message's, as transformers cuts it: white space that
// the template took from the content stays away.
absl::StatusOr<Text> CutAfter(const Text& text, const std::string& content) {
  const size_t begin = jinja::StripBegin(content);
  const size_t end = std::max(begin, jinja::StripEnd(content));
  const size_t at = text.bytes().rfind(content.substr(begin, end - begin));
  if (at == std::string::npos) {
    return InvalidField("continue_final_message",
                        "the chat template does not write the last message's content as it is");
  }
  // Without white space before it, the content may go on to its own end.
  const std::string rest = content.substr(begin);
  const bool keeps_space = begin == 0 && text.bytes().compare(at, rest.size(), rest) == 0;
  return text.Slice(0, at + (keeps_space ? rest.size() : end - begin));
}

}  // namespace

ChatTemplate::ChatTemplate(std::string source, std::string jinja_text, jinja::Template plain,
                           std::optional<jinja::Template> tool_use, jinja::Dict tokens)
    : source_(std::move(source)),
      text_(std::move(jinja_text)),
      plain_(std::move(plain)),
      tool_use_(std::move(tool_use)),
      tokens_(std::move(tokens)),
      knows_developer_(text_.find("developer") != std::string::npos),
      wants_parts_(plain_->VisitsContent()),
      wants_text_(!wants_parts_ || plain_->AsksForString()) {}

Value ChatTemplate::Role(const std::string& role) const {
  // OpenAI's later name of the same thing, which few templates know.
  if (role == "developer" && !knows_developer_) return Value::String("system");
  return Value::String(role, IsUsualRole(role) ? Origin::kTemplate : Origin::kClient);
}

absl::StatusOr<Value> ChatTemplate::Content(const ChatMessage& message) const {
  const Value* given =
      message.fields.Is(Value::Kind::kDict) ? message.fields.dict().Find("content") : nullptr;
  const bool is_list = given != nullptr && given->Is(Value::Kind::kList);
  if (is_list && wants_parts_) return *given;
  // A message that only calls tools: some templates ask whether its content is None.
  const bool calls =
      message.fields.Is(Value::Kind::kDict) && message.fields.dict().Find("tool_calls") != nullptr;
  if (given == nullptr && calls) return Value::None();
  Value text = Value::String(message.content, Origin::kClient);
  if (wants_text_) return text;
  Dict part;
  part.Set("type", Value::String("text"));
  part.Set("text", std::move(text));
  BATON_ASSIGN_OR_RETURN(Value value, Value::MakeDict(std::move(part)));
  return Value::MakeList({std::move(value)});
}

absl::StatusOr<Value> ChatTemplate::MessageValue(const ChatMessage& message,
                                                 Arguments arguments) const {
  Dict fields;
  if (message.fields.Is(Value::Kind::kDict)) fields = message.fields.dict();
  fields.Set("role", Role(message.role));
  BATON_ASSIGN_OR_RETURN(Value content, Content(message));
  fields.Set("content", std::move(content));
  const Value* calls = fields.Find("tool_calls");
  if (calls != nullptr && arguments == Arguments::kValues) {
    BATON_ASSIGN_OR_RETURN(Value with_calls, WithCalls(*calls));
    fields.Set("tool_calls", std::move(with_calls));
  }
  return Value::MakeDict(std::move(fields));
}

// DeepSeek's own templates join arguments to other text, which they can't do with a dict.
absl::StatusOr<Text> ChatTemplate::Render(const ChatPrompt& prompt, const std::tm& now) const {
  absl::StatusOr<Text> text = Render(prompt, now, Arguments::kValues);
  if (text.ok() || !absl::IsInvalidArgument(text.status()) || !HasTextArguments(prompt)) {
    return text;
  }
  absl::StatusOr<Text> joined = Render(prompt, now, Arguments::kText);
  return joined.ok() ? joined : text;
}

absl::StatusOr<Text> ChatTemplate::Render(const ChatPrompt& prompt, const std::tm& now,
                                          Arguments arguments) const {
  BATON_RETURN_IF_ERROR(CheckMessages(prompt.messages));
  if (!plain_.has_value()) {
    return absl::FailedPreconditionError(
        "the model has no chat template; start the server with --chat-template=FILE, chatml or "
        "llama3");
  }
  if (!prompt.tools.IsUndefined() && !takes_tools()) {
    return InvalidField("tools",
                        "the model's chat template takes no tools; leave them out, or start the "
                        "server with a --chat-template that takes them");
  }
  List messages;
  for (const ChatMessage& message : prompt.messages) {
    BATON_ASSIGN_OR_RETURN(Value value, MessageValue(message, arguments));
    messages.push_back(std::move(value));
  }
  Dict variables = tokens_;
  const bool has_tools = !prompt.tools.IsUndefined();
  // As transformers passes them: what isn't there is None.
  variables.Set("tools", has_tools ? prompt.tools : Value::None());
  variables.Set("documents", Value::None());
  if (prompt.variables.Is(Value::Kind::kDict)) {
    for (const Dict::Entry& entry : prompt.variables.dict().entries()) {
      BATON_RETURN_IF_ERROR(variables.Set(entry.key, entry.value));
    }
  }
  BATON_ASSIGN_OR_RETURN(Value list, Value::MakeList(std::move(messages)));
  variables.Set("messages", std::move(list));
  variables.Set("add_generation_prompt",
                Value::Bool(prompt.add_generation_prompt && !prompt.continue_final_message));
  const jinja::Template& chosen = has_tools && tool_use_.has_value() ? *tool_use_ : *plain_;
  absl::StatusOr<Text> text = chosen.Render(variables, now);
  if (!text.ok()) return Annotate(text.status(), "the model's chat template");
  if (!prompt.continue_final_message) return text;
  return CutAfter(*text, prompt.messages.back().content);
}

absl::StatusOr<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer,
                                                const ChatTemplate& chat_template,
                                                const ChatPrompt& prompt, const std::tm& now) {
  BATON_ASSIGN_OR_RETURN(const Text text, chat_template.Render(prompt, now));
  return tokenizer.EncodeMarked(text.bytes(), text.client_ranges());
}

}  // namespace baton
