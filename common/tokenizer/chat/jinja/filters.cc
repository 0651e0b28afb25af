#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/jinja/arguments.h"
#include "common/tokenizer/chat/jinja/builtins.h"
#include "common/tokenizer/chat/jinja/evaluator.h"
#include "common/tokenizer/chat/jinja/operations.h"
#include "common/tokenizer/chat/jinja/strings.h"

namespace baton::jinja {
namespace {

using Kind = Value::Kind;

template <Kind kind>
absl::StatusOr<bool> IsKind(Evaluator&, const Value& input, const Arguments&) {
  return input.Is(kind);
}

absl::StatusOr<bool> IsDefined(Evaluator&, const Value& input, const Arguments&) {
  return !input.IsUndefined();
}
absl::StatusOr<bool> IsBoolTrue(Evaluator&, const Value& input, const Arguments&) {
  return input.Is(Kind::kBool) && input.bool_value();
}
absl::StatusOr<bool> IsBoolFalse(Evaluator&, const Value& input, const Arguments&) {
  return input.Is(Kind::kBool) && !input.bool_value();
}
absl::StatusOr<bool> IsNumber(Evaluator&, const Value& input, const Arguments&) {
  return input.IsNumber();
}
absl::StatusOr<bool> IsSequence(Evaluator&, const Value& input, const Arguments&) {
  return input.IsSequence() || input.IsString() || input.Is(Kind::kDict) || input.IsUndefined();
}
absl::StatusOr<bool> IsIterable(Evaluator&, const Value& input, const Arguments&) {
  return input.IsSequence() || input.IsString() || input.Is(Kind::kDict) || input.IsUndefined() ||
         input.Is(Kind::kLoop);
}
absl::StatusOr<bool> IsCallable(Evaluator&, const Value& input, const Arguments&) {
  return input.Is(Kind::kCallable) || input.IsUndefined();
}

absl::StatusOr<BoundArguments> One(const char* name, const Arguments& arguments) {
  return BoundArguments::Bind(name, arguments, {"other"}, 1);
}

absl::StatusOr<bool> IsSameAs(Evaluator&, const Value& input, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound, One("sameas", arguments));
  return input.SameAs(bound[0]);
}

// Whether input % divisor is `rest`.
absl::StatusOr<bool> Leaves(Evaluator& evaluator, const Value& input, const Value& divisor,
                            double rest) {
  BATON_ASSIGN_OR_RETURN(const Value left, Arithmetic("%", input, divisor, evaluator.budget()));
  return left.IsNumber() && left.float_value() == rest;
}

absl::StatusOr<bool> IsOdd(Evaluator& evaluator, const Value& input, const Arguments&) {
  return Leaves(evaluator, input, Value::Int(2), 1);
}
absl::StatusOr<bool> IsEven(Evaluator& evaluator, const Value& input, const Arguments&) {
  return Leaves(evaluator, input, Value::Int(2), 0);
}
absl::StatusOr<bool> IsDivisibleBy(Evaluator& evaluator, const Value& input,
                                   const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound, One("divisibleby", arguments));
  return Leaves(evaluator, input, bound[0], 0);
}

absl::StatusOr<bool> IsUpper(Evaluator& evaluator, const Value& input, const Arguments&) {
  BATON_ASSIGN_OR_RETURN(const Text text, Str(input, evaluator.budget()));
  return HasClass("isupper", text.bytes());
}
absl::StatusOr<bool> IsLower(Evaluator& evaluator, const Value& input, const Arguments&) {
  BATON_ASSIGN_OR_RETURN(const Text text, Str(input, evaluator.budget()));
  return HasClass("islower", text.bytes());
}

absl::StatusOr<bool> IsFilter(Evaluator&, const Value& input, const Arguments&) {
  return input.IsString() && FindFilter(input.str()) != nullptr;
}
absl::StatusOr<bool> IsTest(Evaluator&, const Value& input, const Arguments&) {
  return input.IsString() && FindTest(input.str()) != nullptr;
}

absl::StatusOr<bool> Never(Evaluator&, const Value&, const Arguments&) { return false; }

// A comparison by the name of a test.
template <size_t kOperator>
absl::StatusOr<bool> Compares(Evaluator& evaluator, const Value& input,
                              const Arguments& arguments) {
  constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">=", "in"};
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound, One("comparison", arguments));
  return Compare(kOperators[kOperator], input, bound[0], evaluator.budget());
}

}  // namespace

Filter FindFilter(std::string_view name) {
  if (const Filter filter = FindTextFilter(name)) return filter;
  if (const Filter filter = FindSequenceFilter(name)) return filter;
  return FindSelectingFilter(name);
}

Test FindTest(std::string_view name) {
  constexpr Named<Test> kKnown[] = {
      {"defined", IsDefined},
      {"undefined", IsKind<Kind::kUndefined>},
      {"none", IsKind<Kind::kNone>},
      {"boolean", IsKind<Kind::kBool>},
      {"true", IsBoolTrue},
      {"false", IsBoolFalse},
      {"integer", IsKind<Kind::kInt>},
      {"float", IsKind<Kind::kFloat>},
      {"number", IsNumber},
      {"string", IsKind<Kind::kString>},
      {"mapping", IsKind<Kind::kDict>},
      {"sequence", IsSequence},
      {"iterable", IsIterable},
      {"callable", IsCallable},
      {"sameas", IsSameAs},
      {"escaped", Never},
      {"odd", IsOdd},
      {"even", IsEven},
      {"divisibleby", IsDivisibleBy},
      {"upper", IsUpper},
      {"lower", IsLower},
      {"filter", IsFilter},
      {"test", IsTest},
      {"eq", Compares<0>},
      {"equalto", Compares<0>},
      {"ne", Compares<1>},
      {"lt", Compares<2>},
      {"lessthan", Compares<2>},
      {"le", Compares<3>},
      {"gt", Compares<4>},
      {"greaterthan", Compares<4>},
      {"ge", Compares<5>},
      {"in", Compares<6>},
      {"==", Compares<0>},
      {"!=", Compares<1>},
      {"<", Compares<2>},
      {"<=", Compares<3>},
      {">", Compares<4>},
      {">=", Compares<5>},
  };
  return FindNamed(kKnown, name);
}

}  // namespace baton::jinja
