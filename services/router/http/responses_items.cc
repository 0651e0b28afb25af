#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/router/http/responses.h"

namespace baton::router {
namespace {

// What every item may have besides: what the answer that it comes from said of it.
const std::vector<std::string>& NotesOfItems() {
  static const auto* names = new std::vector<std::string>{"id", "status", "phase", "caller"};
  return *names;
}

const FieldTable& ItemFields(const std::string& type) {
  static const auto* message =
      new FieldTable{"a message", {"type", "role", "content"}, NotesOfItems(), {}};
  static const auto* call = new FieldTable{
      "a function_call", {"type", "call_id", "name", "arguments"}, NotesOfItems(), {}};
  static const auto* output =
      new FieldTable{"a function_call_output", {"type", "call_id", "output"}, NotesOfItems(), {}};
  static const auto* reasoning = new FieldTable{
      "a reasoning item", {"type", "summary", "content", "encrypted_content"}, NotesOfItems(), {}};
  return type == "message"         ? *message
         : type == "function_call" ? *call
         : type == "reasoning"     ? *reasoning
                                   : *output;
}

const FieldTable& PartFields() {
  static const auto* table =
      new FieldTable{"a part", {"type", "text", "refusal"}, {"annotations", "logprobs"}, {}};
  return *table;
}

class ItemReader {
 public:
  ItemReader(UnknownFields unknown, std::vector<std::string>& warnings, ChatBody& chat)
      : unknown_(unknown), warnings_(warnings), chat_(chat) {}

  absl::Status Add(const Fields& item, const std::string& path) {
    BATON_ASSIGN_OR_RETURN(const auto given, item.String("type"));
    const std::string type = given.value_or("message");
    if (type == "item_reference") {
      return InvalidField(item.Path("type"),
                          "\"item_reference\" is not supported: no response is kept, so the item "
                          "itself has to be sent");
    }
    if (type != "message" && type != "function_call" && type != "function_call_output" &&
        type != "reasoning") {
      return InvalidField(item.Path("type"), absl::StrCat("\"", type.substr(0, 64),
                                                          "\" is no kind of item that is supported "
                                                          "here"));
    }
    BATON_RETURN_IF_ERROR(CheckFields(item, ItemFields(type), unknown_, warnings_));
    if (type == "message") return AddMessage(item, path);
    if (type == "function_call") return AddCall(item, path);
    if (type == "reasoning") return AddReasoning(item, path);
    BATON_ASSIGN_OR_RETURN(std::string id, RequiredString(item, "call_id"));
    BATON_ASSIGN_OR_RETURN(const std::vector<std::string> texts, Texts(item, "output"));
    chat_.Result(std::move(id), Lines(texts), path);
    return absl::OkStatus();
  }

 private:
  static std::string Lines(const std::vector<std::string>& texts) {
    std::string lines;
    for (size_t i = 0; i < texts.size(); ++i) absl::StrAppend(&lines, i == 0 ? "" : "\n", texts[i]);
    return lines;
  }

  // A text, or a list of parts that are text.
  absl::StatusOr<std::vector<std::string>> Texts(const Fields& owner, const char* name) {
    const Json* value = owner.Find(name);
    if (value != nullptr && value->is_string()) {
      return std::vector<std::string>{value->get<std::string>()};
    }
    if (value == nullptr || !value->is_array()) {
      return owner.Wrong(name, "a string or a list of parts");
    }
    std::vector<std::string> texts;
    for (size_t i = 0; i < value->size(); ++i) {
      const std::string path = owner.Path(absl::StrCat(name, "[", i, "]"));
      if (!(*value)[i].is_object()) return InvalidField(path, "must be an object");
      BATON_ASSIGN_OR_RETURN(std::string text, Part(Fields((*value)[i], path + ".")));
      texts.push_back(std::move(text));
    }
    return texts;
  }

  absl::StatusOr<std::string> Part(const Fields& part) {
    static const auto* kinds = new std::vector<std::string>{
        "input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal"};
    BATON_ASSIGN_OR_RETURN(const std::string type, RequiredString(part, "type"));
    if (std::find(kinds->begin(), kinds->end(), type) == kinds->end()) {
      return InvalidField(part.Path("type"),
                          absl::StrCat("\"", type.substr(0, 64),
                                       "\" is not supported: the model reads text alone"));
    }
    BATON_RETURN_IF_ERROR(CheckFields(part, PartFields(), unknown_, warnings_));
    return RequiredString(part, type == "refusal" ? "refusal" : "text");
  }

  absl::Status AddMessage(const Fields& item, const std::string& path) {
    BATON_ASSIGN_OR_RETURN(const std::string role, RequiredString(item, "role"));
    if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
      return item.Wrong("role", "user, assistant, system or developer");
    }
    BATON_ASSIGN_OR_RETURN(std::vector<std::string> texts, Texts(item, "content"));
    if (role == "assistant") {
      chat_.GoOn(role, path);
    } else {
      if (texts.empty()) return InvalidField(item.Path("content"), "must not be empty");
      chat_.Begin(role, path);
    }
    for (std::string& text : texts) chat_.Say(std::move(text));
    return absl::OkStatus();
  }

  absl::Status AddCall(const Fields& item, const std::string& path) {
    BATON_ASSIGN_OR_RETURN(std::string id, RequiredString(item, "call_id"));
    BATON_ASSIGN_OR_RETURN(std::string name, RequiredString(item, "name"));
    BATON_ASSIGN_OR_RETURN(std::string arguments, RequiredString(item, "arguments"));
    chat_.GoOn("assistant", path);
    chat_.Call(std::move(id), std::move(name), std::move(arguments));
    return absl::OkStatus();
  }

  absl::Status AddReasoning(const Fields& item, const std::string& path) {
    std::vector<std::string> texts;
    for (const char* name : {"content", "summary"}) {
      if (!texts.empty() || item.Find(name) == nullptr) continue;
      BATON_ASSIGN_OR_RETURN(texts, Texts(item, name));
    }
    if (texts.empty() && item.Find("encrypted_content") != nullptr) {
      return InvalidField(item.Path("encrypted_content"),
                          "can only be read by the service that wrote it; leave the item out");
    }
    chat_.GoOn("assistant", path);
    for (std::string& text : texts) chat_.Reason(std::move(text));
    return absl::OkStatus();
  }

  const UnknownFields unknown_;
  std::vector<std::string>& warnings_;
  ChatBody& chat_;
};

}  // namespace

absl::Status AddInput(const Fields& fields, UnknownFields unknown,
                      std::vector<std::string>& warnings, ChatBody& chat) {
  const Json* input = fields.Find("input");
  if (input != nullptr && input->is_string()) {
    chat.Begin("user", "input");
    chat.Say(input->get<std::string>());
    return absl::OkStatus();
  }
  if (input == nullptr || !input->is_array() || input->empty()) {
    return fields.Wrong("input", "a string or a non-empty list of items");
  }
  ItemReader reader(unknown, warnings, chat);
  for (size_t i = 0; i < input->size(); ++i) {
    const std::string path = absl::StrCat("input[", i, "]");
    if (!(*input)[i].is_object()) return InvalidField(path, "must be an object");
    BATON_RETURN_IF_ERROR(reader.Add(Fields((*input)[i], path + "."), path));
  }
  return absl::OkStatus();
}

}  // namespace baton::router
