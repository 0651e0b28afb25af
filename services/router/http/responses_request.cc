#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/tokenizer/chat/jinja/json.h"
#include "services/router/http/request_sampling.h"
#include "services/router/http/responses.h"

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
class ResponsesReader : public FrontReader {
 public:
  using FrontReader::FrontReader;

  absl::Status Read() {
    BATON_RETURN_IF_ERROR(CheckFields(fields_, ResponsesFields(), unknown_, warnings_));
    BATON_ASSIGN_OR_RETURN(auto instructions, fields_.String("instructions"));
    if (instructions.has_value()) {
      chat_.Begin("system", "instructions");
      chat_.Say(*std::move(instructions));
    }
    chat_.renames().Add("messages", "input");
    BATON_RETURN_IF_ERROR(AddInput(fields_, unknown_, warnings_, chat_));
    chat_.Copy(fields_, SharedSamplingNames());
    chat_.Copy(fields_, {"model", "stream", "timeout", "cache_salt", "priority", "request_id",
                         "chat_template_kwargs", "parallel_tool_calls"});
    if (const Json* limit = fields_.Find("max_output_tokens")) {
      chat_.Set("max_completion_tokens", *limit, "max_output_tokens");
    }
    BATON_RETURN_IF_ERROR(ReadInclude());
    BATON_RETURN_IF_ERROR(ReadTools({.fields = ResponsesToolFields(),
                                     .type = "function",
                                     .names_type = true,
                                     .only = "functions of the client's are",
                                     .schema = "parameters"}));
    BATON_RETURN_IF_ERROR(ReadToolChoice());
    BATON_ASSIGN_OR_RETURN(const auto reasoning, Object(fields_, "reasoning", ReasoningFields()));
    if (reasoning.has_value() && reasoning->Find("effort") != nullptr) {
      chat_.Set("reasoning_effort", *reasoning->Find("effort"), "reasoning.effort");
    }
    return ReadText();
  }

 private:
  // Most of it is of tools that do not run here. Reasoning is told as it is, never encrypted. Who
  // asks for alternatives wants the log-probabilities too.
  absl::Status ReadInclude() {
    BATON_ASSIGN_OR_RETURN(const auto names, fields_.Strings("include"));
    for (const std::string& name : names.value_or(std::vector<std::string>())) {
      if (name == "message.output_text.logprobs") chat_.Set("logprobs", true, "include");
    }
    BATON_ASSIGN_OR_RETURN(const auto top, fields_.Integer("top_logprobs"));
    if (top.value_or(0) == 0) return absl::OkStatus();
    chat_.Set("logprobs", true, "include");
    chat_.Set("top_logprobs", *top, "top_logprobs");
    return absl::OkStatus();
  }

  absl::Status ReadToolChoice() {
    const Json* choice = fields_.Find("tool_choice");
    if (choice == nullptr) return absl::OkStatus();
    if (!choice->is_object()) {
      chat_.Set("tool_choice", *choice, "tool_choice");
      return absl::OkStatus();
    }
    const Fields named(*choice, "tool_choice.");
    BATON_ASSIGN_OR_RETURN(const std::string type, RequiredString(named, "type"));
    if (type != "function") {
      return named.Wrong("type", "function, the only kind of tool that is supported");
    }
    BATON_RETURN_IF_ERROR(CheckFields(named, NamedToolFields(), unknown_, warnings_));
    BATON_ASSIGN_OR_RETURN(const std::string name, RequiredString(named, "name"));
    chat_.Set("tool_choice", {{"type", "function"}, {"function", {{"name", name}}}}, "tool_choice");
    return absl::OkStatus();
  }

  absl::Status ReadText() {
    BATON_ASSIGN_OR_RETURN(const auto text, Object(fields_, "text", TextConfigFields()));
    if (!text.has_value()) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(const auto format, Object(*text, "format", TextFormatFields()));
    if (!format.has_value()) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(const std::string type, RequiredString(*format, "type"));
    if (type != "json_schema") {
      chat_.Set("response_format", {{"type", type}}, "text.format");
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
    chat_.SetSchema(inner + "}", "text.format");
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<FrontRequest> ParseResponsesRequest(std::string_view body, UnknownFields unknown,
                                                   std::string_view timeout) {
  BATON_ASSIGN_OR_RETURN(Json given, ParseObject(body));
  BATON_ASSIGN_OR_RETURN(const jinja::Value ordered,
                         jinja::ParseJsonValue(body, jinja::Origin::kClient, {"tools", "text"}));
  const Fields fields(given);
  ResponsesReader reader(fields, ordered, unknown);
  BATON_RETURN_IF_ERROR(reader.Read());
  BATON_ASSIGN_OR_RETURN(FrontRequest request,
                         reader.Finish(Endpoint::kResponses, timeout, std::move(given)));
  request.chat.call.names.max_tokens = "max_output_tokens";
  return request;
}

}  // namespace baton::router
