#include "common/tokenizer/chat/jinja/evaluator.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/jinja/builtins.h"
#include "common/tokenizer/chat/jinja/lexer.h"
#include "common/tokenizer/chat/jinja/operations.h"
#include "common/tokenizer/chat/jinja/scopes.h"

namespace baton::jinja {

using Kind = Statement::Kind;

absl::StatusOr<Text> Evaluator::Run(const std::vector<Statement>& body) {
  Text out;
  const absl::Status status = Execute(body, &out).status();
  if (status.ok()) return out;
  if (raised_) return status;
  return ErrorAt(line_, {status.message().data(), status.message().size()});
}

absl::StatusOr<Evaluator::Flow> Evaluator::Execute(const std::vector<Statement>& body, Text* out) {
  for (const Statement& statement : body) {
    BATON_ASSIGN_OR_RETURN(const Flow flow, ExecuteOne(statement, out));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecuteOne(const Statement& statement, Text* out) {
  const Deeper deeper(&depth_);
  line_ = statement.line;
  if (depth_ > budget_.limits().depth) {
    return absl::InvalidArgumentError("the chat template calls itself too often");
  }
  BATON_RETURN_IF_ERROR(budget_.Step());
  switch (statement.kind) {
    case Kind::kText:
      BATON_RETURN_IF_ERROR(budget_.Work(statement.text.size()));
      out->Append(statement.text);
      BATON_RETURN_IF_ERROR(CheckOutput(*out));
      return Flow::kNext;
    case Kind::kOutput: {
      BATON_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.value));
      BATON_RETURN_IF_ERROR(Output(value, out));
      return Flow::kNext;
    }
    case Kind::kIf: {
      BATON_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.value));
      return Execute(IsTrue(value) ? statement.body : statement.otherwise, out);
    }
    case Kind::kFor:
      return ExecuteFor(statement, out);
    case Kind::kSet: {
      BATON_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.value));
      BATON_RETURN_IF_ERROR(Assign(*statement.target, value));
      return Flow::kNext;
    }
    case Kind::kSetBlock:
      return ExecuteSetBlock(statement);
    case Kind::kMacro:
      BATON_RETURN_IF_ERROR(budget_.Work(sizeof(Scope)));
      SetVariable(statement.name, MakeMacro(statement));
      return Flow::kNext;
    case Kind::kCallBlock:
      return ExecuteCallBlock(statement, out);
    case Kind::kFilterBlock:
      return ExecuteFilterBlock(statement, out);
    case Kind::kWith:
      return ExecuteWith(statement, out);
    case Kind::kScope: {
      const InScope inner(this);
      return Execute(statement.body, out);
    }
    case Kind::kBreak:
      return Flow::kBreak;
    case Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

absl::Status Evaluator::CheckOutput(const Text& out) const {
  if (out.size() <= budget_.limits().output_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError("the chat template writes too many bytes");
}

absl::Status Evaluator::Output(const Value& value, Text* out) {
  BATON_RETURN_IF_ERROR(AppendStr(value, budget_, out));
  return CheckOutput(*out);
}

absl::StatusOr<std::shared_ptr<const List>> Evaluator::LoopItems(const Statement& statement) {
  BATON_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.value));
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<const List> items, Iterate(value, budget_));
  if (statement.condition == nullptr) return items;
  List kept;
  for (const Value& item : *items) {
    const InScope inner(this);
    BATON_RETURN_IF_ERROR(Assign(*statement.target, item));
    BATON_ASSIGN_OR_RETURN(const Value keep, Evaluate(*statement.condition));
    if (IsTrue(keep)) kept.push_back(item);
  }
  BATON_RETURN_IF_ERROR(budget_.Work(kept.size() * sizeof(Value)));
  return std::make_shared<const List>(std::move(kept));
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecuteFor(const Statement& statement, Text* out) {
  BATON_ASSIGN_OR_RETURN(const std::shared_ptr<const List> items, LoopItems(statement));
  if (items->empty()) {
    const InScope inner(this);
    return Execute(statement.otherwise, out);
  }
  const auto loop = std::make_shared<Loop>();
  loop->items = items;
  for (; loop->index < items->size(); ++loop->index) {
    const InScope inner(this);
    SetVariable("loop", Value::Of(loop));
    BATON_RETURN_IF_ERROR(Assign(*statement.target, (*items)[loop->index]));
    BATON_ASSIGN_OR_RETURN(const Flow flow, Execute(statement.body, out));
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecuteSetBlock(const Statement& statement) {
  Text text;
  Flow flow = Flow::kNext;
  {
    const InScope inner(this);
    BATON_ASSIGN_OR_RETURN(flow, Execute(statement.body, &text));
  }
  if (flow != Flow::kNext) return flow;
  BATON_ASSIGN_OR_RETURN(Value value, MakeString(std::move(text), budget_));
  if (statement.value != nullptr) {
    BATON_ASSIGN_OR_RETURN(value, EvaluateFilters(*statement.value, value));
  }
  BATON_RETURN_IF_ERROR(Assign(*statement.target, value));
  return Flow::kNext;
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecuteWith(const Statement& statement, Text* out) {
  List values;
  for (const auto& [target, expression] : statement.assignments) {
    BATON_ASSIGN_OR_RETURN(Value value, Evaluate(*expression));
    values.push_back(std::move(value));
  }
  const InScope inner(this);
  for (size_t i = 0; i < values.size(); ++i) {
    BATON_RETURN_IF_ERROR(Assign(*statement.assignments[i].first, values[i]));
  }
  return Execute(statement.body, out);
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecuteCallBlock(const Statement& statement, Text* out) {
  const Expression& call = *statement.value;
  BATON_ASSIGN_OR_RETURN(const Value callee, Evaluate(*call.parts[0]));
  BATON_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(call.arguments));
  BATON_RETURN_IF_ERROR(budget_.Work(sizeof(Scope)));
  arguments.named.emplace_back("caller", MakeMacro(statement));
  BATON_ASSIGN_OR_RETURN(const Value value, Call(callee, arguments));
  BATON_RETURN_IF_ERROR(Output(value, out));
  return Flow::kNext;
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecuteFilterBlock(const Statement& statement,
                                                              Text* out) {
  Text text;
  {
    const InScope inner(this);
    BATON_RETURN_IF_ERROR(Execute(statement.body, &text).status());
  }
  BATON_ASSIGN_OR_RETURN(const Value input, MakeString(std::move(text), budget_));
  BATON_ASSIGN_OR_RETURN(const Value value, EvaluateFilters(*statement.value, input));
  BATON_RETURN_IF_ERROR(Output(value, out));
  return Flow::kNext;
}

void Evaluator::SetVariable(const std::string& name, Value value) {
  for (auto& [known, current] : scope_->variables) {
    if (known != name) continue;
    current = std::move(value);
    return;
  }
  scope_->variables.emplace_back(name, std::move(value));
}

absl::Status Evaluator::Assign(const Expression& target, const Value& value) {
  if (target.kind == Expression::Kind::kName) {
    SetVariable(target.name, value);
    return absl::OkStatus();
  }
  if (target.kind == Expression::Kind::kAttribute) {
    const Value object = Variable(target.parts[0]->name);
    if (!object.Is(Value::Kind::kNamespace)) {
      return absl::InvalidArgumentError("cannot assign attribute on non-namespace object");
    }
    auto& variables = object.variables().variables;
    for (auto& [known, current] : variables) {
      if (known == target.name) {
        current = value;
        return absl::OkStatus();
      }
    }
    variables.emplace_back(target.name, value);
    return budget_.Work(sizeof(Value) + target.name.size());
  }
  BATON_ASSIGN_OR_RETURN(const auto items, Iterate(value, budget_));
  if (items->size() != target.parts.size()) {
    return absl::InvalidArgumentError(
        Concat("can't unpack ", items->size(), " values into ", target.parts.size(), " names"));
  }
  for (size_t i = 0; i < items->size(); ++i) {
    BATON_RETURN_IF_ERROR(Assign(*target.parts[i], (*items)[i]));
  }
  return absl::OkStatus();
}

Value Evaluator::MakeMacro(const Statement& statement) {
  for (Scope* scope = scope_; scope != nullptr && !scope->kept; scope = scope->parent) {
    scope->kept = true;
  }
  Scope* const scope = scope_;
  return Value::Of(Callable{statement.name,
                            [&statement, scope](Evaluator& evaluator, const Arguments& arguments) {
                              return evaluator.CallMacro(statement, scope, arguments);
                            }});
}

absl::StatusOr<Value> Evaluator::CallMacro(const Statement& macro, Scope* scope,
                                           const Arguments& arguments) {
  const Deeper deeper(&depth_);
  const InScope inner(this, scope);
  BATON_RETURN_IF_ERROR(BindParameters(macro, arguments));
  Text text;
  BATON_RETURN_IF_ERROR(Execute(macro.body, &text).status());
  return MakeString(std::move(text), budget_);
}

absl::Status Evaluator::BindParameters(const Statement& macro, const Arguments& arguments) {
  const auto refuse = [&](std::string_view what) {
    return absl::InvalidArgumentError(Concat("macro '", macro.name, "' ", what));
  };
  std::vector<bool> used(arguments.named.size());
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    Value value = Value::Undefined(Concat("parameter '", parameter.name, "' was not provided"));
    bool given = i < arguments.positional.size();
    if (given) value = arguments.positional[i];
    for (size_t j = 0; j < arguments.named.size(); ++j) {
      if (arguments.named[j].first != parameter.name) continue;
      if (given) return refuse(Concat("got two values for '", parameter.name, "'"));
      used[j] = given = true;
      value = arguments.named[j].second;
    }
    if (!given && parameter.otherwise != nullptr) {
      BATON_ASSIGN_OR_RETURN(value, Evaluate(*parameter.otherwise));
    }
    SetVariable(parameter.name, std::move(value));
  }
  const auto first_rest =
      arguments.positional.begin() +
      static_cast<ptrdiff_t>(std::min(macro.parameters.size(), arguments.positional.size()));
  const List rest(first_rest, arguments.positional.end());
  if (!rest.empty() && !macro.uses_varargs) {
    return refuse(Concat("takes not more than ", macro.parameters.size(), " argument(s)"));
  }
  Value caller = Value::Undefined("No caller defined");
  Dict others;
  for (size_t j = 0; j < arguments.named.size(); ++j) {
    const auto& [name, value] = arguments.named[j];
    if (used[j]) continue;
    if (name == "caller" && macro.uses_caller) {
      caller = value;
    } else if (macro.uses_kwargs) {
      others.Set(name, value);
    } else {
      return refuse(Concat("takes no keyword argument '", name, "'"));
    }
  }
  if (macro.uses_caller) SetVariable("caller", caller);
  if (macro.uses_varargs) {
    BATON_ASSIGN_OR_RETURN(Value varargs, Value::MakeTuple(rest));
    SetVariable("varargs", std::move(varargs));
  }
  if (macro.uses_kwargs) {
    BATON_ASSIGN_OR_RETURN(Value kwargs, Value::MakeDict(std::move(others)));
    SetVariable("kwargs", std::move(kwargs));
  }
  return absl::OkStatus();
}

}  // namespace baton::jinja
