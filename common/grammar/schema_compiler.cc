#include "common/grammar/schema_compiler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/grammar/notations.h"

namespace baton::grammar {
namespace {

using NodeId = Grammar::NodeId;
using Kind = JsonTree::Kind;

constexpr int kMaxDepth = 96;
constexpr int kMaxSchemas = 1 << 15;
constexpr size_t kMaxWays = 256;  // The most of a oneOf.

constexpr const char* kRefused[] = {"not",
                                    "if",
                                    "then",
                                    "else",
                                    "patternProperties",
                                    "propertyNames",
                                    "dependencies",
                                    "dependentRequired",
                                    "dependentSchemas",
                                    "unevaluatedItems",
                                    "additionalItems",
                                    "contains",
                                    "minContains",
                                    "maxContains",
                                    "$dynamicRef",
                                    "$recursiveRef"};

}  // namespace

absl::StatusOr<NodeId> SchemaCompiler::Compile() {
  const Spelling spelling = arguments_ == nullptr ? Spelling::kJson : Spelling::kArguments;
  BATON_ASSIGN_OR_RETURN(const NodeId root, Schema(document_, {"", 0, spelling}));
  while (!pending_.empty()) {
    const Pending next = std::move(pending_.back());
    pending_.pop_back();
    BATON_ASSIGN_OR_RETURN(const NodeId body, Schema(*next.schema, next.at));
    grammar_.Define(next.rule, body);
  }
  return root;
}

absl::StatusOr<NodeId> SchemaCompiler::Schema(const JsonTree& schema, const SchemaPlace& at) {
  if (schema.Is(Kind::kBool)) {
    if (!schema.truth) return at.Wrong("false allows no value");
    return View({}, at);
  }
  if (!schema.Is(Kind::kObject)) return at.Wrong("a schema must be an object, true or false");
  SchemaView view;
  view.Add(schema);
  return View(view, at);
}

absl::StatusOr<NodeId> SchemaCompiler::View(const SchemaView& view, const SchemaPlace& at) {
  if (at.depth > kMaxDepth) return at.Wrong("is nested too deep");
  if (++schemas_ > kMaxSchemas || grammar_.full()) return at.Wrong("the schema is too large");
  BATON_RETURN_IF_ERROR(CheckSupported(view, at));
  if (view.Has("$ref")) return Reference(view, at);
  if (view.Has("allOf")) return AllOf(view, at);
  if (view.Has("anyOf")) return Ways(view, "anyOf", at);
  if (view.Has("oneOf")) return Ways(view, "oneOf", at);
  if (view.Has("enum") || view.Has("const")) return Listed(view, at);
  absl::StatusOr<uint32_t> types = TypesOf(view);
  if (!types.ok()) return at.Wrong(std::string(types.status().message()));
  if (*types == kAnyType && view.empty() && at.spelling == Spelling::kJson) return rules_.Value();
  return Typed(view, *types, at);
}

absl::Status SchemaCompiler::CheckSupported(const SchemaView& view, const SchemaPlace& at) {
  for (const char* keyword : kRefused) {
    if (view.Has(keyword)) return at.Wrong(Concat(keyword, " is not supported"));
  }
  if (const std::string* twice = view.Conflict()) {
    return at.Wrong(Concat(*twice,
                           " stands in several schemas that hold together, which is not "
                           "supported"));
  }
  const auto set = [&](const char* key) {
    const JsonTree* value = view.Find(key);
    return value != nullptr && !(value->Is(Kind::kBool) && !value->truth);
  };
  if (set("uniqueItems")) return at.Wrong("uniqueItems is not supported");
  if (set("unevaluatedProperties")) return at.Wrong("unevaluatedProperties is not supported");
  return absl::OkStatus();
}

absl::StatusOr<NodeId> SchemaCompiler::Reference(const SchemaView& view, const SchemaPlace& at) {
  const JsonTree& reference = *view.Find("$ref");
  if (!reference.Is(Kind::kString)) return at.Wrong("$ref: must be a string");
  absl::StatusOr<const JsonTree*> found = Resolve(document_, reference.text);
  if (!found.ok()) return at.Wrong(Concat("$ref: ", std::string(found.status().message())));
  const JsonTree* const target = *found;
  if (view.members().size() > 1 && target->Is(Kind::kObject)) {
    SchemaView all;
    for (const auto& [name, value] : view.members()) {
      value == &reference ? all.Add(*target) : all.AddMember(*name, *value);
    }
    return View(all, at.Way(""));
  }
  const auto [it, added] = referenced_.try_emplace({target, at.spelling}, -1);
  if (added) {
    const std::string name = reference.text.substr(0, 2 * SchemaPlace::kMaxShownKey);
    it->second = grammar_.AddRule(name);
    pending_.push_back({it->second, target, {name, 0, at.spelling}});
  }
  return grammar_.Call(it->second);
}

absl::StatusOr<NodeId> SchemaCompiler::AllOf(const SchemaView& view, const SchemaPlace& at) {
  SchemaView all = view.Without("allOf");
  for (const JsonTree* list : view.FindAll("allOf")) {
    if (!list->Is(Kind::kArray)) return at.Wrong("allOf: must be a list");
    for (const JsonTree& part : list->items) {
      if (part.Is(Kind::kBool) && part.truth) continue;
      if (!part.Is(Kind::kObject)) return at.Wrong("allOf: must be a list of schemas");
      all.Add(part);
    }
  }
  return View(all, at.Way(""));
}

absl::StatusOr<NodeId> SchemaCompiler::Ways(const SchemaView& view, const char* keyword,
                                            const SchemaPlace& at) {
  const std::vector<const JsonTree*> lists = view.FindAll(keyword);
  if (lists.size() > 1) return at.Wrong(Concat(keyword, " stands twice"));
  const std::vector<JsonTree>& ways = lists[0]->items;
  if (!lists[0]->Is(Kind::kArray) || ways.empty()) {
    return at.Wrong(Concat(keyword, ": must be a list of schemas"));
  }
  if (keyword == std::string_view("oneOf")) BATON_RETURN_IF_ERROR(CheckOneOf(ways, at));
  const SchemaView rest = view.Without(keyword);
  std::vector<NodeId> nodes;
  for (size_t i = 0; i < ways.size(); ++i) {
    const SchemaPlace way = at.Way(absl::StrCat(keyword, "[", i, "]"));
    if (rest.empty() || !ways[i].Is(Kind::kObject)) {
      BATON_ASSIGN_OR_RETURN(const NodeId node, Schema(ways[i], way));
      nodes.push_back(node);
      continue;
    }
    SchemaView both = rest;
    both.Add(ways[i]);
    BATON_ASSIGN_OR_RETURN(const NodeId node, View(both, way));
    nodes.push_back(node);
  }
  return grammar_.Choice(std::move(nodes));
}

absl::Status SchemaCompiler::CheckOneOf(const std::vector<JsonTree>& ways, const SchemaPlace& at) {
  if (ways.size() > kMaxWays) return at.Wrong("oneOf: has too many schemas");
  for (size_t i = 0; i < ways.size(); ++i) {
    for (size_t k = 0; k < ways.size(); ++k) {
      if (i == k || Excludes(document_, ways[i], ways[k])) continue;
      return at.Wrong(absl::StrCat("oneOf: a value may fit both schema ", std::min(i, k), " and ",
                                   std::max(i, k), ", which is not supported; anyOf is"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<NodeId> SchemaCompiler::Typed(const SchemaView& view, uint32_t types,
                                             const SchemaPlace& at) {
  if (at.spelling == Spelling::kArguments) {
    if ((types & kObjectType) == 0) return at.Wrong("arguments are an object");
    return Object(view, at);
  }
  // Null beside a string has no spelling of its own there.
  if (at.spelling == Spelling::kBareText) {
    return (types & kStringType) == 0 ? grammar_.Chars({}) : String(view, at);
  }
  std::vector<NodeId> ways;
  if ((types & kObjectType) != 0) {
    BATON_ASSIGN_OR_RETURN(const NodeId node, Object(view, at));
    ways.push_back(node);
  }
  if ((types & kArrayType) != 0) {
    BATON_ASSIGN_OR_RETURN(const NodeId node, Array(view, at));
    ways.push_back(node);
  }
  if ((types & kStringType) != 0) {
    BATON_ASSIGN_OR_RETURN(const NodeId node, String(view, at));
    ways.push_back(node);
  }
  if ((types & kNumberType) != 0) {
    BATON_ASSIGN_OR_RETURN(const NodeId node, Number(view, (types & kFractionType) == 0, at));
    ways.push_back(node);
  }
  if ((types & kBooleanType) != 0) ways.push_back(rules_.Boolean());
  if ((types & kNullType) != 0) ways.push_back(rules_.Null());
  return grammar_.Choice(std::move(ways));
}

absl::StatusOr<NodeId> SchemaCompiler::Shared(const JsonTree& schema, const SchemaPlace& at) {
  BATON_ASSIGN_OR_RETURN(const NodeId node, Schema(schema, at));
  return AsRule(node, at.path);
}

NodeId SchemaCompiler::AsRule(NodeId node, const std::string& name) {
  if (grammar_.node(node).kind == Grammar::Kind::kRule) return node;
  const int rule = grammar_.AddRule(name);
  grammar_.Define(rule, node);
  return grammar_.Call(rule);
}

absl::StatusOr<NodeId> AddJsonSchema(std::string_view schema, Grammar& grammar) {
  BATON_ASSIGN_OR_RETURN(const JsonTree document, ParseJsonTree(schema));
  return SchemaCompiler(document, nullptr, grammar).Compile();
}

absl::StatusOr<NodeId> AddArguments(std::string_view schema, ArgumentSpelling spelling,
                                    Grammar& grammar) {
  BATON_ASSIGN_OR_RETURN(const JsonTree document, ParseJsonTree(schema));
  ArgumentRules arguments(std::move(spelling), grammar);
  return SchemaCompiler(document, &arguments, grammar).Compile();
}

}  // namespace baton::grammar
