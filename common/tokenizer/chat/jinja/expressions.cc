// Evaluation of expressions.
#include <algorithm>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/jinja/builtins.h"
#include "common/tokenizer/chat/jinja/evaluator.h"
#include "common/tokenizer/chat/jinja/operations.h"
#include "common/tokenizer/chat/jinja/scopes.h"
#include "common/tokenizer/chat/jinja/strings.h"

namespace baton::jinja {

using Kind = Expression::Kind;

absl::StatusOr<Value> Evaluator::Evaluate(const Expression& node) {
  const Deeper deeper(&depth_);
  if (depth_ > budget_.limits().depth) {
    return absl::InvalidArgumentError("the chat template calls itself too often");
  }
  BATON_RETURN_IF_ERROR(budget_.Step());
  line_ = node.line;
  return EvaluateNode(node);
}

absl::StatusOr<Value> Evaluator::EvaluateNode(const Expression& node) {
  const auto part = [&](size_t i) { return Evaluate(*node.parts[i]); };
  switch (node.kind) {
    case Kind::kLiteral:
      return node.literal;
    case Kind::kName:
      return Variable(node.name);
    case Kind::kList: {
      BATON_ASSIGN_OR_RETURN(List items, EvaluateAll(node.parts));
      return Value::MakeList(std::move(items));
    }
    case Kind::kTuple: {
      BATON_ASSIGN_OR_RETURN(List items, EvaluateAll(node.parts));
      return Value::MakeTuple(std::move(items));
    }
    case Kind::kDict:
      return EvaluateDict(node);
    case Kind::kAttribute: {
      BATON_ASSIGN_OR_RETURN(const Value object, part(0));
      return Attribute(object, node.name);
    }
    case Kind::kSubscript: {
      BATON_ASSIGN_OR_RETURN(const Value object, part(0));
      BATON_ASSIGN_OR_RETURN(const Value key, part(1));
      return Item(object, key);
    }
    case Kind::kSlice:
      return EvaluateSlice(node);
    case Kind::kCall:
      return EvaluateCall(node);
    case Kind::kFilter: {
      BATON_ASSIGN_OR_RETURN(const Value input, part(0));
      return EvaluateFilter(node, input);
    }
    case Kind::kTest:
      return EvaluateTest(node);
    case Kind::kNegative: {
      BATON_ASSIGN_OR_RETURN(const Value value, part(0));
      return Negate(value);
    }
    case Kind::kPositive: {
      BATON_ASSIGN_OR_RETURN(const Value value, part(0));
      if (!value.IsNumber()) return BadOperands("unary +", value, value);
      return value.Is(Value::Kind::kBool) ? Value::Int(value.int_value()) : value;
    }
    case Kind::kNot: {
      BATON_ASSIGN_OR_RETURN(const Value value, part(0));
      return Value::Bool(!IsTrue(value));
    }
    case Kind::kArithmetic: {
      BATON_ASSIGN_OR_RETURN(const Value left, part(0));
      BATON_ASSIGN_OR_RETURN(const Value right, part(1));
      return Arithmetic(node.name, left, right, budget_);
    }
    case Kind::kConcat:
      return EvaluateConcat(node);
    case Kind::kCompare:
      return EvaluateCompare(node);
    case Kind::kAnd:
    case Kind::kOr: {
      BATON_ASSIGN_OR_RETURN(Value left, part(0));
      if (IsTrue(left) == (node.kind == Kind::kOr)) return left;
      return part(1);
    }
    case Kind::kConditional:
      return EvaluateConditional(node);
  }
  return Value();
}

absl::StatusOr<Value> Evaluator::EvaluateConditional(const Expression& node) {
  BATON_ASSIGN_OR_RETURN(const Value condition, Evaluate(*node.parts[1]));
  if (IsTrue(condition)) return Evaluate(*node.parts[0]);
  if (node.parts[2] != nullptr) return Evaluate(*node.parts[2]);
  return Value::Undefined("the inline if-expression evaluated to false and has no else");
}

absl::StatusOr<List> Evaluator::EvaluateAll(const std::vector<ExpressionRef>& nodes) {
  List values;
  values.reserve(nodes.size());
  for (const ExpressionRef& node : nodes) {
    BATON_ASSIGN_OR_RETURN(Value value, Evaluate(*node));
    values.push_back(std::move(value));
  }
  BATON_RETURN_IF_ERROR(budget_.Work(values.size() * sizeof(Value)));
  return values;
}

absl::StatusOr<Value> Evaluator::EvaluateDict(const Expression& node) {
  BATON_ASSIGN_OR_RETURN(List parts, EvaluateAll(node.parts));
  BATON_RETURN_IF_ERROR(budget_.Work(parts.size() * 2 * sizeof(Value)));
  Dict dict;
  for (size_t i = 0; i < parts.size(); i += 2) {
    BATON_RETURN_IF_ERROR(dict.Set(std::move(parts[i]), std::move(parts[i + 1])));
  }
  return Value::MakeDict(std::move(dict));
}

absl::StatusOr<Value> Evaluator::EvaluateSlice(const Expression& node) {
  BATON_ASSIGN_OR_RETURN(const Value object, Evaluate(*node.parts[0]));
  std::optional<int64_t> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (node.parts[i + 1] == nullptr) continue;
    BATON_ASSIGN_OR_RETURN(const Value bound, Evaluate(*node.parts[i + 1]));
    if (bound.IsInteger()) {
      bounds[i] = bound.int_value();
    } else if (!bound.Is(Value::Kind::kNone)) {
      return absl::InvalidArgumentError(
          Concat("a slice needs integers, got '", TypeName(bound), "'"));
    }
  }
  return Slice(object, bounds[0], bounds[1], bounds[2], budget_);
}

absl::StatusOr<Arguments> Evaluator::EvaluateArguments(const CallArguments& arguments) {
  Arguments values;
  BATON_ASSIGN_OR_RETURN(values.positional, EvaluateAll(arguments.positional));
  for (const auto& [name, node] : arguments.named) {
    BATON_ASSIGN_OR_RETURN(Value value, Evaluate(*node));
    values.named.emplace_back(name, std::move(value));
  }
  if (arguments.list != nullptr) {
    BATON_ASSIGN_OR_RETURN(const Value list, Evaluate(*arguments.list));
    BATON_ASSIGN_OR_RETURN(const auto items, Iterate(list, budget_));
    values.positional.insert(values.positional.end(), items->begin(), items->end());
  }
  if (arguments.dict != nullptr) {
    BATON_ASSIGN_OR_RETURN(const Value dict, Evaluate(*arguments.dict));
    if (!dict.Is(Value::Kind::kDict)) return absl::InvalidArgumentError("** needs a dict");
    for (const Dict::Entry& entry : dict.dict().entries()) {
      if (!entry.key.IsString()) return absl::InvalidArgumentError("** needs strings as keys");
      values.named.emplace_back(entry.key.str(), entry.value);
    }
  }
  BATON_RETURN_IF_ERROR(
      budget_.Work((values.positional.size() + values.named.size()) * sizeof(Value)));
  return values;
}

absl::StatusOr<Value> Evaluator::EvaluateCall(const Expression& node) {
  const Expression& callee = *node.parts[0];
  if (callee.kind != Kind::kAttribute) {
    BATON_ASSIGN_OR_RETURN(const Value function, Evaluate(callee));
    BATON_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node.arguments));
    line_ = node.line;
    return Call(function, arguments);
  }
  // A method, without making a value of it first.
  BATON_ASSIGN_OR_RETURN(const Value object, Evaluate(*callee.parts[0]));
  if (MethodOf(object, callee.name) == MethodKind::kAllowed) {
    BATON_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node.arguments));
    line_ = node.line;
    return CallMethod(*this, object, callee.name, arguments);
  }
  BATON_ASSIGN_OR_RETURN(const Value function, Attribute(object, callee.name));
  BATON_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node.arguments));
  line_ = node.line;
  return Call(function, arguments);
}

absl::StatusOr<Value> Evaluator::Call(const Value& callee, const Arguments& arguments) {
  if (callee.IsUndefined()) return absl::InvalidArgumentError(callee.why_undefined());
  if (!callee.Is(Value::Kind::kCallable)) {
    return absl::InvalidArgumentError(Concat("'", TypeName(callee), "' object is not callable"));
  }
  return callee.callable().call(*this, arguments);
}

absl::StatusOr<Value> Evaluator::EvaluateFilter(const Expression& node, const Value& input) {
  BATON_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node.arguments));
  line_ = node.line;
  return ApplyFilter(node.name, input, arguments);
}

absl::StatusOr<Value> Evaluator::EvaluateFilters(const Expression& node, const Value& input) {
  if (node.parts[0] == nullptr) return EvaluateFilter(node, input);
  BATON_ASSIGN_OR_RETURN(const Value first, EvaluateFilters(*node.parts[0], input));
  return EvaluateFilter(node, first);
}

absl::StatusOr<Value> Evaluator::EvaluateTest(const Expression& node) {
  BATON_ASSIGN_OR_RETURN(const Value input, Evaluate(*node.parts[0]));
  BATON_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node.arguments));
  line_ = node.line;
  BATON_ASSIGN_OR_RETURN(const bool passes, ApplyTest(node.name, input, arguments));
  return Value::Bool(passes);
}

absl::StatusOr<Value> Evaluator::EvaluateCompare(const Expression& node) {
  BATON_ASSIGN_OR_RETURN(Value left, Evaluate(*node.parts[0]));
  for (size_t i = 0; i < node.operators.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(Value right, Evaluate(*node.parts[i + 1]));
    BATON_ASSIGN_OR_RETURN(const bool holds, Compare(node.operators[i], left, right, budget_));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

absl::StatusOr<Value> Evaluator::EvaluateConcat(const Expression& node) {
  BATON_ASSIGN_OR_RETURN(const List parts, EvaluateAll(node.parts));
  Text text;
  for (const Value& part : parts) BATON_RETURN_IF_ERROR(AppendStr(part, budget_, &text));
  return MakeString(std::move(text), budget_);
}

absl::StatusOr<Value> Evaluator::ApplyFilter(const std::string& name, const Value& input,
                                             const Arguments& arguments) {
  const Filter filter = FindFilter(name);
  if (filter == nullptr) {
    return absl::InvalidArgumentError(Concat("there is no filter named '", name, "'"));
  }
  BATON_RETURN_IF_ERROR(budget_.Step());
  return filter(*this, input, arguments);
}

absl::StatusOr<bool> Evaluator::ApplyTest(const std::string& name, const Value& input,
                                          const Arguments& arguments) {
  const Test test = FindTest(name);
  if (test == nullptr) {
    return absl::InvalidArgumentError(Concat("there is no test named '", name, "'"));
  }
  BATON_RETURN_IF_ERROR(budget_.Step());
  return test(*this, input, arguments);
}

Value Evaluator::Variable(const std::string& name) const {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    for (const auto& [known, value] : scope->variables) {
      if (known == name) return value;
    }
  }
  if (const Value* value = variables_.Find(name)) return *value;
  return FindFunction(name);
}

Namespace* Evaluator::NewNamespace() {
  return namespaces_.emplace_back(std::make_unique<Namespace>()).get();
}

absl::Status Evaluator::Raise(std::string_view message) {
  raised_ = true;
  return absl::InvalidArgumentError(ToAbsl(message));
}

}  // namespace baton::jinja
