// JSON schemas to nodes: json_schema.h's work. Objects and lists are in schema_containers.cc,
// other values in schema_values.cc, and what puts schemas together is in schema_compiler.cc.
#ifndef COMMON_GRAMMAR_SCHEMA_COMPILER_H_
#define COMMON_GRAMMAR_SCHEMA_COMPILER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/strings.h"
#include "common/grammar/argument_rules.h"
#include "common/grammar/grammar.h"
#include "common/grammar/json_rules.h"
#include "common/grammar/json_tree.h"
#include "common/grammar/schema_view.h"

namespace baton::grammar {

enum class Spelling {
  kJson,
  kArguments,  // An object's members as ArgumentRules writes them.
  kBareText,   // A string without quotes, as ArgumentRules writes it.
};

struct SchemaPlace {
  static constexpr size_t kMaxShownKey = 64;

  std::string path;  // For messages; empty: the document itself.
  int depth = 0;
  Spelling spelling = Spelling::kJson;

  // A schema of the same value; `key` names it, unless it is empty.
  SchemaPlace Way(std::string_view key) const { return {PathOf(key), depth + 1, spelling}; }
  // The schema of a part of the value.
  SchemaPlace Part(std::string_view key, Spelling of = Spelling::kJson) const {
    return {PathOf(key), depth + 1, of};
  }
  std::string PathOf(std::string_view key) const {
    if (key.empty()) return path;
    return path.empty() ? std::string(key.substr(0, kMaxShownKey))
                        : Concat(path, ".", key.substr(0, kMaxShownKey));
  }
  absl::Status Wrong(std::string_view what) const {
    return absl::InvalidArgumentError(path.empty() ? std::string(what) : Concat(path, ": ", what));
  }
};

// For one document, which must outlive it. One thread.
class SchemaCompiler {
 public:
  using NodeId = Grammar::NodeId;

  // `arguments`: null for a value of JSON.
  SchemaCompiler(const JsonTree& document, ArgumentRules* arguments, Grammar& grammar)
      : document_(document),
        arguments_(arguments),
        grammar_(grammar),
        rules_(grammar, arguments != nullptr && arguments->python()) {}

  absl::StatusOr<NodeId> Compile();

 private:
  struct Pending {
    int rule = 0;
    const JsonTree* schema = nullptr;
    SchemaPlace at;
  };
  struct Property {
    std::string name;
    NodeId member = 0;
    bool required = false;
  };

  absl::StatusOr<NodeId> Schema(const JsonTree& schema, const SchemaPlace& at);
  absl::StatusOr<NodeId> View(const SchemaView& view, const SchemaPlace& at);
  absl::Status CheckSupported(const SchemaView& view, const SchemaPlace& at);
  absl::StatusOr<NodeId> Reference(const SchemaView& view, const SchemaPlace& at);
  absl::StatusOr<NodeId> AllOf(const SchemaView& view, const SchemaPlace& at);
  absl::StatusOr<NodeId> Ways(const SchemaView& view, const char* keyword, const SchemaPlace& at);
  absl::Status CheckOneOf(const std::vector<JsonTree>& ways, const SchemaPlace& at);
  absl::StatusOr<NodeId> Typed(const SchemaView& view, uint32_t types, const SchemaPlace& at);

  absl::StatusOr<NodeId> Listed(const SchemaView& view, const SchemaPlace& at);
  NodeId Constant(const JsonTree& value, Spelling spelling);
  absl::StatusOr<NodeId> String(const SchemaView& view, const SchemaPlace& at);
  NodeId StringOf(int least, int most, Spelling spelling);
  absl::StatusOr<NodeId> Pattern(std::string_view pattern, const SchemaPlace& at);
  absl::StatusOr<NodeId> Number(const SchemaView& view, bool integer, const SchemaPlace& at);

  absl::StatusOr<NodeId> Array(const SchemaView& view, const SchemaPlace& at);
  absl::StatusOr<NodeId> Items(const std::vector<JsonTree>& first, NodeId tail, int least, int most,
                               const SchemaPlace& at);
  absl::StatusOr<NodeId> Object(const SchemaView& view, const SchemaPlace& at);
  absl::Status ReadProperties(const SchemaView& view, std::vector<Property>& properties,
                              const SchemaPlace& at);
  absl::StatusOr<Property> PropertyOf(const std::string& name, const JsonTree& schema,
                                      bool required, const SchemaPlace& at, std::string_view key);
  absl::StatusOr<std::optional<NodeId>> Additional(const SchemaView& view,
                                                   const std::vector<Property>& properties,
                                                   const SchemaPlace& at);
  NodeId Members(const std::vector<Property>& properties, std::optional<NodeId> additional,
                 const SchemaPlace& at);
  // `part` as often as it may follow `before` others, each behind a comma of JSON: there are
  // `least` to `most` in all.
  NodeId More(NodeId part, int before, int least, int most);
  NodeId Enclosed(NodeId members, bool may_be_empty, const SchemaPlace& at);
  NodeId Separator(const SchemaPlace& at);

  // The schema as a node that may be used several times.
  absl::StatusOr<NodeId> Shared(const JsonTree& schema, const SchemaPlace& at);
  NodeId AsRule(NodeId node, const std::string& name);

  const JsonTree& document_;
  ArgumentRules* const arguments_;
  Grammar& grammar_;
  JsonRules rules_;
  std::map<std::pair<const JsonTree*, Spelling>, int> referenced_;
  std::vector<Pending> pending_;
  int schemas_ = 0;
};

// A count such as minItems; `absent` if there is none. INVALID_ARGUMENT for what is no count.
absl::StatusOr<int> CountOf(const SchemaView& view, const char* keyword, int absent,
                            const SchemaPlace& at);
absl::Status CheckOrder(int least, int most, const char* of, const SchemaPlace& at);

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_SCHEMA_COMPILER_H_
