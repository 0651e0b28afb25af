// A JSON schema with what stands beside its anyOf, allOf or $ref put together, without copies.
#ifndef COMMON_GRAMMAR_SCHEMA_VIEW_H_
#define COMMON_GRAMMAR_SCHEMA_VIEW_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/grammar/json_tree.h"

namespace baton::grammar {

// The keywords of one or several schemas that hold together. Refers to the document.
class SchemaView {
 public:
  // Those of `schema`, an object, that say something of values.
  void Add(const JsonTree& schema);
  void AddMember(const std::string& key, const JsonTree& value) {
    members_.emplace_back(&key, &value);
  }

  const JsonTree* Find(std::string_view key) const;
  std::vector<const JsonTree*> FindAll(std::string_view key) const;
  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  bool empty() const { return members_.empty(); }
  // The same without a keyword.
  SchemaView Without(std::string_view key) const;
  // Whether two of the schemas have a keyword that may not stand twice: its name.
  const std::string* Conflict() const;

  const std::vector<std::pair<const std::string*, const JsonTree*>>& members() const {
    return members_;
  }

 private:
  std::vector<std::pair<const std::string*, const JsonTree*>> members_;
};

// JSON Schema's types as bits; a number may be an integer.
enum TypeBits : uint32_t {
  kNullType = 1,
  kBooleanType = 2,
  kIntegerType = 4,
  kFractionType = 8,
  kNumberType = kIntegerType | kFractionType,
  kStringType = 16,
  kArrayType = 32,
  kObjectType = 64,
  kAnyType = 127,
};

// 0 for a name that is none.
uint32_t TypeNamed(std::string_view name);
uint32_t TypeOf(const JsonTree& value);

// The types that a view allows, or takes for granted where it has no "type". INVALID_ARGUMENT.
absl::StatusOr<uint32_t> TypesOf(const SchemaView& view);

// The value at "#/a/b" in the document; INVALID_ARGUMENT for what points nowhere or outside.
absl::StatusOr<const JsonTree*> Resolve(const JsonTree& document, std::string_view reference);

// Whether no text that is written for `a` is a value of `b`.
bool Excludes(const JsonTree& document, const JsonTree& a, const JsonTree& b);

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_SCHEMA_VIEW_H_
