// The arguments of a call whose format has no JSON object for them: each stands by itself.
#ifndef COMMON_GRAMMAR_ARGUMENT_RULES_H_
#define COMMON_GRAMMAR_ARGUMENT_RULES_H_

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "common/grammar/grammar.h"

namespace baton::grammar {

struct ArgumentSpelling {
  enum class Kind {
    kKeywords,  // a=1, b="x": values as Python writes them.
    kArgTags,   // <arg_key>a</arg_key><arg_value>1</arg_value>, perhaps in lines.
    // <parameter=a>, the value and </parameter>, each in a line of its own.
    kParameterTags,
  };
  Kind kind = Kind::kKeywords;
  // Between tags: arguments that are written as bare text, which must be strings. Other values are
  // JSON.
  std::set<std::string> bare;
};

class ArgumentRules {
 public:
  using NodeId = Grammar::NodeId;

  ArgumentRules(ArgumentSpelling spelling, Grammar& grammar)
      : spelling_(std::move(spelling)), grammar_(grammar) {}

  bool python() const { return spelling_.kind == ArgumentSpelling::Kind::kKeywords; }
  bool IsBare(const std::string& name) const { return !python() && spelling_.bare.contains(name); }

  // INVALID_ARGUMENT for a name that can't be written.
  absl::Status CheckName(std::string_view name) const;
  NodeId Member(std::string_view name, NodeId value) { return Tagged(grammar_.Text(name), value); }
  // An argument of any name.
  NodeId AnyMember(NodeId value);

  // A bare text that does not contain the mark behind it.
  NodeId BareText();
  // A character of a bare text that a count or an expression bounds: one of `ranges`, but no <.
  NodeId BareChars(const CodeRanges& ranges);
  // Whether a text of a list can be told from the mark behind it.
  bool MayBeBare(std::string_view text) const;

 private:
  NodeId Tagged(NodeId name, NodeId value);
  std::string_view EndMark() const;

  const ArgumentSpelling spelling_;
  Grammar& grammar_;
};

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_ARGUMENT_RULES_H_
