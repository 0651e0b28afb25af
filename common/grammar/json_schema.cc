#include "common/grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/grammar/json_rules.h"
#include "common/grammar/json_tree.h"
#include "common/grammar/regex.h"
#include "common/grammar/schema_view.h"

namespace baton::grammar {
namespace {

using NodeId = Grammar::NodeId;
using Kind = JsonTree::Kind;

constexpr int kMaxDepth = 96;
constexpr int kMaxSchemas = 1 << 15;
constexpr size_t kMaxWays = 256;      // The most of a oneOf.
constexpr size_t kMaxOptional = 900;  // Properties of an object that may be left out.
constexpr size_t kMembersPerRule = 24;
constexpr size_t kMaxShownKey = 64;

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

std::string Under(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key.substr(0, kMaxShownKey))
                      : Concat(path, ".", key.substr(0, kMaxShownKey));
}

absl::Status Wrong(const std::string& path, std::string_view what) {
  return absl::InvalidArgumentError(path.empty() ? std::string(what) : Concat(path, ": ", what));
}

class Compiler {
 public:
  Compiler(const JsonTree& document, Grammar& grammar)
      : document_(document), grammar_(grammar), rules_(grammar) {}

  absl::StatusOr<NodeId> Compile() {
    BATON_ASSIGN_OR_RETURN(const NodeId root, Schema(document_, "", 0));
    while (!pending_.empty()) {
      const Pending next = std::move(pending_.back());
      pending_.pop_back();
      BATON_ASSIGN_OR_RETURN(const NodeId body, Schema(*next.schema, next.path, 0));
      grammar_.Define(next.rule, body);
    }
    return root;
  }

 private:
  struct Pending {
    int rule = 0;
    const JsonTree* schema = nullptr;
    std::string path;
  };
  struct Property {
    std::string name;
    NodeId member = 0;
    bool required = false;
  };

  absl::StatusOr<NodeId> Schema(const JsonTree& schema, const std::string& path, int depth) {
    if (schema.Is(Kind::kBool)) {
      if (schema.truth) return rules_.Value();
      return Wrong(path, "false allows no value");
    }
    if (!schema.Is(Kind::kObject)) return Wrong(path, "a schema must be an object, true or false");
    SchemaView view;
    view.Add(schema);
    return View(view, path, depth);
  }

  absl::StatusOr<NodeId> View(const SchemaView& view, const std::string& path, int depth) {
    if (depth > kMaxDepth) return Wrong(path, "is nested too deep");
    if (++schemas_ > kMaxSchemas || grammar_.full()) return Wrong(path, "the schema is too large");
    BATON_RETURN_IF_ERROR(CheckSupported(view, path));
    if (view.Has("$ref")) return Reference(view, path, depth);
    if (view.Has("allOf")) return AllOf(view, path, depth);
    if (view.Has("anyOf")) return Ways(view, "anyOf", path, depth);
    if (view.Has("oneOf")) return Ways(view, "oneOf", path, depth);
    if (view.Has("enum") || view.Has("const")) return Listed(view, path);
    absl::StatusOr<uint32_t> types = TypesOf(view);
    if (!types.ok()) return Wrong(path, std::string(types.status().message()));
    if (*types == kAnyType && view.empty()) return rules_.Value();
    return Typed(view, *types, path, depth);
  }

  absl::Status CheckSupported(const SchemaView& view, const std::string& path) {
    for (const char* keyword : kRefused) {
      if (view.Has(keyword)) return Wrong(path, Concat(keyword, " is not supported"));
    }
    if (const std::string* twice = view.Conflict()) {
      return Wrong(path, Concat(*twice,
                                " stands in several schemas that hold together, which is "
                                "not supported"));
    }
    const auto set = [&](const char* key) {
      const JsonTree* value = view.Find(key);
      return value != nullptr && !(value->Is(Kind::kBool) && !value->truth);
    };
    if (set("uniqueItems")) return Wrong(path, "uniqueItems is not supported");
    if (set("unevaluatedProperties")) return Wrong(path, "unevaluatedProperties is not supported");
    return absl::OkStatus();
  }

  absl::StatusOr<const JsonTree*> TargetOf(const JsonTree& reference, const std::string& path) {
    if (!reference.Is(Kind::kString)) return Wrong(path, "$ref: must be a string");
    absl::StatusOr<const JsonTree*> target = Resolve(document_, reference.text);
    if (!target.ok()) return Wrong(path, Concat("$ref: ", std::string(target.status().message())));
    return target;
  }

  absl::StatusOr<NodeId> Reference(const SchemaView& view, const std::string& path, int depth) {
    const JsonTree& reference = *view.Find("$ref");
    BATON_ASSIGN_OR_RETURN(const JsonTree* const target, TargetOf(reference, path));
    if (view.members().size() > 1 && target->Is(Kind::kObject)) {
      SchemaView all;
      for (const auto& [name, value] : view.members()) {
        value == &reference ? all.Add(*target) : all.AddMember(*name, *value);
      }
      return View(all, path, depth + 1);
    }
    const auto [it, added] = referenced_.try_emplace(target, -1);
    if (added) {
      const std::string name = reference.text.substr(0, 2 * kMaxShownKey);
      it->second = grammar_.AddRule(name);
      pending_.push_back({it->second, target, name});
    }
    return grammar_.Call(it->second);
  }

  absl::StatusOr<NodeId> AllOf(const SchemaView& view, const std::string& path, int depth) {
    SchemaView all = view.Without("allOf");
    for (const JsonTree* list : view.FindAll("allOf")) {
      if (!list->Is(Kind::kArray)) return Wrong(path, "allOf: must be a list");
      for (const JsonTree& part : list->items) {
        if (part.Is(Kind::kBool) && part.truth) continue;
        if (!part.Is(Kind::kObject)) return Wrong(path, "allOf: must be a list of schemas");
        all.Add(part);
      }
    }
    return View(all, path, depth + 1);
  }

  absl::StatusOr<NodeId> Ways(const SchemaView& view, const char* keyword, const std::string& path,
                              int depth) {
    const std::vector<const JsonTree*> lists = view.FindAll(keyword);
    if (lists.size() > 1) return Wrong(path, Concat(keyword, " stands twice"));
    const std::vector<JsonTree>& ways = lists[0]->items;
    if (!lists[0]->Is(Kind::kArray) || ways.empty()) {
      return Wrong(path, Concat(keyword, ": must be a list of schemas"));
    }
    if (keyword == std::string_view("oneOf")) BATON_RETURN_IF_ERROR(CheckOneOf(ways, path));
    const SchemaView rest = view.Without(keyword);
    std::vector<NodeId> nodes;
    for (size_t i = 0; i < ways.size(); ++i) {
      const std::string at = Under(path, absl::StrCat(keyword, "[", i, "]"));
      if (rest.empty() || !ways[i].Is(Kind::kObject)) {
        BATON_ASSIGN_OR_RETURN(const NodeId node, Schema(ways[i], at, depth + 1));
        nodes.push_back(node);
        continue;
      }
      SchemaView both = rest;
      both.Add(ways[i]);
      BATON_ASSIGN_OR_RETURN(const NodeId node, View(both, at, depth + 1));
      nodes.push_back(node);
    }
    return grammar_.Choice(std::move(nodes));
  }

  absl::Status CheckOneOf(const std::vector<JsonTree>& ways, const std::string& path) {
    if (ways.size() > kMaxWays) return Wrong(path, "oneOf: has too many schemas");
    for (size_t i = 0; i < ways.size(); ++i) {
      for (size_t k = 0; k < ways.size(); ++k) {
        if (i == k || Excludes(document_, ways[i], ways[k])) continue;
        return Wrong(path,
                     absl::StrCat("oneOf: a value may fit both schema ", std::min(i, k), " and ",
                                  std::max(i, k), ", which is not supported; anyOf is"));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<NodeId> Listed(const SchemaView& view, const std::string& path) {
    for (const auto& [name, value] : view.members()) {
      if (*name == "enum" || *name == "const" || *name == "type" || *name == "nullable") continue;
      if (*name == "format") continue;
      return Wrong(path, Concat(*name, " beside enum or const is not supported"));
    }
    const JsonTree* const only = view.Find("const");
    const JsonTree* const list = view.Find("enum");
    if (list != nullptr && !list->Is(Kind::kArray)) return Wrong(path, "enum: must be a list");
    absl::StatusOr<uint32_t> types = TypesOf(view);
    if (!types.ok()) return Wrong(path, std::string(types.status().message()));
    const auto fits = [&](const JsonTree& value) { return (TypeOf(value) & *types) != 0; };
    std::vector<NodeId> ways;
    if (only != nullptr) {
      const bool listed = list == nullptr || std::find(list->items.begin(), list->items.end(),
                                                       *only) != list->items.end();
      if (listed && fits(*only)) ways.push_back(rules_.Constant(*only));
    } else {
      for (const JsonTree& value : list->items) {
        if (fits(value)) ways.push_back(rules_.Constant(value));
      }
    }
    if (ways.empty()) return Wrong(path, "no value is allowed");
    return grammar_.Choice(std::move(ways));
  }

  absl::StatusOr<NodeId> Typed(const SchemaView& view, uint32_t types, const std::string& path,
                               int depth) {
    std::vector<NodeId> ways;
    if ((types & kObjectType) != 0) {
      BATON_ASSIGN_OR_RETURN(const NodeId node, Object(view, path, depth));
      ways.push_back(node);
    }
    if ((types & kArrayType) != 0) {
      BATON_ASSIGN_OR_RETURN(const NodeId node, Array(view, path, depth));
      ways.push_back(node);
    }
    if ((types & kStringType) != 0) {
      BATON_ASSIGN_OR_RETURN(const NodeId node, String(view, path));
      ways.push_back(node);
    }
    if ((types & kNumberType) != 0) {
      BATON_ASSIGN_OR_RETURN(const NodeId node, Number(view, (types & kFractionType) == 0, path));
      ways.push_back(node);
    }
    if ((types & kBooleanType) != 0) ways.push_back(rules_.Boolean());
    if ((types & kNullType) != 0) ways.push_back(rules_.Null());
    return grammar_.Choice(std::move(ways));
  }

  // A count such as minItems; `absent` if there is none.
  absl::StatusOr<int> Count(const SchemaView& view, const char* keyword, int absent,
                            const std::string& path) {
    const JsonTree* value = view.Find(keyword);
    if (value == nullptr) return absent;
    if (!value->Is(Kind::kNumber) || !value->whole || value->integer < 0) {
      return Wrong(path, Concat(keyword, ": must be an integer from 0 on"));
    }
    if (value->integer > kMaxCount) {
      return Wrong(path, absl::StrCat(keyword, ": more than ", kMaxCount, " is not supported"));
    }
    return static_cast<int>(value->integer);
  }

  absl::Status CheckOrder(int least, int most, const char* of, const std::string& path) {
    if (most == kUnbounded || least <= most) return absl::OkStatus();
    return Wrong(path, Concat("the least ", of, " is greater than the most"));
  }

  absl::StatusOr<NodeId> String(const SchemaView& view, const std::string& path) {
    BATON_ASSIGN_OR_RETURN(const int least, Count(view, "minLength", 0, path));
    BATON_ASSIGN_OR_RETURN(const int most, Count(view, "maxLength", kUnbounded, path));
    BATON_RETURN_IF_ERROR(CheckOrder(least, most, "length", path));
    const bool sized = least > 0 || most != kUnbounded;
    const JsonTree* const pattern = view.Find("pattern");
    const JsonTree* const format = view.Find("format");
    if (pattern != nullptr) {
      if (!pattern->Is(Kind::kString)) return Wrong(path, "pattern: must be a string");
      if (sized) return Wrong(path, "pattern beside minLength or maxLength is not supported");
      return Pattern(pattern->text, Under(path, "pattern"));
    }
    if (format == nullptr) return rules_.StringOf(least, most);
    if (!format->Is(Kind::kString)) return Wrong(path, "format: must be a string");
    const auto known = JsonRules::PatternOfFormat(format->text);
    if (!known) return rules_.StringOf(least, most);
    if (sized) return Wrong(path, "format beside minLength or maxLength is not supported");
    return Pattern(*known, Under(path, "format"));
  }

  absl::StatusOr<NodeId> Pattern(std::string_view pattern, const std::string& path) {
    absl::StatusOr<NodeId> inside = AddRegex(pattern, RegexUse::kJsonString, grammar_);
    if (!inside.ok()) return Wrong(path, std::string(inside.status().message()));
    return rules_.Quoted(*inside);
  }

  absl::StatusOr<NodeId> Number(const SchemaView& view, bool integer, const std::string& path) {
    Bounds bounds;
    BATON_RETURN_IF_ERROR(ReadBounds(view, integer, bounds, path));
    if (const JsonTree* step = view.Find("multipleOf")) {
      const bool plain = integer && step->Is(Kind::kNumber) && step->number == 1;
      if (!plain) return Wrong(path, "multipleOf is not supported");
    }
    if (!bounds.least && !bounds.most) return integer ? rules_.Integer() : rules_.Number();
    return integer ? rules_.IntegerIn(bounds) : rules_.NumberIn(bounds);
  }

  absl::Status ReadBounds(const SchemaView& view, bool integer, Bounds& bounds,
                          const std::string& path) {
    for (const char* keyword : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
      const JsonTree* value = view.Find(keyword);
      if (value == nullptr) continue;
      const std::string_view name = keyword;
      if (!value->Is(Kind::kNumber)) return Wrong(path, Concat(name, ": must be a number"));
      const bool lower = name == "minimum" || name == "exclusiveMinimum";
      bool exclusive = name.substr(0, 9) == "exclusive";
      double bound = value->number;
      if (!value->whole) {
        if (!integer) {
          return Wrong(path, Concat(name, ": must be an integer; others are not supported"));
        }
        exclusive = false;
        bound = lower ? std::ceil(bound) : std::floor(bound);
      }
      const auto at = static_cast<int64_t>(std::clamp(bound, -9e17, 9e17));
      std::optional<int64_t>& of = lower ? bounds.least : bounds.most;
      bool& out = lower ? bounds.above_least : bounds.below_most;
      const bool tighter = !of || (lower ? at > *of : at < *of) || (at == *of && exclusive);
      if (tighter) {
        of = value->whole && std::abs(value->number) < 9e17 ? value->integer : at;
        out = exclusive;
      }
    }
    return absl::OkStatus();
  }

  // The schema as a node that may be used several times.
  absl::StatusOr<NodeId> Shared(const JsonTree& schema, const std::string& path, int depth) {
    BATON_ASSIGN_OR_RETURN(const NodeId node, Schema(schema, path, depth));
    return AsRule(node, path);
  }

  NodeId AsRule(NodeId node, const std::string& name) {
    if (grammar_.node(node).kind == Grammar::Kind::kRule) return node;
    const int rule = grammar_.AddRule(name);
    grammar_.Define(rule, node);
    return grammar_.Call(rule);
  }

  absl::StatusOr<NodeId> Array(const SchemaView& view, const std::string& path, int depth) {
    BATON_ASSIGN_OR_RETURN(const int least, Count(view, "minItems", 0, path));
    BATON_ASSIGN_OR_RETURN(const int most, Count(view, "maxItems", kUnbounded, path));
    BATON_RETURN_IF_ERROR(CheckOrder(least, most, "number of items", path));
    const JsonTree* items = view.Find("items");
    const JsonTree* prefix = view.Find("prefixItems");
    if (items != nullptr && items->Is(Kind::kArray)) std::swap(items, prefix);  // Draft 7.
    const size_t fixed = prefix == nullptr ? 0 : prefix->items.size();
    if (prefix != nullptr && !prefix->Is(Kind::kArray)) {
      return Wrong(path, "prefixItems: must be a list");
    }
    const bool closed = items == nullptr ? prefix != nullptr && least <= static_cast<int>(fixed)
                                         : items->Is(Kind::kBool) && !items->truth;
    NodeId tail = grammar_.Empty();  // The items behind the first, with commas.
    const int placed = static_cast<int>(std::min(fixed, size_t{kMaxCount}));
    NodeId item = 0;
    if (!closed) {
      if (items == nullptr) {
        item = rules_.Value();
      } else {
        BATON_ASSIGN_OR_RETURN(item, Shared(*items, Under(path, "items"), depth + 1));
      }
    }
    if (most == 0) return rules_.Enclosed("[", grammar_.Empty(), "]", false);
    if (placed == 0) {
      if (closed) return rules_.Enclosed("[", grammar_.Empty(), "]", false);
      const NodeId more = grammar_.Sequence({rules_.Comma(), item});
      const NodeId all =
          grammar_.Sequence({item, grammar_.Repeat(more, std::max(0, least - 1),
                                                   most == kUnbounded ? kUnbounded : most - 1)});
      return rules_.Enclosed("[", all, "]", least == 0);
    }
    if (closed && least > placed) return Wrong(path, "minItems: there are fewer items");
    if (!closed && (most == kUnbounded || most > placed)) {
      const NodeId more = grammar_.Sequence({rules_.Comma(), item});
      tail = grammar_.Repeat(more, std::max(0, least - placed),
                             most == kUnbounded ? kUnbounded : most - placed);
    }
    for (int i = placed; i-- > 0;) {
      if (most != kUnbounded && i >= most) continue;
      const JsonTree& own = prefix->items[static_cast<size_t>(i)];
      BATON_ASSIGN_OR_RETURN(
          const NodeId node,
          Schema(own, Under(path, absl::StrCat("prefixItems[", i, "]")), depth + 1));
      std::vector<NodeId> parts = {node, tail};
      if (i > 0) parts.insert(parts.begin(), rules_.Comma());
      tail = grammar_.Sequence(std::move(parts));
      if (i > 0 && i >= least) tail = grammar_.Optional(tail);
      if (i % static_cast<int>(kMembersPerRule) == 0) tail = AsRule(tail, path);
    }
    return rules_.Enclosed("[", tail, "]", least == 0);
  }

  absl::StatusOr<NodeId> Object(const SchemaView& view, const std::string& path, int depth) {
    std::vector<Property> properties;
    BATON_RETURN_IF_ERROR(ReadProperties(view, properties, path, depth));
    const JsonTree* const more = view.Find("additionalProperties");
    const bool open = more == nullptr ? !view.Has("properties") && properties.empty()
                                      : !(more->Is(Kind::kBool) && !more->truth);
    BATON_ASSIGN_OR_RETURN(const int least, Count(view, "minProperties", 0, path));
    BATON_ASSIGN_OR_RETURN(const int most, Count(view, "maxProperties", kUnbounded, path));
    BATON_RETURN_IF_ERROR(CheckOrder(least, most, "number of properties", path));
    std::optional<NodeId> additional;
    if (open) {
      NodeId value = rules_.Value();
      if (more != nullptr) {
        BATON_ASSIGN_OR_RETURN(value,
                               Shared(*more, Under(path, "additionalProperties"), depth + 1));
      }
      additional = AsRule(rules_.Member(KeyOfOthers(properties), value), path);
    }
    const auto required = std::count_if(properties.begin(), properties.end(),
                                        [](const Property& of) { return of.required; });
    const bool plain =
        least <= required &&
        (most == kUnbounded || (!open && most >= static_cast<int>(properties.size())));
    if (properties.empty() && additional) {
      if (most == 0) return rules_.Enclosed("{", grammar_.Empty(), "}", false);
      const NodeId next = grammar_.Sequence({rules_.Comma(), *additional});
      const NodeId all = grammar_.Sequence(
          {*additional, grammar_.Repeat(next, std::max(0, least - 1),
                                        most == kUnbounded ? kUnbounded : most - 1)});
      return rules_.Enclosed("{", all, "}", least == 0);
    }
    if (!plain) {
      return Wrong(path, "minProperties and maxProperties beside properties are not supported");
    }
    return Members(properties, additional, path);
  }

  NodeId KeyOfOthers(const std::vector<Property>& properties) {
    if (properties.empty()) return rules_.String();
    std::vector<std::string> taken;
    taken.reserve(properties.size());
    for (const Property& property : properties) taken.push_back(property.name);
    return rules_.KeyBut(taken);
  }

  absl::Status ReadProperties(const SchemaView& view, std::vector<Property>& properties,
                              const std::string& path, int depth) {
    std::vector<std::string> order;
    std::set<std::string> required;
    for (const JsonTree* list : view.FindAll("required")) {
      if (list->Is(Kind::kBool)) continue;  // Draft 3's, of a property.
      if (!list->Is(Kind::kArray)) return Wrong(path, "required: must be a list of names");
      for (const JsonTree& name : list->items) {
        if (!name.Is(Kind::kString)) return Wrong(path, "required: must be a list of names");
        if (required.insert(name.text).second) order.push_back(name.text);
      }
    }
    std::set<std::string> known;
    for (const JsonTree* list : view.FindAll("properties")) {
      if (!list->Is(Kind::kObject)) return Wrong(path, "properties: must be an object");
      for (const auto& [name, schema] : list->members) {
        const std::string at = Under(Under(path, "properties"), name);
        if (!known.insert(name).second) {
          return Wrong(at, "stands in several schemas that hold together, which is not supported");
        }
        const bool is_required = required.contains(name);
        if (schema.Is(Kind::kBool) && !schema.truth && !is_required) continue;
        BATON_ASSIGN_OR_RETURN(const NodeId value, Shared(schema, at, depth + 1));
        properties.push_back(
            {name, rules_.Member(grammar_.Text(JsonQuoted(name)), value), is_required});
      }
    }
    const JsonTree* const more = view.Find("additionalProperties");
    for (const std::string& name : order) {
      if (known.contains(name)) continue;
      NodeId value = rules_.Value();
      if (more != nullptr) {
        BATON_ASSIGN_OR_RETURN(value,
                               Shared(*more, Under(path, "additionalProperties"), depth + 1));
      }
      properties.push_back({name, rules_.Member(grammar_.Text(JsonQuoted(name)), value), true});
    }
    const auto optional = std::count_if(properties.begin(), properties.end(),
                                        [](const Property& of) { return !of.required; });
    if (static_cast<size_t>(optional) > kMaxOptional) {
      return Wrong(path, absl::StrCat("more than ", kMaxOptional,
                                      " properties that are not required are not supported"));
    }
    return absl::OkStatus();
  }

  // Properties in their order, those that are not required perhaps, and others behind them.
  NodeId Members(const std::vector<Property>& properties, std::optional<NodeId> additional,
                 const std::string& path) {
    const size_t count = properties.size();
    const auto first_required =
        static_cast<size_t>(std::find_if(properties.begin(), properties.end(),
                                         [](const Property& of) { return of.required; }) -
                            properties.begin());
    // What may follow when something stands before: the properties from i on.
    NodeId tail = grammar_.Empty();
    if (additional) {
      tail = grammar_.Repeat(grammar_.Sequence({rules_.Comma(), *additional}), 0, kUnbounded);
    }
    std::vector<NodeId> ways;
    size_t in_rule = 0;
    for (size_t i = count; i-- > 0;) {
      const bool may_be_first = i <= first_required;
      const bool twice = may_be_first || !properties[i].required;
      if (twice || ++in_rule >= kMembersPerRule) {
        tail = AsRule(tail, path);
        in_rule = 0;
      }
      if (may_be_first) ways.push_back(grammar_.Sequence({properties[i].member, tail}));
      const NodeId with = grammar_.Sequence({rules_.Comma(), properties[i].member, tail});
      tail = properties[i].required ? with : grammar_.Choice({with, tail});
    }
    const bool may_be_empty = first_required == count;
    if (may_be_empty && additional) {
      const NodeId more =
          grammar_.Repeat(grammar_.Sequence({rules_.Comma(), *additional}), 0, kUnbounded);
      ways.push_back(grammar_.Sequence({*additional, more}));
    }
    if (ways.empty()) return rules_.Enclosed("{", grammar_.Empty(), "}", false);
    return rules_.Enclosed("{", grammar_.Choice(std::move(ways)), "}", may_be_empty);
  }

  const JsonTree& document_;
  Grammar& grammar_;
  JsonRules rules_;
  std::map<const JsonTree*, int> referenced_;
  std::vector<Pending> pending_;
  int schemas_ = 0;
};

}  // namespace

absl::StatusOr<NodeId> AddJsonSchema(std::string_view schema, Grammar& grammar) {
  BATON_ASSIGN_OR_RETURN(const JsonTree document, ParseJsonTree(schema));
  return Compiler(document, grammar).Compile();
}

}  // namespace baton::grammar
