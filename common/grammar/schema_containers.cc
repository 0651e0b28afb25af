// Lists and objects of schemas.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/grammar/schema_compiler.h"

namespace baton::grammar {
namespace {

using NodeId = Grammar::NodeId;
using Kind = JsonTree::Kind;

constexpr size_t kMaxOptional = 450;  // Properties of an object that may be left out.
constexpr size_t kMembersPerRule = 24;

absl::StatusOr<std::vector<std::string>> RequiredOf(const SchemaView& view, const SchemaPlace& at) {
  std::vector<std::string> order;
  std::set<std::string> known;
  for (const JsonTree* list : view.FindAll("required")) {
    if (list->Is(Kind::kBool)) continue;  // Draft 3's, of a property.
    if (!list->Is(Kind::kArray)) return at.Wrong("required: must be a list of names");
    for (const JsonTree& name : list->items) {
      if (!name.Is(Kind::kString)) return at.Wrong("required: must be a list of names");
      if (known.insert(name.text).second) order.push_back(name.text);
    }
  }
  return order;
}

bool IsFalse(const JsonTree& schema) { return schema.Is(Kind::kBool) && !schema.truth; }

}  // namespace

absl::StatusOr<NodeId> SchemaCompiler::Array(const SchemaView& view, const SchemaPlace& at) {
  BATON_ASSIGN_OR_RETURN(const int least, CountOf(view, "minItems", 0, at));
  BATON_ASSIGN_OR_RETURN(const int most, CountOf(view, "maxItems", kUnbounded, at));
  BATON_RETURN_IF_ERROR(CheckOrder(least, most, "number of items", at));
  const JsonTree* items = view.Find("items");
  const JsonTree* prefix = view.Find("prefixItems");
  if (items != nullptr && items->Is(Kind::kArray)) std::swap(items, prefix);  // Draft 7.
  const size_t fixed = prefix == nullptr ? 0 : prefix->items.size();
  if (prefix != nullptr && !prefix->Is(Kind::kArray)) {
    return at.Wrong("prefixItems: must be a list");
  }
  const bool closed =
      items == nullptr ? prefix != nullptr && least <= static_cast<int>(fixed) : IsFalse(*items);
  NodeId item = 0;
  if (!closed) {
    if (items == nullptr) {
      item = rules_.Value();
    } else {
      BATON_ASSIGN_OR_RETURN(item, Shared(*items, at.Part("items")));
    }
  }
  const int placed = static_cast<int>(std::min(fixed, size_t{kMaxCount}));
  if (most == 0 || (placed == 0 && closed)) {
    return rules_.Enclosed("[", grammar_.Empty(), "]", false);
  }
  if (placed == 0) {
    const NodeId all = grammar_.Sequence({item, More(item, 1, least, most)});
    return rules_.Enclosed("[", all, "]", least == 0);
  }
  if (closed && least > placed) return at.Wrong("minItems: there are fewer items");
  NodeId tail = grammar_.Empty();  // The items behind the first, with commas.
  if (!closed && (most == kUnbounded || most > placed)) {
    tail = More(item, placed, least, most);
  }
  BATON_ASSIGN_OR_RETURN(tail, Items(prefix->items, tail, least, most, at));
  return rules_.Enclosed("[", tail, "]", least == 0);
}

// The items that have schemas of their own, and `tail` behind them.
absl::StatusOr<NodeId> SchemaCompiler::Items(const std::vector<JsonTree>& first, NodeId tail,
                                             int least, int most, const SchemaPlace& at) {
  for (int i = static_cast<int>(std::min(first.size(), size_t{kMaxCount})); i-- > 0;) {
    if (most != kUnbounded && i >= most) continue;
    BATON_ASSIGN_OR_RETURN(
        const NodeId node,
        Schema(first[static_cast<size_t>(i)], at.Part(absl::StrCat("prefixItems[", i, "]"))));
    std::vector<NodeId> parts = {node, tail};
    if (i > 0) parts.insert(parts.begin(), rules_.Comma());
    tail = grammar_.Sequence(std::move(parts));
    if (i > 0 && i >= least) tail = grammar_.Optional(tail);
    if (i % static_cast<int>(kMembersPerRule) == 0) tail = AsRule(tail, at.path);
  }
  return tail;
}

NodeId SchemaCompiler::More(NodeId part, int before, int least, int most) {
  return grammar_.Repeat(grammar_.Sequence({rules_.Comma(), part}), std::max(0, least - before),
                         most == kUnbounded ? kUnbounded : most - before);
}

NodeId SchemaCompiler::Enclosed(NodeId members, bool may_be_empty, const SchemaPlace& at) {
  if (at.spelling == Spelling::kJson) return rules_.Enclosed("{", members, "}", may_be_empty);
  return may_be_empty ? grammar_.Optional(members) : members;
}

NodeId SchemaCompiler::Separator(const SchemaPlace& at) {
  const bool comma = at.spelling == Spelling::kJson || arguments_->python();
  return comma ? rules_.Comma() : grammar_.Empty();
}

absl::StatusOr<NodeId> SchemaCompiler::Object(const SchemaView& view, const SchemaPlace& at) {
  std::vector<Property> properties;
  BATON_RETURN_IF_ERROR(ReadProperties(view, properties, at));
  BATON_ASSIGN_OR_RETURN(const int least, CountOf(view, "minProperties", 0, at));
  BATON_ASSIGN_OR_RETURN(const int most, CountOf(view, "maxProperties", kUnbounded, at));
  BATON_RETURN_IF_ERROR(CheckOrder(least, most, "number of properties", at));
  BATON_ASSIGN_OR_RETURN(const std::optional<NodeId> additional, Additional(view, properties, at));
  if (properties.empty() && additional) {
    if (most == 0) return Enclosed(grammar_.Empty(), false, at);
    if (at.spelling == Spelling::kArguments) {
      // If there were several, one could be there twice, which no call may have.
      if (least > 1) return at.Wrong("minProperties without properties is not supported");
      return Enclosed(*additional, least == 0, at);
    }
    const NodeId all = grammar_.Sequence({*additional, More(*additional, 1, least, most)});
    return Enclosed(all, least == 0, at);
  }
  const auto required = std::count_if(properties.begin(), properties.end(),
                                      [](const Property& of) { return of.required; });
  const bool plain =
      least <= required &&
      (most == kUnbounded || (!additional && most >= static_cast<int>(properties.size())));
  if (!plain) {
    return at.Wrong("minProperties and maxProperties beside properties are not supported");
  }
  return Members(properties, additional, at);
}

// A member whose key is none of the properties'; nullopt if there is none.
absl::StatusOr<std::optional<NodeId>> SchemaCompiler::Additional(
    const SchemaView& view, const std::vector<Property>& properties, const SchemaPlace& at) {
  const JsonTree* const schema = view.Find("additionalProperties");
  const bool open =
      schema == nullptr ? !view.Has("properties") && properties.empty() : !IsFalse(*schema);
  const bool json = at.spelling == Spelling::kJson;
  if (!open || (!json && !properties.empty())) return std::nullopt;
  NodeId value = rules_.Value();
  if (schema != nullptr) {
    BATON_ASSIGN_OR_RETURN(value, Shared(*schema, at.Part("additionalProperties")));
  }
  if (!json) return AsRule(arguments_->AnyMember(value), at.path);
  std::vector<std::string> taken;
  taken.reserve(properties.size());
  for (const Property& property : properties) taken.push_back(property.name);
  const NodeId key = taken.empty() ? rules_.String() : rules_.KeyBut(taken);
  return AsRule(rules_.Member(key, value), at.path);
}

absl::StatusOr<SchemaCompiler::Property> SchemaCompiler::PropertyOf(const std::string& name,
                                                                    const JsonTree& schema,
                                                                    bool required,
                                                                    const SchemaPlace& at,
                                                                    std::string_view key) {
  if (at.spelling == Spelling::kJson) {
    BATON_ASSIGN_OR_RETURN(const NodeId value, Shared(schema, at.Part(key)));
    return Property{name, rules_.Member(grammar_.Text(JsonQuoted(name)), value), required};
  }
  const bool bare = arguments_->IsBare(name);
  const SchemaPlace place = at.Part(key, bare ? Spelling::kBareText : Spelling::kJson);
  const absl::Status named = arguments_->CheckName(name);
  if (!named.ok()) return place.Wrong(std::string(named.message()));
  BATON_ASSIGN_OR_RETURN(const NodeId value, Shared(schema, place));
  return Property{name, arguments_->Member(name, value), required};
}

absl::Status SchemaCompiler::ReadProperties(const SchemaView& view,
                                            std::vector<Property>& properties,
                                            const SchemaPlace& at) {
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> order, RequiredOf(view, at));
  const std::set<std::string> required(order.begin(), order.end());
  std::set<std::string> known;
  for (const JsonTree* list : view.FindAll("properties")) {
    if (!list->Is(Kind::kObject)) return at.Wrong("properties: must be an object");
    for (const auto& [name, schema] : list->members) {
      const std::string key = Concat("properties.", name.substr(0, SchemaPlace::kMaxShownKey));
      if (!known.insert(name).second) {
        return at.Part(key).Wrong(
            "stands in several schemas that hold together, which is not supported");
      }
      const bool is_required = required.contains(name);
      if (IsFalse(schema) && !is_required) continue;
      BATON_ASSIGN_OR_RETURN(Property property, PropertyOf(name, schema, is_required, at, key));
      properties.push_back(std::move(property));
    }
  }
  static const auto* const any = new JsonTree{.kind = Kind::kBool, .truth = true};
  const JsonTree* const more = view.Find("additionalProperties");
  for (const std::string& name : order) {
    if (known.contains(name)) continue;
    BATON_ASSIGN_OR_RETURN(Property property, PropertyOf(name, more == nullptr ? *any : *more, true,
                                                         at, "additionalProperties"));
    properties.push_back(std::move(property));
  }
  const auto optional = std::count_if(properties.begin(), properties.end(),
                                      [](const Property& of) { return !of.required; });
  if (static_cast<size_t>(optional) > kMaxOptional) {
    return at.Wrong(absl::StrCat("more than ", kMaxOptional,
                                 " properties that are not required are not supported"));
  }
  return absl::OkStatus();
}

// Properties in their order, those that are not required perhaps, and others behind them.
NodeId SchemaCompiler::Members(const std::vector<Property>& properties,
                               std::optional<NodeId> additional, const SchemaPlace& at) {
  const size_t count = properties.size();
  const auto first_required =
      static_cast<size_t>(std::find_if(properties.begin(), properties.end(),
                                       [](const Property& of) { return of.required; }) -
                          properties.begin());
  // What may follow when something stands before: the properties from i on.
  NodeId tail = additional ? More(*additional, 0, 0, kUnbounded) : grammar_.Empty();
  std::vector<NodeId> ways;
  size_t in_rule = 0;
  for (size_t i = count; i-- > 0;) {
    const bool may_be_first = i <= first_required;
    const bool twice = may_be_first || !properties[i].required;
    if (twice || ++in_rule >= kMembersPerRule) {
      tail = AsRule(tail, at.path);
      in_rule = 0;
    }
    if (may_be_first) ways.push_back(grammar_.Sequence({properties[i].member, tail}));
    const NodeId with = grammar_.Sequence({Separator(at), properties[i].member, tail});
    tail = properties[i].required ? with : grammar_.Choice({with, tail});
  }
  const bool may_be_empty = first_required == count;
  if (may_be_empty && additional) {
    ways.push_back(grammar_.Sequence({*additional, More(*additional, 0, 0, kUnbounded)}));
  }
  if (ways.empty()) return Enclosed(grammar_.Empty(), false, at);
  return Enclosed(grammar_.Choice(std::move(ways)), may_be_empty, at);
}

}  // namespace baton::grammar
