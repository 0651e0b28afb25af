#include "services/router/http/request_prompt.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/tokenizer/chat/jinja/json.h"
#include "services/router/http/request_tools.h"

namespace baton::router {
namespace {

constexpr size_t kMessagesLimit = 4096;
constexpr char kEffort[] = "reasoning_effort";
constexpr char kExpected[] = "a string, a list of token ids, or a list of either";

absl::StatusOr<TokenIdsPrompt> ReadIds(const Json& list, const std::string& path) {
  TokenIdsPrompt ids;
  ids.reserve(list.size());
  for (const Json& id : list) {
    BATON_ASSIGN_OR_RETURN(const int64_t value, IntegerValue(id, path));
    ids.push_back(value);
  }
  return ids;
}

std::string TakeText(Json& value) { return std::move(value.get_ref<std::string&>()); }

absl::StatusOr<Prompt> ReadPrompt(const Fields& fields, const std::string& name, Json& value,
                                  bool text) {
  if (text && value.is_string()) return Prompt(TakeText(value));
  if (text || !value.is_array()) return fields.Wrong(name, kExpected);
  BATON_ASSIGN_OR_RETURN(TokenIdsPrompt ids, ReadIds(value, fields.Path(name)));
  return Prompt(std::move(ids));
}

// A string, or OpenAI's list of text parts, which stand in lines of their own for a template that
// takes a string.
absl::StatusOr<std::string> ReadContent(const Fields& message, bool may_be_absent) {
  const Json* content = message.Find("content");
  if (content == nullptr && may_be_absent) return std::string();
  if (content == nullptr) return message.Wrong("content", "a string");
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) return message.Wrong("content", "a string or a list of text parts");
  std::string text;
  bool first = true;
  for (const Json& part : *content) {
    const bool is_text = part.is_object() && part.contains("type") && part["type"] == "text" &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text) {
      return InvalidField(message.Path("content"), "only parts of type text are supported");
    }
    if (!std::exchange(first, false)) text += '\n';
    text += part["text"].get<std::string>();
  }
  return text;
}

absl::StatusOr<ChatMessage> ReadMessage(const Fields& message, const jinja::Value& ordered,
                                        UnknownFields unknown, std::vector<std::string>& warnings) {
  BATON_ASSIGN_OR_RETURN(const auto role, message.String("role"));
  if (!role.has_value()) return message.Wrong("role", "a string");
  BATON_RETURN_IF_ERROR(CheckFields(message, MessageFields(), unknown, warnings));
  BATON_RETURN_IF_ERROR(CheckCallsOf(message));
  // An assistant's message without content says that it called tools or said nothing, a tool's that
  // it returned nothing.
  const bool may_be_absent = *role == "assistant" || *role == "tool";
  BATON_ASSIGN_OR_RETURN(std::string content, ReadContent(message, may_be_absent));
  BATON_ASSIGN_OR_RETURN(jinja::Value said, WithoutNothing(ordered));
  return ChatMessage{*role, std::move(content), std::move(said)};
}

// The variables of chat_template_kwargs.
absl::StatusOr<jinja::Value> ReadKwargs(const Fields& fields, const jinja::Value& ordered) {
  const Json* given = fields.Find("chat_template_kwargs");
  if (given == nullptr) return jinja::Value();
  if (!given->is_object()) return fields.Wrong("chat_template_kwargs", "an object");
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt",
                           "continue_final_message", "chat_template", "tokenize"}) {
    if (given->contains(name)) {
      return InvalidField(absl::StrCat("chat_template_kwargs.", name),
                          "can't be given here; it is a field of the request, if anything");
    }
  }
  return *ordered.dict().Find("chat_template_kwargs");
}

// These and reasoning_effort, which is one too. What is said in the former counts. Templates that
// know no effort know a switch of thinking, by one of two names.
absl::StatusOr<jinja::Value> ReadVariables(const Fields& fields, const jinja::Value& ordered) {
  BATON_ASSIGN_OR_RETURN(jinja::Value kwargs, ReadKwargs(fields, ordered));
  BATON_ASSIGN_OR_RETURN(const auto effort, fields.String(kEffort));
  if (!effort.has_value()) return kwargs;
  jinja::Dict variables;
  if (kwargs.Is(jinja::Value::Kind::kDict)) variables = kwargs.dict();
  if (variables.Find(kEffort) != nullptr) return kwargs;
  variables.Set(kEffort, jinja::Value::String(*effort, jinja::Origin::kClient));
  for (const char* name : {"enable_thinking", "thinking"}) {
    if (*effort == "none" && variables.Find(name) == nullptr) {
      variables.Set(name, jinja::Value::Bool(false));
    }
  }
  return jinja::Value::MakeDict(std::move(variables));
}

absl::Status ReadEnding(const Fields& fields, ChatPrompt& prompt) {
  BATON_ASSIGN_OR_RETURN(const auto generation, fields.Bool("add_generation_prompt"));
  BATON_ASSIGN_OR_RETURN(const auto continues, fields.Bool("continue_final_message"));
  prompt.continue_final_message = continues.value_or(false);
  prompt.add_generation_prompt = generation.value_or(!prompt.continue_final_message);
  if (!prompt.continue_final_message || !prompt.add_generation_prompt) return absl::OkStatus();
  return InvalidField("continue_final_message",
                      "can't be true together with add_generation_prompt");
}

}  // namespace

absl::StatusOr<PromptList> ReadPrompts(Json& object, const std::string& name) {
  const Fields fields(object);
  if (fields.Find(name) == nullptr) return fields.Wrong(name, kExpected);
  Json& value = object[name];
  PromptList list;
  if (value.is_string()) {
    list.prompts.emplace_back(TakeText(value));
    return list;
  }
  if (!value.is_array()) return fields.Wrong(name, kExpected);
  list.is_list = !value.empty() && (value[0].is_array() || value[0].is_string());
  if (!list.is_list) {
    BATON_ASSIGN_OR_RETURN(TokenIdsPrompt ids, ReadIds(value, name));
    list.prompts.emplace_back(std::move(ids));
    return list;
  }
  if (value.size() > kMaxCallsPerAnswer) {
    return InvalidField(
        name, absl::StrCat("must be at most ", kMaxCallsPerAnswer, " prompts, are ", value.size()));
  }
  const bool texts = value[0].is_string();
  for (Json& element : value) {
    BATON_ASSIGN_OR_RETURN(Prompt prompt, ReadPrompt(fields, name, element, texts));
    list.prompts.push_back(std::move(prompt));
  }
  return list;
}

absl::StatusOr<ChatPrompt> ReadMessages(std::string_view body, const Fields& fields,
                                        UnknownFields unknown, std::vector<std::string>& warnings) {
  const Json* messages = fields.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return InvalidField("messages",
                        absl::StrCat("must be a non-empty list of messages, got ",
                                     messages == nullptr ? "nothing" : Describe(*messages)));
  }
  if (messages->size() > kMessagesLimit) {
    return InvalidField("messages", absl::StrCat("must be at most ", kMessagesLimit, " messages"));
  }
  BATON_ASSIGN_OR_RETURN(const jinja::Value ordered,
                         jinja::ParseJsonValue(body, jinja::Origin::kClient,
                                               {"messages", "chat_template_kwargs", "tools"}));
  const jinja::List& ordered_messages = ordered.dict().Find("messages")->items();
  ChatPrompt prompt;
  for (size_t i = 0; i < messages->size(); ++i) {
    if (!(*messages)[i].is_object()) {
      return InvalidField(absl::StrCat("messages[", i, "]"), "must be an object");
    }
    const Fields message((*messages)[i], absl::StrCat("messages[", i, "]."));
    BATON_ASSIGN_OR_RETURN(ChatMessage read,
                           ReadMessage(message, ordered_messages[i], unknown, warnings));
    prompt.messages.push_back(std::move(read));
  }
  BATON_ASSIGN_OR_RETURN(prompt.variables, ReadVariables(fields, ordered));
  BATON_RETURN_IF_ERROR(CheckTools(fields, unknown, warnings));
  if (OffersTools(fields)) {
    BATON_ASSIGN_OR_RETURN(prompt.tools, ShownTools(*ordered.dict().Find("tools")));
  }
  BATON_RETURN_IF_ERROR(ReadEnding(fields, prompt));
  return prompt;
}

}  // namespace baton::router
