#include "services/router/http/request_tools.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton::router {
namespace {

constexpr size_t kMaxNameBytes = 64;

// What OpenAI allows, and the dots of Python's modules.
bool IsFunctionName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || c == '.';
         });
}

absl::Status CheckFunction(const Fields& function, UnknownFields unknown,
                           std::set<std::string>& names, std::vector<std::string>& warnings) {
  BATON_RETURN_IF_ERROR(CheckFields(function, FunctionFields(), unknown, warnings));
  BATON_ASSIGN_OR_RETURN(const auto name, function.String("name"));
  if (!name.has_value()) return function.Wrong("name", "a string");
  if (!IsFunctionName(*name)) {
    return InvalidField(function.Path("name"),
                        absl::StrCat("must be 1 to ", kMaxNameBytes,
                                     " letters, digits, underscores, hyphens or dots"));
  }
  if (!names.insert(*name).second) {
    return InvalidField(function.Path("name"),
                        absl::StrCat("is \"", *name, "\", which another tool is called as well"));
  }
  BATON_RETURN_IF_ERROR(function.String("description").status());
  const Json* parameters = function.Find("parameters");
  if (parameters != nullptr && !parameters->is_object()) {
    return function.Wrong("parameters", "a JSON schema, which is an object");
  }
  return function.Bool("strict").status();
}

absl::Status CheckTool(const Json& tool, const std::string& path, UnknownFields unknown,
                       std::set<std::string>& names, std::vector<std::string>& warnings) {
  if (!tool.is_object()) return InvalidField(path, "must be an object");
  const Fields fields(tool, path + ".");
  BATON_RETURN_IF_ERROR(CheckFields(fields, ToolFields(), unknown, warnings));
  BATON_ASSIGN_OR_RETURN(const auto type, fields.String("type"));
  if (type.value_or("function") != "function") {
    return InvalidField(fields.Path("type"), "must be function, the only kind that is supported");
  }
  const Json* function = fields.Find("function");
  if (function == nullptr || !function->is_object()) return fields.Wrong("function", "an object");
  return CheckFunction(Fields(*function, fields.Path("function.")), unknown, names, warnings);
}

// {"type": "function", "function": {"name": "f"}}
absl::Status CheckNamedChoice(const Json& choice, const std::set<std::string>& names) {
  const auto function = choice.find("function");
  const bool named = choice.value("type", Json("function")) == "function" &&
                     function != choice.end() && function->is_object() &&
                     function->contains("name") && (*function)["name"].is_string();
  if (!named) {
    return InvalidField("tool_choice",
                        "must name a function: {\"type\": \"function\", "
                        "\"function\": {\"name\": ...}}");
  }
  const auto name = (*function)["name"].get<std::string>();
  if (names.contains(name)) return absl::OkStatus();
  return InvalidField("tool_choice", absl::StrCat("names \"", name.substr(0, kMaxNameBytes),
                                                  "\", which is none of the tools"));
}

absl::Status CheckToolChoice(const Fields& fields, const std::set<std::string>& names) {
  const Json* choice = fields.Find("tool_choice");
  if (choice == nullptr || *choice == "none" || *choice == "auto") return absl::OkStatus();
  if (!choice->is_object() && *choice != "required") {
    return InvalidField("tool_choice",
                        absl::StrCat("must be auto, none, required or a function, got ",
                                     choice->dump().substr(0, 256)));
  }
  if (names.empty()) return InvalidField("tool_choice", "needs tools");
  return choice->is_object() ? CheckNamedChoice(*choice, names) : absl::OkStatus();
}

// What a schema allows, as far as the written form of an argument depends on it.
struct Kinds {
  bool text = false;
  bool null = false;
  bool other = false;  // Or unknown.

  void Add(const Kinds& more) {
    text |= more.text;
    null |= more.null;
    other |= more.other;
  }
};

Kinds KindOfType(const Json& type) {
  return {type == "string", type == "null", type != "string" && type != "null"};
}

Kinds KindOfValue(const Json& value) {
  return {value.is_string(), value.is_null(), !value.is_string() && !value.is_null()};
}

Kinds KindsOf(const Json& schema) {
  Kinds kinds;
  if (!schema.is_object()) return {.other = true};
  const auto add_all = [&](const Json& list, const auto& kind_of) {
    if (!list.is_array()) kinds.other = true;
    for (const Json& element : list) kinds.Add(kind_of(element));
  };
  const Fields fields(schema);
  if (const Json* type = fields.Find("type")) {
    type->is_array() ? add_all(*type, KindOfType) : kinds.Add(KindOfType(*type));
  } else if (const Json* any = fields.Find("anyOf")) {
    add_all(*any, KindsOf);
  } else if (const Json* one = fields.Find("oneOf")) {
    add_all(*one, KindsOf);
  } else if (const Json* values = fields.Find("enum")) {
    add_all(*values, KindOfValue);
  } else if (const Json* value = fields.Find("const")) {
    kinds.Add(KindOfValue(*value));
  } else {
    kinds.other = true;
  }
  return kinds;
}

// A string, and nothing else but null.
bool IsText(const Json& schema) {
  const Kinds kinds = KindsOf(schema);
  return kinds.text && !kinds.other;
}

// Tools are written into the prompt as they are, but for what is no part of them.
bool IsHint(const jinja::Value& key) { return key.IsString() && key.str() == "cache_control"; }

}  // namespace

absl::Status CheckTools(const Fields& fields, UnknownFields unknown,
                        std::vector<std::string>& warnings) {
  const Json* tools = fields.Find("tools");
  if (tools == nullptr) return CheckToolChoice(fields, {});
  if (!tools->is_array()) return fields.Wrong("tools", "a list of tools");
  if (tools->size() > kMaxTools) {
    return InvalidField("tools",
                        absl::StrCat("must be at most ", kMaxTools, " tools, are ", tools->size()));
  }
  std::set<std::string> names;
  size_t bytes = 0;
  for (size_t i = 0; i < tools->size(); ++i) {
    BATON_RETURN_IF_ERROR(
        CheckTool((*tools)[i], absl::StrCat("tools[", i, "]"), unknown, names, warnings));
    bytes += (*tools)[i].dump().size();
  }
  if (bytes > kMaxToolBytes) {
    return InvalidField("tools", absl::StrCat("have ", bytes, " bytes, more than the ",
                                              kMaxToolBytes, " that are allowed"));
  }
  return CheckToolChoice(fields, names);
}

bool OffersTools(const Fields& fields) {
  const Json* tools = fields.Find("tools");
  const Json* choice = fields.Find("tool_choice");
  return tools != nullptr && !tools->empty() && (choice == nullptr || *choice != "none");
}

absl::StatusOr<jinja::Value> ShownTools(const jinja::Value& ordered) {
  jinja::List tools;
  for (const jinja::Value& tool : ordered.items()) {
    jinja::Dict shown;
    for (const jinja::Dict::Entry& entry : tool.dict().entries()) {
      jinja::Value value = entry.value;
      if (value.Is(jinja::Value::Kind::kNone) || IsHint(entry.key)) continue;
      if (value.Is(jinja::Value::Kind::kDict)) {
        BATON_ASSIGN_OR_RETURN(value, WithoutNothing(value));
      }
      BATON_RETURN_IF_ERROR(shown.Set(entry.key, std::move(value)));
    }
    BATON_ASSIGN_OR_RETURN(jinja::Value value, jinja::Value::MakeDict(std::move(shown)));
    tools.push_back(std::move(value));
  }
  return jinja::Value::MakeList(std::move(tools));
}

chat::OfferedTools ReadOfferedTools(const Fields& fields) {
  chat::OfferedTools offered;
  if (!OffersTools(fields)) return offered;
  for (const Json& tool : *fields.Find("tools")) {
    const Json& function = tool["function"];
    chat::OfferedTool& entry = offered[function["name"].get<std::string>()];
    const Json* parameters = Fields(function).Find("parameters");
    const Json* properties =
        parameters == nullptr ? nullptr : Fields(*parameters).Find("properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [name, schema] : properties->items()) {
      if (IsText(schema)) entry.text_parameters.insert(name);
    }
  }
  return offered;
}

absl::Status CheckCallsOf(const Fields& message) {
  BATON_RETURN_IF_ERROR(message.String("tool_call_id").status());
  BATON_RETURN_IF_ERROR(message.String("reasoning_content").status());
  const Json* calls = message.Find("tool_calls");
  if (calls == nullptr) return absl::OkStatus();
  if (!calls->is_array()) return message.Wrong("tool_calls", "a list of calls");
  for (size_t i = 0; i < calls->size(); ++i) {
    const std::string path = message.Path(absl::StrCat("tool_calls[", i, "]"));
    if (!(*calls)[i].is_object()) return InvalidField(path, "must be an object");
    const Fields call((*calls)[i], path + ".");
    BATON_RETURN_IF_ERROR(call.String("id").status());
    const Json* function = call.Find("function");
    if (function == nullptr || !function->is_object()) return call.Wrong("function", "an object");
    const Fields named(*function, call.Path("function."));
    BATON_ASSIGN_OR_RETURN(const auto name, named.String("name"));
    if (!name.has_value()) return named.Wrong("name", "a string");
    const Json* arguments = named.Find("arguments");
    if (arguments != nullptr && !arguments->is_string() && !arguments->is_object()) {
      return named.Wrong("arguments", "an object as JSON text");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<jinja::Value> WithoutNothing(const jinja::Value& value) {
  jinja::Dict fields;
  for (const jinja::Dict::Entry& entry : value.dict().entries()) {
    const jinja::Value& member = entry.value;
    const bool empty_list = member.Is(jinja::Value::Kind::kList) && member.items().empty();
    if (member.Is(jinja::Value::Kind::kNone) || empty_list || IsHint(entry.key)) continue;
    BATON_RETURN_IF_ERROR(fields.Set(entry.key, member));
  }
  return jinja::Value::MakeDict(std::move(fields));
}

}  // namespace baton::router
