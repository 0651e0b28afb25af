// What JSON consists of, as nodes of a grammar.
#ifndef COMMON_GRAMMAR_JSON_RULES_H_
#define COMMON_GRAMMAR_JSON_RULES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/grammar/grammar.h"
#include "common/grammar/json_tree.h"

namespace baton::grammar {

// An integer or a bound of numbers; nullopt: there is none.
struct Bounds {
  std::optional<int64_t> least;
  std::optional<int64_t> most;
  bool above_least = false;  // Numbers: the bound itself is out.
  bool below_most = false;
};

// Makes each rule once. White space stands where people write it: behind {, [, :, and commas, and
// before } and ]; one space, or a line's end with up to 20 spaces. Numbers have up to 18 digits
// before and behind the point. So a model that goes astray comes to an end.
class JsonRules {
 public:
  using NodeId = Grammar::NodeId;

  // `python`: constants and strings as Python spells them.
  explicit JsonRules(Grammar& grammar, bool python = false) : grammar_(grammar), python_(python) {}

  NodeId Space();
  NodeId Value();   // Any.
  NodeId Object();  // With any members.
  NodeId Array();
  NodeId String();
  NodeId Number();
  NodeId Integer();
  NodeId Boolean() { return grammar_.Choice({Truth(true), Truth(false)}); }
  NodeId Null() { return grammar_.Text(python_ ? "None" : "null"); }

  // A character of a string that is one of these.
  NodeId Chars(CodeRanges ranges) {
    return grammar_.EscapedChars(std::move(ranges), python_ ? Escapes::kPython : Escapes::kJson);
  }
  // A string of so many characters.
  NodeId StringOf(int least, int most);
  // A string with this between its quotes.
  NodeId Quoted(NodeId inside);
  // A key that is none of `taken`, with its quotes; \ stands in none.
  NodeId KeyBut(const std::vector<std::string>& taken);

  // Empty bounds match nothing.
  NodeId IntegerIn(const Bounds& bounds);
  NodeId NumberIn(const Bounds& bounds);

  // What a format of JSON Schema allows, without quotes; nullopt for one that is not known.
  static std::optional<std::string_view> PatternOfFormat(std::string_view format);

  // {`key`: `value`} is put together of these.
  NodeId Member(NodeId quoted_key, NodeId value);
  NodeId Comma();
  // `open`, `inside` and `close` with white space between; without `inside`, if `may_be_empty`.
  NodeId Enclosed(std::string_view open, NodeId inside, std::string_view close, bool may_be_empty);

  // A certain value.
  NodeId Constant(const JsonTree& value);

 private:
  NodeId Truth(bool value) {
    return grammar_.Text(value ? (python_ ? "True" : "true") : (python_ ? "False" : "false"));
  }
  // Digits of numbers from `low` to `high`, which have equally many.
  NodeId Digits(const std::string& low, const std::string& high);
  // From `low` to `high`, not negative.
  NodeId NaturalIn(int64_t low, int64_t high);
  NodeId DecimalIn(int64_t low, int64_t high, bool above_low, bool below_high);
  NodeId Fraction();          // ".25"
  NodeId PositiveFraction();  // Not zero.
  NodeId Nothing() { return grammar_.Chars({}); }

  Grammar& grammar_;
  const bool python_;
  int space_ = -1;
  int value_ = -1;
  int object_ = -1;
  int array_ = -1;
  int string_ = -1;
  int number_ = -1;
  int integer_ = -1;
};

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_JSON_RULES_H_
