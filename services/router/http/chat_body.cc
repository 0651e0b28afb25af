#include "services/router/http/chat_body.h"

#include <iterator>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/tokenizer/chat/jinja/json.h"
#include "services/router/http/respond.h"

namespace baton::router {
namespace {

// Whether `beginning` is `field`, or a field that it is within.
bool IsWithin(std::string_view field, std::string_view beginning) {
  if (!field.starts_with(beginning)) return false;
  return field.size() == beginning.size() || field[beginning.size()] == '.' ||
         field[beginning.size()] == '[';
}

std::string Quote(const std::string& text) { return Dump(Json(text)); }

}  // namespace

absl::Status FieldRenames::Apply(const absl::Status& status) const {
  const std::string field = FieldOf(status).value_or("");
  if (field.empty()) return status;
  const std::pair<const std::string, std::string>* best = nullptr;
  for (const auto& name : names_) {
    if (!IsWithin(field, name.first)) continue;
    if (best == nullptr || name.first.size() > best->first.size()) best = &name;
  }
  if (best == nullptr) return status;
  const std::string renamed = best->second + field.substr(best->first.size());
  std::string_view message(status.message().data(), status.message().size());
  const std::string prefix = field + ": ";
  if (message.starts_with(prefix)) message.remove_prefix(prefix.size());
  const absl::Status named = InvalidField(renamed, message);
  absl::Status result(status.code(), named.message());
  status.ForEachPayload([&result](absl::string_view url, const absl::Cord& payload) {
    result.SetPayload(url, payload);
  });
  named.ForEachPayload([&result](absl::string_view url, const absl::Cord& payload) {
    result.SetPayload(url, payload);
  });
  return result;
}

absl::StatusOr<std::string> JsonAsWritten(const jinja::Value& value) {
  jinja::Budget budget{jinja::RenderLimits()};
  BATON_ASSIGN_OR_RETURN(const jinja::Text text, jinja::ToJson(value, {}, budget));
  return std::string(text.bytes());
}

absl::StatusOr<std::string> RequiredString(const Fields& fields, const std::string& name) {
  BATON_ASSIGN_OR_RETURN(auto value, fields.String(name));
  if (!value.has_value()) return fields.Wrong(name, "a string");
  return *std::move(value);
}

void ChatBody::Begin(std::string role, std::string path) {
  const std::string chat = absl::StrCat("messages[", messages_.size(), "]");
  renames_.Add(chat + ".content", path);
  renames_.Add(chat, std::move(path));
  messages_.emplace_back().role = std::move(role);
}

void ChatBody::GoOn(const std::string& role, const std::string& path) {
  if (messages_.empty() || messages_.back().role != role) Begin(role, path);
}

void ChatBody::Call(std::string id, std::string name, std::string arguments) {
  const Json call = {
      {"id", std::move(id)},
      {"type", "function"},
      {"function", {{"name", std::move(name)}, {"arguments", std::move(arguments)}}}};
  messages_.back().calls.push_back(Dump(call));
}

void ChatBody::Result(std::string call_id, std::string text, std::string path) {
  Begin("tool", std::move(path));
  messages_.back().call_id = std::move(call_id);
  Say(std::move(text));
}

void ChatBody::Offer(Json function, const std::string& schema, const std::string& path,
                     const std::string& schema_name) {
  const std::string chat = absl::StrCat("tools[", tools_.size(), "]");
  renames_.Add(chat, path);
  renames_.Add(chat + ".function", path);
  renames_.Add(chat + ".function.parameters", absl::StrCat(path, ".", schema_name));
  // The name and the description stand before the schema, as people write them.
  std::string text;
  for (const char* name : {"name", "description"}) {
    const auto entry = function.find(name);
    if (entry == function.end() || entry->is_null()) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", Quote(name), ": ", Dump(*entry));
    function.erase(entry);
  }
  if (!schema.empty()) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", "\"parameters\": ", schema);
  }
  for (const auto& [name, value] : function.items()) {
    if (value.is_null()) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", Quote(name), ": ", Dump(value));
  }
  tools_.push_back(absl::StrCat("{\"type\": \"function\", \"function\": {", text, "}}"));
}

void ChatBody::Set(const std::string& name, const Json& value, const std::string& client) {
  fields_[name] = Dump(value);
  renames_.Add(name, client);
}

void ChatBody::SetSchema(const std::string& named, const std::string& client) {
  fields_["response_format"] =
      absl::StrCat("{\"type\": \"json_schema\", \"json_schema\": ", named, "}");
  renames_.Add("response_format", client);
  renames_.Add("response_format.json_schema", client);
}

void ChatBody::Copy(const Fields& fields, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (const Json* value = fields.Find(name)) Set(name, *value, name);
  }
}

std::string ChatBody::MessageText(const Message& message) {
  Json fields = {{"role", message.role}};
  if (message.texts.size() == 1) {
    fields["content"] = message.texts.front();
  } else if (!message.texts.empty()) {
    Json& parts = fields["content"] = Json::array();
    for (const std::string& text : message.texts) {
      parts.push_back({{"type", "text"}, {"text", text}});
    }
  }
  if (!message.reasoning.empty()) {
    fields["reasoning_content"] = absl::StrJoin(message.reasoning, "\n");
  }
  if (!message.call_id.empty()) fields["tool_call_id"] = message.call_id;
  std::string text = Dump(fields);
  if (message.calls.empty()) return text;
  text.pop_back();
  return absl::StrCat(text, ",\"tool_calls\":[", absl::StrJoin(message.calls, ","), "]}");
}

std::string ChatBody::Text() const {
  std::vector<std::string> messages;
  messages.reserve(messages_.size());
  for (const Message& message : messages_) messages.push_back(MessageText(message));
  std::string text = absl::StrCat("{\"messages\":[", absl::StrJoin(messages, ","), "]");
  if (!tools_.empty()) {
    absl::StrAppend(&text, ",\"tools\":[", absl::StrJoin(tools_, ","), "]");
  }
  for (const auto& [name, json] : fields_) absl::StrAppend(&text, ",", Quote(name), ":", json);
  return text + "}";
}

absl::StatusOr<OpenAiRequest> ChatBody::Parse(Endpoint endpoint, UnknownFields unknown,
                                              std::string_view timeout,
                                              std::vector<std::string> warnings) const {
  absl::StatusOr<OpenAiRequest> request =
      ParseOpenAiRequest(Endpoint::kChatCompletions, Text(), unknown, timeout);
  if (!request.ok()) return renames_.Apply(request.status());
  GenerateCall& call = request->call;
  call.endpoint = endpoint;
  warnings.insert(warnings.end(), std::make_move_iterator(call.warnings.begin()),
                  std::make_move_iterator(call.warnings.end()));
  call.warnings = std::move(warnings);
  // The prompt is counted at once: a stream's beginning says how long it is.
  request->continuous_usage = true;
  return request;
}

absl::StatusOr<FrontRequest> FrontReader::Finish(Endpoint endpoint, std::string_view timeout,
                                                 Json given) {
  FrontRequest request;
  BATON_ASSIGN_OR_RETURN(request.chat,
                         chat_.Parse(endpoint, unknown_, timeout, std::move(warnings_)));
  request.renames = std::move(chat_.renames());
  request.given = std::move(given);
  return request;
}

absl::StatusOr<std::optional<Fields>> FrontReader::Object(const Fields& owner, const char* name,
                                                          const FieldTable& table) {
  const Json* value = owner.Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) return owner.Wrong(name, "an object");
  const Fields object(*value, absl::StrCat(owner.Path(name), "."));
  BATON_RETURN_IF_ERROR(CheckFields(object, table, unknown_, warnings_));
  return object;
}

absl::Status FrontReader::ReadTools(const ToolForm& form) {
  const Json* tools = fields_.Find("tools");
  if (tools == nullptr) return absl::OkStatus();
  if (!tools->is_array()) return fields_.Wrong("tools", "a list of tools");
  for (size_t i = 0; i < tools->size(); ++i) {
    BATON_RETURN_IF_ERROR(ReadTool(form, (*tools)[i], i));
  }
  return absl::OkStatus();
}

absl::Status FrontReader::ReadTool(const ToolForm& form, const Json& tool, size_t number) {
  const std::string path = absl::StrCat("tools[", number, "]");
  if (!tool.is_object()) return InvalidField(path, "must be an object");
  const Fields fields(tool, path + ".");
  std::string type = form.type;
  if (form.names_type || fields.Find("type") != nullptr) {
    BATON_ASSIGN_OR_RETURN(type, RequiredString(fields, "type"));
  }
  if (type != form.type) {
    return InvalidField(
        fields.Path("type"),
        absl::StrCat("\"", type.substr(0, 64), "\" is not supported: no tool runs here, so only ",
                     form.only));
  }
  BATON_RETURN_IF_ERROR(CheckFields(fields, form.fields, unknown_, warnings_));
  const Json* schema = fields.Find(form.schema);
  std::string text;
  if (schema != nullptr && schema->is_object()) {
    const jinja::Value& ordered = ordered_.Find("tools")->items()[number];
    BATON_ASSIGN_OR_RETURN(text, JsonAsWritten(*ordered.dict().Find(form.schema)));
  } else if (schema != nullptr || form.needs_schema) {
    return fields.Wrong(form.schema, "a JSON schema, which is an object");
  }
  Json function = Json::object();
  for (const char* name : {"name", "description", "strict"}) {
    if (const Json* value = fields.Find(name)) function[name] = *value;
  }
  chat_.Offer(std::move(function), text, path, form.schema);
  return absl::OkStatus();
}

}  // namespace baton::router
