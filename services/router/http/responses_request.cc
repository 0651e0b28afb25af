#include "services/router/http/responses_request.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/tokenizer/chat/jinja/json.h"
#include "services/router/http/request_sampling.h"
#include "services/router/http/responses_items.h"

namespace baton::router {
namespace {

constexpr char kNothingKept[] = "no response is kept; send the whole conversation as input";

const FieldTable& ResponsesFields() {
  static const auto* table = new FieldTable(FieldTable{
      "/v1/responses",
      {"model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls",
       "max_output_tokens", "reasoning", "text", "stream", "include", "top_logprobs",
       // Baton's, as in chats.
       "timeout", "cache_salt", "priority", "request_id", "chat_template_kwargs"},
      {"metadata", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
       "prompt_cache_options", "service_tier", "stream_options", "client_metadata"},
      {{"store", {false}, kNothingKept},
       {"previous_response_id", {}, kNothingKept},
       {"conversation", {}, kNothingKept},
       {"background", {false}, kNothingKept},
       {"prompt", {}, "no prompt is kept; use instructions and input"},
       {"truncation", {"disabled"}, ""},
       {"max_tool_calls", {}, "tools run at the client"},
       {"context_management", {Json::array()}, ""},
       {"max_tokens", {}, "use max_output_tokens"},
       {"messages", {}, "use input"},
       {"reasoning_effort", {}, "use reasoning.effort"},
       {"response_format", {}, "use text.format"}}}
                                                .With(SharedSamplingNames()));
  return *table;
}
const FieldTable& ReasoningFields() {
  // A summary is asked for and none is made: the reasoning itself is told.
  static const auto* table =
      new FieldTable{"reasoning",
                     {"effort"},
                     {"summary", "generate_summary"},
                     {{"mode", {"standard"}, ""}, {"context", {"auto", "all_turns"}, ""}}};
  return *table;
}
const FieldTable& TextConfigFields() {
  static const auto* table =
      new FieldTable{"text", {"format"}, {}, {{"verbosity", {"medium"}, ""}}};
  return *table;
}
const FieldTable& TextFormatFields() {
  static const auto* table =
      new FieldTable{"format", {"type", "name", "schema", "strict", "description"}, {}, {}};
  return *table;
}
const FieldTable& ResponsesToolFields() {
  static const auto* table = new FieldTable{
      "a tool",
      {"type", "name", "description", "parameters", "strict"},
      {"output_schema"},
      {{"defer_loading", {false}, ""}, {"allowed_callers", {Json::array({"direct"})}, ""}}};
  return *table;
}
const FieldTable& NamedToolFields() {
  static const auto* table = new FieldTable{"tool_choice", {"type", "name"}, {}, {}};
  return *table;
}

// Reads the body of one request.
class ResponsesReader {
 public:
  ResponsesReader(const Fields& fields, const jinja::Value& ordered, UnknownFields unknown)
      : fields_(fields), ordered_(ordered.dict()), unknown_(unknown) {}

  absl::Status Read() {
    BATON_RETURN_IF_ERROR(CheckFields(fields_, ResponsesFields(), unknown_, warnings));
    BATON_ASSIGN_OR_RETURN(auto instructions, fields_.String("instructions"));
    if (instructions.has_value()) {
      chat.Begin("system", "instructions");
      chat.Say(*std::move(instructions));
    }
    chat.renames().Add("messages", "input");
    BATON_RETURN_IF_ERROR(AddInput(fields_, unknown_, warnings, chat));
    chat.Copy(fields_, SharedSamplingNames());
    chat.Copy(fields_, {"model", "stream", "timeout", "cache_salt", "priority", "request_id",
                        "chat_template_kwargs", "parallel_tool_calls"});
    if (const Json* limit = fields_.Find("max_output_tokens")) {
      chat.Set("max_completion_tokens", *limit, "max_output_tokens");
    }
    BATON_RETURN_IF_ERROR(ReadInclude());
    BATON_RETURN_IF_ERROR(ReadTools());
    BATON_RETURN_IF_ERROR(ReadToolChoice());
    BATON_ASSIGN_OR_RETURN(const auto reasoning, Object(fields_, "reasoning", ReasoningFields()));
    if (reasoning.has_value() && reasoning->Find("effort") != nullptr) {
      chat.Set("reasoning_effort", *reasoning->Find("effort"), "reasoning.effort");
    }
    return ReadText();
  }

  ChatBody chat;
  std::vector<std::string> warnings;

 private:
  // The object `name`, if it is there, with fields that the table has.
  absl::StatusOr<std::optional<Fields>> Object(const Fields& owner, const char* name,
                                               const FieldTable& table) {
    const Json* value = owner.Find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_object()) return owner.Wrong(name, "an object");
    const Fields object(*value, absl::StrCat(owner.Path(name), "."));
    BATON_RETURN_IF_ERROR(CheckFields(object, table, unknown_, warnings));
    return object;
  }

  // Most of it is of tools that do not run here. Reasoning is told as it is, never encrypted. Who
  // asks for alternatives wants the log-probabilities too.
  absl::Status ReadInclude() {
    BATON_ASSIGN_OR_RETURN(const auto names, fields_.Strings("include"));
    for (const std::string& name : names.value_or(std::vector<std::string>())) {
      if (name == "message.output_text.logprobs") chat.Set("logprobs", true, "include");
    }
    BATON_ASSIGN_OR_RETURN(const auto top, fields_.Integer("top_logprobs"));
    if (top.value_or(0) == 0) return absl::OkStatus();
    chat.Set("logprobs", true, "include");
    chat.Set("top_logprobs", *top, "top_logprobs");
    return absl::OkStatus();
  }

  absl::Status ReadTools() {
    const Json* tools = fields_.Find("tools");
    if (tools == nullptr) return absl::OkStatus();
    if (!tools->is_array()) return fields_.Wrong("tools", "a list of tools");
    for (size_t i = 0; i < tools->size(); ++i) {
      const std::string path = absl::StrCat("tools[", i, "]");
      const Json& tool = (*tools)[i];
      if (!tool.is_object()) return InvalidField(path, "must be an object");
      const Fields fields(tool, path + ".");
      const absl::StatusOr<std::string> type = RequiredString(fields, "type");
      BATON_RETURN_IF_ERROR(type.status());
      if (*type != "function") {
        return InvalidField(
            fields.Path("type"),
            absl::StrCat("\"", type->substr(0, 64),
                         "\" is not supported: no tool runs here, so only functions "
                         "of the client's are"));
      }
      BATON_RETURN_IF_ERROR(CheckFields(fields, ResponsesToolFields(), unknown_, warnings));
      std::string schema;
      if (const Json* parameters = fields.Find("parameters")) {
        if (!parameters->is_object()) {
          return fields.Wrong("parameters", "a JSON schema, which is an object");
        }
        const jinja::Value& ordered = ordered_.Find("tools")->items()[i];
        BATON_ASSIGN_OR_RETURN(schema, JsonAsWritten(*ordered.dict().Find("parameters")));
      }
      Json function = Json::object();
      for (const char* name : {"name", "description", "strict"}) {
        if (const Json* value = fields.Find(name)) function[name] = *value;
      }
      chat.Offer(std::move(function), schema, path, "parameters");
    }
    return absl::OkStatus();
  }

  absl::Status ReadToolChoice() {
    const Json* choice = fields_.Find("tool_choice");
    if (choice == nullptr) return absl::OkStatus();
    if (!choice->is_object()) {
      chat.Set("tool_choice", *choice, "tool_choice");
      return absl::OkStatus();
    }
    const Fields named(*choice, "tool_choice.");
    BATON_ASSIGN_OR_RETURN(const std::string type, RequiredString(named, "type"));
    if (type != "function") {
      return named.Wrong("type", "function, the only kind of tool that is supported");
    }
    BATON_RETURN_IF_ERROR(CheckFields(named, NamedToolFields(), unknown_, warnings));
    BATON_ASSIGN_OR_RETURN(const std::string name, RequiredString(named, "name"));
    chat.Set("tool_choice", {{"type", "function"}, {"function", {{"name", name}}}}, "tool_choice");
    return absl::OkStatus();
  }

  absl::Status ReadText() {
    BATON_ASSIGN_OR_RETURN(const auto text, Object(fields_, "text", TextConfigFields()));
    if (!text.has_value()) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(const auto format, Object(*text, "format", TextFormatFields()));
    if (!format.has_value()) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(const std::string type, RequiredString(*format, "type"));
    if (type != "json_schema") {
      chat.Set("response_format", {{"type", type}}, "text.format");
      return absl::OkStatus();
    }
    Json named = Json::object();
    for (const char* name : {"name", "description", "strict"}) {
      if (const Json* value = format->Find(name)) named[name] = *value;
    }
    std::string inner = named.dump();
    inner.pop_back();
    if (format->Find("schema") != nullptr) {
      const jinja::Value& ordered = *ordered_.Find("text")->dict().Find("format");
      BATON_ASSIGN_OR_RETURN(const std::string schema,
                             JsonAsWritten(*ordered.dict().Find("schema")));
      absl::StrAppend(&inner, named.empty() ? "" : ", ", "\"schema\": ", schema);
    }
    chat.SetSchema(inner + "}", "text.format");
    return absl::OkStatus();
  }

  const Fields& fields_;
  const jinja::Dict& ordered_;
  const UnknownFields unknown_;
};

}  // namespace

absl::StatusOr<FrontRequest> ParseResponsesRequest(std::string_view body, UnknownFields unknown,
                                                   std::string_view timeout) {
  FrontRequest request;
  BATON_ASSIGN_OR_RETURN(request.given, ParseObject(body));
  BATON_ASSIGN_OR_RETURN(const jinja::Value ordered,
                         jinja::ParseJsonValue(body, jinja::Origin::kClient, {"tools", "text"}));
  const Fields fields(request.given);
  ResponsesReader reader(fields, ordered, unknown);
  BATON_RETURN_IF_ERROR(reader.Read());
  BATON_ASSIGN_OR_RETURN(request.chat, reader.chat.Parse(Endpoint::kResponses, unknown, timeout,
                                                         std::move(reader.warnings)));
  request.chat.call.names.max_tokens = "max_output_tokens";
  request.renames = std::move(reader.chat.renames());
  return request;
}

}  // namespace baton::router
