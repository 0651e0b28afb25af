#include "common/grammar/schema_view.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/strings.h"

namespace baton::grammar {
namespace {

using Kind = JsonTree::Kind;

constexpr int kMaxHops = 32;
constexpr int kMaxDepth = 8;

// What says something of values. All else is for people, or unknown and then ignored, as JSON
// Schema asks for.
const std::set<std::string, std::less<>>& Keywords() {
  static const auto* const words = new std::set<std::string, std::less<>>{"$ref",
                                                                          "$dynamicRef",
                                                                          "$recursiveRef",
                                                                          "type",
                                                                          "nullable",
                                                                          "enum",
                                                                          "const",
                                                                          "anyOf",
                                                                          "oneOf",
                                                                          "allOf",
                                                                          "not",
                                                                          "if",
                                                                          "then",
                                                                          "else",
                                                                          "properties",
                                                                          "required",
                                                                          "additionalProperties",
                                                                          "patternProperties",
                                                                          "propertyNames",
                                                                          "minProperties",
                                                                          "maxProperties",
                                                                          "dependencies",
                                                                          "dependentRequired",
                                                                          "dependentSchemas",
                                                                          "unevaluatedProperties",
                                                                          "unevaluatedItems",
                                                                          "items",
                                                                          "prefixItems",
                                                                          "additionalItems",
                                                                          "contains",
                                                                          "minContains",
                                                                          "maxContains",
                                                                          "uniqueItems",
                                                                          "minItems",
                                                                          "maxItems",
                                                                          "pattern",
                                                                          "minLength",
                                                                          "maxLength",
                                                                          "format",
                                                                          "minimum",
                                                                          "maximum",
                                                                          "exclusiveMinimum",
                                                                          "exclusiveMaximum",
                                                                          "multipleOf"};
  return *words;
}

// Where the types are not told, what is told says for which type it was written.
uint32_t TypesFor(std::string_view keyword) {
  for (const std::string_view of :
       {"properties", "required", "additionalProperties", "minProperties", "maxProperties"}) {
    if (keyword == of) return kObjectType;
  }
  for (const std::string_view of : {"items", "prefixItems", "minItems", "maxItems"}) {
    if (keyword == of) return kArrayType;
  }
  for (const std::string_view of : {"pattern", "minLength", "maxLength", "format"}) {
    if (keyword == of) return kStringType;
  }
  for (const std::string_view of :
       {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
    if (keyword == of) return kNumberType;
  }
  return 0;
}

std::optional<std::string> Unescaped(std::string_view part) {
  std::string out;
  for (size_t i = 0; i < part.size(); ++i) {
    if (part[i] == '%' && i + 2 < part.size()) {
      int value = 0;
      const auto end = std::from_chars(part.data() + i + 1, part.data() + i + 3, value, 16);
      if (end.ptr != part.data() + i + 3) return std::nullopt;
      out.push_back(static_cast<char>(value));
      i += 2;
    } else if (part[i] == '~' && i + 1 < part.size()) {
      out.push_back(part[++i] == '1' ? '/' : '~');
    } else {
      out.push_back(part[i]);
    }
  }
  return out;
}

// The schema behind references; null where they end nowhere.
const JsonTree* Behind(const JsonTree& document, const JsonTree* schema) {
  for (int hop = 0; hop < kMaxHops; ++hop) {
    const JsonTree* reference = schema->Find("$ref");
    if (reference == nullptr || !reference->Is(Kind::kString)) return schema;
    const auto target = Resolve(document, reference->text);
    if (!target.ok()) return nullptr;
    schema = *target;
  }
  return nullptr;
}

// The values that a schema lists, if it lists them.
std::optional<std::vector<const JsonTree*>> ListedValues(const JsonTree& schema) {
  if (const JsonTree* value = schema.Find("const")) return std::vector<const JsonTree*>{value};
  const JsonTree* values = schema.Find("enum");
  if (values == nullptr || !values->Is(Kind::kArray)) return std::nullopt;
  std::vector<const JsonTree*> list;
  for (const JsonTree& value : values->items) list.push_back(&value);
  return list;
}

bool SameValue(const JsonTree& a, const JsonTree& b) {
  if (a.Is(Kind::kNumber) && b.Is(Kind::kNumber)) return a.number == b.number;
  if (a.kind != b.kind) return false;
  if (a.Is(Kind::kArray) || a.Is(Kind::kObject)) return true;  // Not looked into.
  return a == b;
}

bool Requires(const JsonTree& schema, std::string_view name) {
  const JsonTree* required = schema.Find("required");
  return required != nullptr && std::any_of(required->items.begin(), required->items.end(),
                                            [&](const JsonTree& of) { return of.IsText(name); });
}

bool ExcludesAt(const JsonTree& document, const JsonTree& from_a, const JsonTree& from_b,
                int depth);

// For objects that are written for `a`: with the required properties, and no others than it lists.
bool ExcludesObjects(const JsonTree& document, const JsonTree& a, const JsonTree& b, int depth) {
  const JsonTree* const own = a.Find("properties");
  const JsonTree* const others = b.Find("properties");
  const JsonTree* const more = a.Find("additionalProperties");
  const bool closed =
      own != nullptr && (more == nullptr || (more->Is(Kind::kBool) && !more->truth));
  if (const JsonTree* required = b.Find("required"); closed && required != nullptr) {
    for (const JsonTree& name : required->items) {
      if (own->Find(name.text) == nullptr && !Requires(a, name.text)) return true;
    }
  }
  if (own == nullptr) return false;
  const JsonTree* const others_more = b.Find("additionalProperties");
  const bool others_closed =
      others_more != nullptr && others_more->Is(Kind::kBool) && !others_more->truth;
  for (const auto& [name, schema] : own->members) {
    if (!Requires(a, name)) continue;
    const JsonTree* const other = others == nullptr ? nullptr : others->Find(name);
    if (other == nullptr ? others_closed : ExcludesAt(document, schema, *other, depth + 1)) {
      return true;
    }
  }
  return false;
}

bool ExcludesAt(const JsonTree& document, const JsonTree& from_a, const JsonTree& from_b,
                int depth) {
  if (depth > kMaxDepth) return false;
  const JsonTree* const a = Behind(document, &from_a);
  const JsonTree* const b = Behind(document, &from_b);
  if (a == nullptr || b == nullptr || !a->Is(Kind::kObject) || !b->Is(Kind::kObject)) return false;
  for (const char* of : {"anyOf", "oneOf"}) {
    const auto all = [&](const JsonTree* ways, const auto& excludes) {
      return ways->Is(Kind::kArray) && ways->items.size() <= 32 &&
             std::all_of(ways->items.begin(), ways->items.end(), excludes);
    };
    if (const JsonTree* ways = a->Find(of)) {
      return all(ways, [&](const JsonTree& w) { return ExcludesAt(document, w, *b, depth + 1); });
    }
    if (const JsonTree* ways = b->Find(of)) {
      return all(ways, [&](const JsonTree& w) { return ExcludesAt(document, *a, w, depth + 1); });
    }
  }
  SchemaView view_a;
  SchemaView view_b;
  view_a.Add(*a);
  view_b.Add(*b);
  const auto types_a = TypesOf(view_a);
  const auto types_b = TypesOf(view_b);
  if (!types_a.ok() || !types_b.ok()) return false;
  // What `b` says without a type holds for other types as well.
  const uint32_t told_b = view_b.Has("type") || ListedValues(*b) ? *types_b : kAnyType;
  if ((*types_a & told_b) == 0) return true;
  const auto values_a = ListedValues(*a);
  const auto values_b = ListedValues(*b);
  if (values_a && values_b) {
    for (const JsonTree* value : *values_a) {
      for (const JsonTree* other : *values_b) {
        if (SameValue(*value, *other)) return false;
      }
    }
    return true;
  }
  return *types_a == kObjectType && ExcludesObjects(document, *a, *b, depth);
}

}  // namespace

void SchemaView::Add(const JsonTree& schema) {
  for (const auto& [key, value] : schema.members) {
    if (Keywords().contains(key)) members_.emplace_back(&key, &value);
  }
}

const JsonTree* SchemaView::Find(std::string_view key) const {
  for (const auto& [name, value] : members_) {
    if (*name == key) return value;
  }
  return nullptr;
}

std::vector<const JsonTree*> SchemaView::FindAll(std::string_view key) const {
  std::vector<const JsonTree*> found;
  for (const auto& [name, value] : members_) {
    if (*name == key) found.push_back(value);
  }
  return found;
}

SchemaView SchemaView::Without(std::string_view key) const {
  SchemaView rest;
  for (const auto& member : members_) {
    if (*member.first != key) rest.members_.push_back(member);
  }
  return rest;
}

const std::string* SchemaView::Conflict() const {
  for (size_t i = 0; i < members_.size(); ++i) {
    const auto& [name, value] = members_[i];
    if (*name == "required" || *name == "properties" || *name == "$ref") continue;
    for (size_t k = 0; k < i; ++k) {
      if (*members_[k].first == *name && *members_[k].second != *value) return name;
    }
  }
  // Which properties are additional depends on those in the same schema.
  for (const auto& [name, value] : members_) {
    if (*name == "additionalProperties" && FindAll("properties").size() > 1) return name;
  }
  return nullptr;
}

uint32_t TypeNamed(std::string_view name) {
  if (name == "null") return kNullType;
  if (name == "boolean") return kBooleanType;
  if (name == "integer") return kIntegerType;
  if (name == "number") return kNumberType;
  if (name == "string") return kStringType;
  if (name == "array") return kArrayType;
  if (name == "object") return kObjectType;
  return 0;
}

uint32_t TypeOf(const JsonTree& value) {
  switch (value.kind) {
    case Kind::kNull:
      return kNullType;
    case Kind::kBool:
      return kBooleanType;
    case Kind::kNumber:
      return value.whole ? kIntegerType : kFractionType;
    case Kind::kString:
      return kStringType;
    case Kind::kArray:
      return kArrayType;
    case Kind::kObject:
      return kObjectType;
  }
  return 0;
}

absl::StatusOr<uint32_t> TypesOf(const SchemaView& view) {
  uint32_t types = 0;
  const auto add = [&](const JsonTree& name) {
    const uint32_t bits = name.Is(Kind::kString) ? TypeNamed(name.text) : 0;
    types |= bits;
    return bits != 0;
  };
  if (const JsonTree* type = view.Find("type")) {
    bool known = true;
    if (type->Is(Kind::kArray)) {
      for (const JsonTree& name : type->items) known = add(name) && known;
    } else {
      known = add(*type);
    }
    if (!known || types == 0) {
      return absl::InvalidArgumentError(
          "type: must be a type's name or a list of such: null, boolean, integer, number, string, "
          "array, object");
    }
  } else {
    for (const auto& [name, value] : view.members()) types |= TypesFor(*name);
    if (const JsonTree* value = view.Find("const")) types |= TypeOf(*value);
    if (const JsonTree* values = view.Find("enum")) {
      for (const JsonTree& value : values->items) types |= TypeOf(value);
    }
    if (types == 0) types = kAnyType;
  }
  const JsonTree* const nullable = view.Find("nullable");
  if (nullable != nullptr && nullable->Is(Kind::kBool) && nullable->truth) types |= kNullType;
  return types;
}

absl::StatusOr<const JsonTree*> Resolve(const JsonTree& document, std::string_view reference) {
  const auto nowhere = [&] {
    return absl::InvalidArgumentError(Concat("\"", reference.substr(0, 128),
                                             "\" points to nothing in the schema; references such "
                                             "as #/$defs/name are supported"));
  };
  if (reference.empty() || reference[0] != '#') return nowhere();
  const JsonTree* at = &document;
  std::string_view rest = reference.substr(1);
  while (!rest.empty()) {
    if (rest[0] != '/') return nowhere();
    rest.remove_prefix(1);
    const size_t end = std::min(rest.find('/'), rest.size());
    const auto part = Unescaped(rest.substr(0, end));
    rest.remove_prefix(end);
    if (!part) return nowhere();
    if (at->Is(Kind::kArray)) {
      size_t index = 0;
      const auto parsed = std::from_chars(part->data(), part->data() + part->size(), index);
      if (parsed.ec != std::errc() || index >= at->items.size()) return nowhere();
      at = &at->items[index];
    } else {
      at = at->Find(*part);
      if (at == nullptr) return nowhere();
    }
  }
  return at;
}

bool Excludes(const JsonTree& document, const JsonTree& a, const JsonTree& b) {
  return ExcludesAt(document, a, b, 0);
}

}  // namespace baton::grammar
