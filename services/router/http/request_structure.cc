#include "services/router/http/request_structure.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/tokenizer/chat/jinja/json.h"

namespace baton::router {
namespace {

constexpr char kAnyObject[] = R"({"type": "object"})";

// The members of a JSON text in their order; a path leads to one of them.
class OrderedText {
 public:
  static absl::StatusOr<OrderedText> Parse(std::string_view object,
                                           std::initializer_list<std::string_view> members) {
    OrderedText text;
    if (object.empty()) return text;
    BATON_ASSIGN_OR_RETURN(text.value_,
                           jinja::ParseJsonValue(object, jinja::Origin::kClient, members));
    text.there_ = true;
    return text;
  }

  // The value at the path, which exists, as JSON.
  absl::StatusOr<std::string> At(std::initializer_list<std::string_view> path) const {
    const jinja::Value* at = &value_;
    for (const std::string_view name : path) {
      at = at->Is(jinja::Value::Kind::kDict) ? at->dict().Find(name) : nullptr;
      if (at == nullptr) return absl::InternalError("a member of a body is lost");
    }
    return TextOf(*at);
  }
  static absl::StatusOr<std::string> TextOf(const jinja::Value& value) {
    jinja::Budget budget{jinja::RenderLimits{}};
    BATON_ASSIGN_OR_RETURN(const jinja::Text text, jinja::ToJson(value, {}, budget));
    return text.bytes();
  }

  bool there() const { return there_; }
  const jinja::Value& value() const { return value_; }

 private:
  jinja::Value value_;
  bool there_ = false;
};

// Takes the one field that says what the text must be.
class Reader {
 public:
  Reader(const Fields& fields, GenerateCall& call) : fields_(fields), call_(call) {}

  absl::StatusOr<v1::TextStructure*> Take(const std::string& field) {
    if (call_.sampling.has_structure()) {
      return InvalidField(
          field, absl::StrCat("is given beside ", call_.names.structure, "; give one of the two"));
    }
    call_.names.structure = field;
    return call_.sampling.mutable_structure();
  }

  // A schema, as an object or as text.
  absl::Status Schema(const Fields& in, const char* name, const OrderedText& ordered,
                      std::initializer_list<std::string_view> path) {
    const Json* value = in.Find(name);
    if (value == nullptr) return absl::OkStatus();
    std::string schema;
    if (value->is_string()) {
      schema = value->get<std::string>();
    } else if (value->is_object() && ordered.there()) {
      BATON_ASSIGN_OR_RETURN(schema, ordered.At(path));
    } else {
      return in.Wrong(name, ordered.there() ? "a JSON schema" : "a JSON schema as text");
    }
    BATON_ASSIGN_OR_RETURN(v1::TextStructure* const structure, Take(in.Path(name)));
    structure->set_json_schema(std::move(schema));
    return absl::OkStatus();
  }

  absl::Status Text(const Fields& in, const char* name,
                    void (v1::TextStructure::*set)(const std::string&)) {
    BATON_ASSIGN_OR_RETURN(const auto text, in.String(name));
    if (!text.has_value()) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(v1::TextStructure* const structure, Take(in.Path(name)));
    (structure->*set)(*text);
    return absl::OkStatus();
  }

  absl::Status Choice(const Fields& in, const char* name) {
    const Json* value = in.Find(name);
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_array()) return in.Wrong(name, "a list of texts");
    BATON_ASSIGN_OR_RETURN(const auto texts, in.Strings(name));
    BATON_ASSIGN_OR_RETURN(v1::TextStructure* const structure, Take(in.Path(name)));
    structure->mutable_choice()->mutable_texts()->Assign(texts->begin(), texts->end());
    return absl::OkStatus();
  }

  absl::Status ResponseFormat(const OrderedText& ordered) {
    const Json* format = fields_.Find("response_format");
    if (format == nullptr) return absl::OkStatus();
    if (!format->is_object()) return fields_.Wrong("response_format", "an object");
    const Fields in(*format, fields_.Path("response_format."));
    BATON_ASSIGN_OR_RETURN(const auto type, in.String("type"));
    if (type == "text") return absl::OkStatus();
    if (type == "json_object") {
      BATON_ASSIGN_OR_RETURN(v1::TextStructure* const structure,
                             Take(fields_.Path("response_format")));
      structure->set_json_schema(kAnyObject);
      return absl::OkStatus();
    }
    if (type != "json_schema") {
      return in.Wrong("type", "text, json_object or json_schema");
    }
    const Json* named = in.Find("json_schema");
    if (named == nullptr || !named->is_object()) {
      return in.Wrong("json_schema", "an object with name and schema");
    }
    const Fields schema(*named, in.Path("json_schema."));
    BATON_RETURN_IF_ERROR(schema.String("name").status());
    BATON_RETURN_IF_ERROR(schema.Bool("strict").status());
    if (schema.Find("schema") == nullptr || !schema.Find("schema")->is_object()) {
      return schema.Wrong("schema", "a JSON schema");
    }
    return Schema(schema, "schema", ordered, {"response_format", "json_schema", "schema"});
  }

  // vLLM's newer object.
  absl::Status Structured(const OrderedText& ordered) {
    const Json* object = fields_.Find("structured_outputs");
    if (object == nullptr) return absl::OkStatus();
    if (!object->is_object()) return fields_.Wrong("structured_outputs", "an object");
    const Fields in(*object, fields_.Path("structured_outputs."));
    for (const auto& [name, value] : object->items()) {
      static const auto* const known =
          new std::vector<std::string>{"json", "regex", "choice", "grammar", "json_object"};
      if (value.is_null() || std::find(known->begin(), known->end(), name) != known->end())
        continue;
      return InvalidField(in.Path(name.substr(0, 64)), "is not supported; leave it out");
    }
    BATON_RETURN_IF_ERROR(Schema(in, "json", ordered, {"structured_outputs", "json"}));
    BATON_RETURN_IF_ERROR(Text(in, "regex", &v1::TextStructure::set_regex<const std::string&>));
    BATON_RETURN_IF_ERROR(Choice(in, "choice"));
    BATON_RETURN_IF_ERROR(Text(in, "grammar", &v1::TextStructure::set_ebnf<const std::string&>));
    BATON_ASSIGN_OR_RETURN(const auto any, in.Bool("json_object"));
    if (!any.value_or(false)) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(v1::TextStructure* const structure, Take(in.Path("json_object")));
    structure->set_json_schema(kAnyObject);
    return absl::OkStatus();
  }

 private:
  const Fields& fields_;
  GenerateCall& call_;
};

// The arguments' schema of a function of `ordered`, which is the tool's.
absl::StatusOr<std::string> ParametersOf(const jinja::Value& tool) {
  const jinja::Value* parameters = tool.dict().Find("function")->dict().Find("parameters");
  if (parameters == nullptr || !parameters->Is(jinja::Value::Kind::kDict) ||
      parameters->dict().entries().empty()) {
    return kAnyObject;
  }
  return OrderedText::TextOf(*parameters);
}

}  // namespace

const std::vector<std::string>& StructureNames() {
  static const auto* names = new std::vector<std::string>{
      "response_format", "guided_json", "guided_regex",       "guided_choice", "guided_grammar",
      "json_schema",     "regex",       "structured_outputs", "ebnf"};
  return *names;
}

absl::Status ReadStructure(std::string_view object, const Fields& fields, GenerateCall& call) {
  const bool any =
      std::any_of(StructureNames().begin(), StructureNames().end(),
                  [&](const std::string& name) { return fields.Find(name) != nullptr; });
  if (!any) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const OrderedText ordered,
                         OrderedText::Parse(object, {"response_format", "guided_json",
                                                     "json_schema", "structured_outputs"}));
  Reader reader(fields, call);
  BATON_RETURN_IF_ERROR(reader.ResponseFormat(ordered));
  BATON_RETURN_IF_ERROR(reader.Structured(ordered));
  for (const char* name : {"guided_json", "json_schema"}) {
    BATON_RETURN_IF_ERROR(reader.Schema(fields, name, ordered, {name}));
  }
  for (const char* name : {"guided_regex", "regex"}) {
    BATON_RETURN_IF_ERROR(
        reader.Text(fields, name, &v1::TextStructure::set_regex<const std::string&>));
  }
  for (const char* name : {"guided_grammar", "ebnf"}) {
    BATON_RETURN_IF_ERROR(
        reader.Text(fields, name, &v1::TextStructure::set_ebnf<const std::string&>));
  }
  return reader.Choice(fields, "guided_choice");
}

absl::StatusOr<CallRules> ReadCallRules(std::string_view body, const Fields& fields,
                                        const chat::OfferedTools& offered, bool parallel) {
  CallRules rules;
  rules.demand = {.forced = false, .parallel = parallel};
  const Json* tools = fields.Find("tools");
  const Json* choice = fields.Find("tool_choice");
  if (tools == nullptr || tools->empty() || (choice != nullptr && *choice == "none")) return rules;
  std::string only;
  if (choice != nullptr && choice->is_object()) {
    only = (*choice)["function"]["name"].get<std::string>();
    rules.demand.parallel = false;
  }
  rules.demand.forced = choice != nullptr && (*choice == "required" || !only.empty());
  const bool strict = std::any_of(tools->begin(), tools->end(), [](const Json& tool) {
    return tool["function"].value("strict", Json()) == true;
  });
  if (!strict && !rules.demand.forced) return rules;
  BATON_ASSIGN_OR_RETURN(const OrderedText ordered, OrderedText::Parse(body, {"tools"}));
  const jinja::List& list = ordered.value().dict().Find("tools")->items();
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& function = (*tools)[i]["function"];
    const auto name = function["name"].get<std::string>();
    if (!only.empty() && name != only) continue;
    BATON_ASSIGN_OR_RETURN(std::string schema, ParametersOf(list[i]));
    // A call that is not forced, of a function that is not strict, may have any arguments.
    const bool free = !rules.demand.forced && function.value("strict", Json()) != true;
    rules.tools.push_back(
        {name, free ? "" : std::move(schema), offered.find(name)->second.text_parameters});
  }
  return rules;
}

absl::Status ApplyCallRules(const CallRules& rules, chat::ToolFormat format, GenerateCall& call) {
  if (rules.tools.empty()) return absl::OkStatus();
  if (call.sampling.has_structure()) {
    if (!rules.demand.forced) return absl::OkStatus();
    return InvalidField(
        "tool_choice", absl::StrCat("forces a call, which is at odds with ", call.names.structure));
  }
  absl::StatusOr<std::string> grammar = chat::CallGrammar(format, rules.tools, rules.demand);
  if (!grammar.ok()) {
    const std::string why(grammar.status().message());
    if (rules.demand.forced) return InvalidField("tool_choice", why);
    call.warnings.push_back(
        absl::StrCat("tools: strict: ", why, "; arguments may not follow the schema"));
    return absl::OkStatus();
  }
  call.names.structure = "tools";
  call.sampling.mutable_structure()->set_ebnf(*std::move(grammar));
  return absl::OkStatus();
}

void AllowReasoning(chat::ReasoningFormat format, bool in_reasoning, std::optional<int64_t> budget,
                    GenerateCall& call) {
  const bool any = call.sampling.has_structure() || budget.has_value();
  if (format == chat::ReasoningFormat::kNone || !any) return;
  v1::TextStructure* const structure = call.sampling.mutable_structure();
  const chat::ReasoningMarks marks = chat::MarksOf(format);
  structure->set_reasoning_begin(std::string(marks.begin));
  structure->set_reasoning_end(std::string(marks.end));
  structure->set_in_reasoning(in_reasoning);
  if (budget.has_value()) structure->set_reasoning_budget(static_cast<int32_t>(*budget));
}

}  // namespace baton::router
