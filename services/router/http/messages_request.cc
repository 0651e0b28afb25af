#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/tokenizer/chat/jinja/json.h"
#include "services/router/http/messages.h"
#include "services/router/http/request_sampling.h"

namespace baton::router {
namespace {

const FieldTable& MessagesFields() {
  static const auto* table = new FieldTable(FieldTable{
      "/v1/messages",
      {"model", "messages", "system", "max_tokens", "stop_sequences", "stream", "tools",
       "tool_choice", "thinking", "output_config",
       // Baton's, as in chats.
       "timeout", "cache_salt", "priority", "request_id", "chat_template_kwargs"},
      {"metadata", "service_tier", "cache_control", "inference_geo", "user_profile_id",
       "workspace_id", "diagnostics"},
      {{"container", {}, "tools run at the client"},
       {"mcp_servers", {Json::array()}, "tools run at the client"},
       {"context_management", {}, "a conversation is read as it is sent"},
       {"output_format", {}, "use output_config.format"},
       {"speed", {"standard"}, ""},
       {"stop", {}, "use stop_sequences"}}}.With(SharedSamplingNames()));
  return *table;
}
const FieldTable& ThinkingConfigFields() {
  static const auto* table =
      new FieldTable{"thinking", {"type", "budget_tokens", "display"}, {}, {}};
  return *table;
}
const FieldTable& OutputConfigFields() {
  static const auto* table = new FieldTable{
      "output_config", {"effort", "format"}, {}, {{"task_budget", {}, "use max_tokens"}}};
  return *table;
}
const FieldTable& FormatFields() {
  static const auto* table = new FieldTable{"format", {"type", "schema"}, {}, {}};
  return *table;
}
const FieldTable& ToolChoiceFields() {
  static const auto* table =
      new FieldTable{"tool_choice", {"type", "name", "disable_parallel_tool_use"}, {}, {}};
  return *table;
}
const FieldTable& AnthropicToolFields() {
  static const auto* table = new FieldTable{
      "a tool",
      {"type", "name", "description", "input_schema", "strict"},
      {"cache_control", "eager_input_streaming", "input_examples"},
      {{"defer_loading", {false}, ""}, {"allowed_callers", {Json::array({"direct"})}, ""}}};
  return *table;
}

// Reads the body of one request.
class MessagesReader : public FrontReader {
 public:
  using FrontReader::FrontReader;

  absl::Status Read(bool counts) {
    BATON_RETURN_IF_ERROR(CheckFields(fields_, MessagesFields(), unknown_, warnings_));
    BATON_RETURN_IF_ERROR(AddSystem(fields_, unknown_, warnings_, chat_));
    if (fields_.Find("messages") == nullptr || !fields_.Find("messages")->is_array()) {
      return fields_.Wrong("messages", "a non-empty list of messages");
    }
    BATON_RETURN_IF_ERROR(
        AddMessages(fields_, *ordered_.Find("messages"), unknown_, warnings_, chat_));
    chat_.Copy(fields_, SharedSamplingNames());
    chat_.Copy(fields_, {"model", "stream", "max_tokens", "timeout", "cache_salt", "priority",
                         "request_id"});
    if (!counts && fields_.Find("max_tokens") == nullptr) {
      return InvalidField("max_tokens", "is required");
    }
    if (const Json* stop = fields_.Find("stop_sequences")) {
      if (!stop->is_array()) return fields_.Wrong("stop_sequences", "a list of strings");
      chat_.Set("stop", *stop, "stop_sequences");
    }
    BATON_RETURN_IF_ERROR(ReadTools({.fields = AnthropicToolFields(),
                                     .type = "custom",
                                     .only = "tools of the client's own (custom) are",
                                     .schema = "input_schema",
                                     .needs_schema = true}));
    BATON_RETURN_IF_ERROR(ReadToolChoice());
    BATON_RETURN_IF_ERROR(ReadThinking());
    return ReadOutputConfig();
  }

 private:
  absl::Status ReadToolChoice() {
    BATON_ASSIGN_OR_RETURN(const auto choice, Object(fields_, "tool_choice", ToolChoiceFields()));
    if (!choice.has_value()) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(const auto single, choice->Bool("disable_parallel_tool_use"));
    if (single.value_or(false)) {
      chat_.Set("parallel_tool_calls", false, "tool_choice.disable_parallel_tool_use");
    }
    BATON_ASSIGN_OR_RETURN(const auto given, choice->String("type"));
    const std::string type = given.value_or("");
    BATON_ASSIGN_OR_RETURN(const auto name, choice->String("name"));
    if (name.has_value() != (type == "tool")) {
      return InvalidField("tool_choice.name", "is given if type is tool, and only then");
    }
    if (type == "tool") {
      chat_.Set("tool_choice", {{"type", "function"}, {"function", {{"name", *name}}}},
                "tool_choice");
    } else if (type == "auto" || type == "none" || type == "any") {
      chat_.Set("tool_choice", type == "any" ? "required" : type, "tool_choice");
    } else {
      return choice->Wrong("type", "auto, any, tool or none");
    }
    return absl::OkStatus();
  }

  // Without it a model that can think does not, as Anthropic's. Templates know the switch by two
  // names, and some know a budget.
  absl::Status ReadThinking() {
    BATON_ASSIGN_OR_RETURN(const auto config, Object(fields_, "thinking", ThinkingConfigFields()));
    bool thinks = false;
    bool shown = true;
    Json variables = Json::object();
    if (config.has_value()) {
      BATON_ASSIGN_OR_RETURN(const auto type, config->String("type"));
      if (type != "enabled" && type != "disabled" && type != "adaptive") {
        return config->Wrong("type", "enabled, adaptive or disabled");
      }
      thinks = type != "disabled";
      BATON_ASSIGN_OR_RETURN(const auto display, config->String("display"));
      shown = display.value_or("") != "omitted";
      BATON_ASSIGN_OR_RETURN(const auto budget, config->Integer("budget_tokens"));
      if (budget.has_value() != (type == "enabled")) {
        return InvalidField("thinking.budget_tokens", "is given if type is enabled, and only then");
      }
      BATON_RETURN_IF_ERROR(CheckBudget(budget));
      if (budget.has_value()) {
        variables["thinking_budget"] = *budget;
        chat_.Set("thinking_token_budget", *budget, "thinking.budget_tokens");
      }
    }
    variables["enable_thinking"] = variables["thinking"] = thinks;
    if (const Json* given = fields_.Find("chat_template_kwargs")) {
      if (!given->is_object()) return fields_.Wrong("chat_template_kwargs", "an object");
      variables.update(*given);
    }
    chat_.Set("chat_template_kwargs", variables, "chat_template_kwargs");
    chat_.Set("include_reasoning", thinks && shown, "thinking");
    return absl::OkStatus();
  }

  absl::Status CheckBudget(const std::optional<int64_t>& budget) {
    if (!budget.has_value()) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(const auto max_tokens, fields_.Integer("max_tokens"));
    if (*budget >= 1 && *budget < max_tokens.value_or(INT64_MAX)) return absl::OkStatus();
    return InvalidField("thinking.budget_tokens",
                        absl::StrCat("must be at least 1 and less than max_tokens, is ", *budget));
  }

  absl::Status ReadOutputConfig() {
    BATON_ASSIGN_OR_RETURN(const auto config,
                           Object(fields_, "output_config", OutputConfigFields()));
    if (!config.has_value()) return absl::OkStatus();
    if (const Json* effort = config->Find("effort")) {
      chat_.Set("reasoning_effort", *effort, "output_config.effort");
    }
    const Json* format = config->Find("format");
    if (format == nullptr) return absl::OkStatus();
    if (!format->is_object()) return config->Wrong("format", "an object");
    const Fields fields(*format, "output_config.format.");
    BATON_RETURN_IF_ERROR(CheckFields(fields, FormatFields(), unknown_, warnings_));
    BATON_ASSIGN_OR_RETURN(const auto type, fields.String("type"));
    if (type != "json_schema") return fields.Wrong("type", "json_schema");
    const Json* schema = fields.Find("schema");
    if (schema == nullptr || !schema->is_object()) return fields.Wrong("schema", "an object");
    const jinja::Value& ordered = *ordered_.Find("output_config")->dict().Find("format");
    BATON_ASSIGN_OR_RETURN(const std::string text, JsonAsWritten(*ordered.dict().Find("schema")));
    chat_.SetSchema(
        absl::StrCat("{\"name\": \"answer\", \"strict\": true, \"schema\": ", text, "}"),
        "output_config.format");
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<FrontRequest> ParseMessagesRequest(std::string_view body, UnknownFields unknown,
                                                  std::string_view timeout, bool counts) {
  BATON_ASSIGN_OR_RETURN(Json given, ParseObject(body));
  BATON_ASSIGN_OR_RETURN(
      const jinja::Value ordered,
      jinja::ParseJsonValue(body, jinja::Origin::kClient, {"messages", "tools", "output_config"}));
  const Fields fields(given);
  MessagesReader reader(fields, ordered, unknown);
  BATON_RETURN_IF_ERROR(reader.Read(counts));
  return reader.Finish(Endpoint::kMessages, timeout, std::move(given));
}

}  // namespace baton::router
