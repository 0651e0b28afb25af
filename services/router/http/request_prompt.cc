#include "services/router/http/request_prompt.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton::router {
namespace {

constexpr size_t kMessagesLimit = 4096;
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

absl::StatusOr<Prompt> ReadPrompt(const Fields& fields, const std::string& name, const Json& value,
                                  bool text) {
  if (text && value.is_string()) return Prompt(value.get<std::string>());
  if (text || !value.is_array()) return fields.Wrong(name, kExpected);
  BATON_ASSIGN_OR_RETURN(TokenIdsPrompt ids, ReadIds(value, fields.Path(name)));
  return Prompt(std::move(ids));
}

// A string, or OpenAI's list of text parts.
absl::StatusOr<std::string> ReadContent(const Fields& message, bool may_be_absent) {
  const Json* content = message.Find("content");
  if (content == nullptr && may_be_absent) return std::string();
  if (content == nullptr) return message.Wrong("content", "a string");
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) return message.Wrong("content", "a string or a list of text parts");
  std::string text;
  for (const Json& part : *content) {
    const bool is_text = part.is_object() && part.contains("type") && part["type"] == "text" &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text) {
      return InvalidField(message.Path("content"), "only parts of type text are supported");
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

absl::StatusOr<ChatMessage> ReadMessage(const Fields& message, UnknownFields unknown,
                                        std::vector<std::string>& warnings) {
  BATON_ASSIGN_OR_RETURN(const auto role, message.String("role"));
  if (!role.has_value()) return message.Wrong("role", "a string");
  BATON_RETURN_IF_ERROR(CheckFields(message, MessageFields(), unknown, warnings));
  // An assistant's message without content says that it called tools or said nothing.
  const bool says_nothing = *role == "assistant" && message.object().contains("content");
  BATON_ASSIGN_OR_RETURN(std::string content, ReadContent(message, says_nothing));
  return ChatMessage{*role == "developer" ? "system" : *role, std::move(content)};
}

}  // namespace

absl::StatusOr<PromptList> ReadPrompts(const Fields& fields, const std::string& name) {
  const Json* value = fields.Find(name);
  if (value == nullptr) return fields.Wrong(name, kExpected);
  PromptList list;
  if (value->is_string()) {
    list.prompts.emplace_back(value->get<std::string>());
    return list;
  }
  if (!value->is_array()) return fields.Wrong(name, kExpected);
  list.is_list = !value->empty() && ((*value)[0].is_array() || (*value)[0].is_string());
  if (!list.is_list) {
    BATON_ASSIGN_OR_RETURN(TokenIdsPrompt ids, ReadIds(*value, fields.Path(name)));
    list.prompts.emplace_back(std::move(ids));
    return list;
  }
  if (value->size() > kMaxCallsPerAnswer) {
    return InvalidField(fields.Path(name), absl::StrCat("must be at most ", kMaxCallsPerAnswer,
                                                        " prompts, are ", value->size()));
  }
  for (const Json& element : *value) {
    BATON_ASSIGN_OR_RETURN(Prompt prompt,
                           ReadPrompt(fields, name, element, (*value)[0].is_string()));
    list.prompts.push_back(std::move(prompt));
  }
  return list;
}

absl::StatusOr<ChatPrompt> ReadMessages(const Fields& fields, UnknownFields unknown,
                                        std::vector<std::string>& warnings) {
  const Json* messages = fields.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return InvalidField("messages",
                        absl::StrCat("must be a non-empty list of messages, got ",
                                     messages == nullptr ? "nothing" : Describe(*messages)));
  }
  if (messages->size() > kMessagesLimit) {
    return InvalidField("messages", absl::StrCat("must be at most ", kMessagesLimit, " messages"));
  }
  ChatPrompt prompt;
  for (size_t i = 0; i < messages->size(); ++i) {
    if (!(*messages)[i].is_object()) {
      return InvalidField(absl::StrCat("messages[", i, "]"), "must be an object");
    }
    const Fields message((*messages)[i], absl::StrCat("messages[", i, "]."));
    BATON_ASSIGN_OR_RETURN(ChatMessage read, ReadMessage(message, unknown, warnings));
    prompt.messages.push_back(std::move(read));
  }
  BATON_ASSIGN_OR_RETURN(const auto generation, fields.Bool("add_generation_prompt"));
  prompt.add_generation_prompt = generation.value_or(true);
  return prompt;
}

}  // namespace baton::router
