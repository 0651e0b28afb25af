#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/router/http/messages.h"

namespace baton::router {
namespace {

// Claude Code's first block of a system prompt, which differs from request to request. It is said
// to the service and not to the model, and would keep prompts from sharing cached KV.
constexpr std::string_view kBilling = "x-anthropic-billing-header:";

const FieldTable& MessageOfAnthropic() {
  static const auto* table = new FieldTable{"a message", {"role", "content"}, {}, {}};
  return *table;
}
const FieldTable& TextFields() {
  static const auto* table = new FieldTable{
      "a text block", {"type", "text"}, {"cache_control"}, {{"citations", {Json::array()}, ""}}};
  return *table;
}
const FieldTable& ThinkingFields() {
  static const auto* table =
      new FieldTable{"a thinking block", {"type", "thinking"}, {"signature", "cache_control"}, {}};
  return *table;
}
const FieldTable& ToolUseFields() {
  static const auto* table = new FieldTable{
      "a tool_use block", {"type", "id", "name", "input"}, {"cache_control", "caller"}, {}};
  return *table;
}
const FieldTable& ToolResultFields() {
  static const auto* table = new FieldTable{
      "a tool_result block", {"type", "tool_use_id", "content", "is_error"}, {"cache_control"}, {}};
  return *table;
}

absl::Status UnknownBlock(const Fields& block, const std::string& type) {
  std::string_view why = "is no kind of block that is supported here";
  if (type == "image" || type == "document" || type == "container_upload") {
    why = "is not supported: the model reads text alone";
  } else if (type == "redacted_thinking") {
    why = "can only be read by the service that wrote it; leave it out";
  }
  return InvalidField(block.Path("type"), absl::StrCat("\"", type.substr(0, 64), "\" ",
                                                       absl::string_view(why.data(), why.size())));
}

class BlockReader {
 public:
  BlockReader(UnknownFields unknown, std::vector<std::string>& warnings, ChatBody& chat)
      : unknown_(unknown), warnings_(warnings), chat_(chat) {}

  absl::StatusOr<std::string> Text(const Fields& block) const {
    BATON_RETURN_IF_ERROR(CheckFields(block, TextFields(), unknown_, warnings_));
    return RequiredString(block, "text");
  }

  // A text, or a list of text blocks.
  absl::StatusOr<std::vector<std::string>> Texts(const Fields& owner, const char* name) const {
    const Json& value = *owner.Find(name);
    if (value.is_string()) return std::vector<std::string>{value.get<std::string>()};
    if (!value.is_array()) return owner.Wrong(name, "a string or a list of blocks");
    std::vector<std::string> texts;
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string path = owner.Path(absl::StrCat(name, "[", i, "]"));
      if (!value[i].is_object()) return InvalidField(path, "must be an object");
      const Fields block(value[i], path + ".");
      BATON_ASSIGN_OR_RETURN(const std::string type, RequiredString(block, "type"));
      if (type != "text") return UnknownBlock(block, type);
      BATON_ASSIGN_OR_RETURN(std::string text, Text(block));
      texts.push_back(std::move(text));
    }
    return texts;
  }

  absl::Status Add(const std::string& role, const Fields& block, const jinja::Value& ordered,
                   const std::string& path) {
    BATON_ASSIGN_OR_RETURN(const std::string type, RequiredString(block, "type"));
    if (type == "text") {
      BATON_ASSIGN_OR_RETURN(std::string text, Text(block));
      chat_.GoOn(role, path);
      chat_.Say(std::move(text));
      return absl::OkStatus();
    }
    const bool is_call = type == "tool_use";
    const bool is_thinking = type == "thinking";
    if (is_call || is_thinking) {
      if (role != "assistant") return InvalidField(block.Path("type"), "is the assistant's alone");
      chat_.GoOn(role, path);
      return is_call ? AddCall(block, ordered) : AddThinking(block);
    }
    if (type != "tool_result") return UnknownBlock(block, type);
    if (role != "user") return InvalidField(block.Path("type"), "is the user's alone");
    return AddResult(block, path);
  }

 private:
  absl::Status AddThinking(const Fields& block) {
    BATON_RETURN_IF_ERROR(CheckFields(block, ThinkingFields(), unknown_, warnings_));
    BATON_ASSIGN_OR_RETURN(std::string thinking, RequiredString(block, "thinking"));
    if (!thinking.empty()) chat_.Reason(std::move(thinking));
    return absl::OkStatus();
  }

  absl::Status AddCall(const Fields& block, const jinja::Value& ordered) {
    BATON_RETURN_IF_ERROR(CheckFields(block, ToolUseFields(), unknown_, warnings_));
    BATON_ASSIGN_OR_RETURN(std::string id, RequiredString(block, "id"));
    BATON_ASSIGN_OR_RETURN(std::string name, RequiredString(block, "name"));
    const Json* input = block.Find("input");
    if (input == nullptr || !input->is_object()) return block.Wrong("input", "an object");
    BATON_ASSIGN_OR_RETURN(std::string arguments, JsonAsWritten(*ordered.dict().Find("input")));
    chat_.Call(std::move(id), std::move(name), std::move(arguments));
    return absl::OkStatus();
  }

  // A chat has no field for a failure, so it is said.
  absl::Status AddResult(const Fields& block, const std::string& path) {
    BATON_RETURN_IF_ERROR(CheckFields(block, ToolResultFields(), unknown_, warnings_));
    BATON_ASSIGN_OR_RETURN(std::string id, RequiredString(block, "tool_use_id"));
    BATON_ASSIGN_OR_RETURN(const auto failed, block.Bool("is_error"));
    std::vector<std::string> texts;
    if (block.Find("content") != nullptr) {
      BATON_ASSIGN_OR_RETURN(texts, Texts(block, "content"));
    }
    std::string text = failed.value_or(false) ? "Error: " : "";
    for (size_t i = 0; i < texts.size(); ++i) absl::StrAppend(&text, i == 0 ? "" : "\n", texts[i]);
    chat_.Result(std::move(id), std::move(text), path);
    return absl::OkStatus();
  }

  const UnknownFields unknown_;
  std::vector<std::string>& warnings_;
  ChatBody& chat_;
};

absl::Status AddContent(BlockReader& reader, const std::string& role, const Fields& message,
                        const jinja::Value& ordered, ChatBody& chat) {
  const Json* content = message.Find("content");
  const bool is_text = content != nullptr && content->is_string();
  if (content == nullptr || (!is_text && !content->is_array())) {
    return message.Wrong("content", "a string or a list of blocks");
  }
  if (is_text) {
    chat.GoOn(role, message.Path("content"));
    chat.Say(content->get<std::string>());
    return absl::OkStatus();
  }
  if (content->empty()) return InvalidField(message.Path("content"), "must not be empty");
  const jinja::List& blocks = ordered.dict().Find("content")->items();
  for (size_t i = 0; i < content->size(); ++i) {
    const std::string path = message.Path(absl::StrCat("content[", i, "]"));
    if (!(*content)[i].is_object()) return InvalidField(path, "must be an object");
    const Fields block((*content)[i], path + ".");
    BATON_RETURN_IF_ERROR(reader.Add(role, block, blocks[i], path));
  }
  return absl::OkStatus();
}

// The answer goes on where the last message stops, so it must not stop with a call.
absl::Status CheckLast(const Json& message, const std::string& path, ChatBody& chat) {
  if (message["role"] != "assistant") return absl::OkStatus();
  if (message["content"].is_array()) {
    for (const Json& block : message["content"]) {
      if (block["type"] != "tool_use") continue;
      return InvalidField(path, "has a tool_use, so a message with its tool_result must follow");
    }
  }
  chat.Set("continue_final_message", true, path);
  return absl::OkStatus();
}

}  // namespace

absl::Status AddSystem(const Fields& fields, UnknownFields unknown,
                       std::vector<std::string>& warnings, ChatBody& chat) {
  if (fields.Find("system") == nullptr) return absl::OkStatus();
  const BlockReader reader(unknown, warnings, chat);
  BATON_ASSIGN_OR_RETURN(std::vector<std::string> texts, reader.Texts(fields, "system"));
  for (std::string& text : texts) {
    if (text.starts_with(kBilling)) continue;
    chat.GoOn("system", "system");
    chat.Say(std::move(text));
  }
  return absl::OkStatus();
}

absl::Status AddMessages(const Fields& fields, const jinja::Value& ordered, UnknownFields unknown,
                         std::vector<std::string>& warnings, ChatBody& chat) {
  const Json* messages = fields.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return fields.Wrong("messages", "a non-empty list of messages");
  }
  BlockReader reader(unknown, warnings, chat);
  std::string path;
  for (size_t i = 0; i < messages->size(); ++i) {
    path = absl::StrCat("messages[", i, "]");
    if (!(*messages)[i].is_object()) return InvalidField(path, "must be an object");
    const Fields message((*messages)[i], path + ".");
    BATON_ASSIGN_OR_RETURN(const std::string role, RequiredString(message, "role"));
    if (role != "user" && role != "assistant") {
      return InvalidField(message.Path("role"),
                          "must be user or assistant; a system prompt is the field system");
    }
    BATON_RETURN_IF_ERROR(CheckFields(message, MessageOfAnthropic(), unknown, warnings));
    BATON_RETURN_IF_ERROR(AddContent(reader, role, message, ordered.items()[i], chat));
  }
  return CheckLast(messages->back(), path, chat);
}

}  // namespace baton::router
