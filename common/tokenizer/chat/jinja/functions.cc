#include <ctime>
#include <memory>
#include <utility>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/jinja/arguments.h"
#include "common/tokenizer/chat/jinja/builtins.h"
#include "common/tokenizer/chat/jinja/evaluator.h"
#include "common/tokenizer/chat/jinja/operations.h"

namespace baton::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // As Jinja's sandbox has it.
constexpr size_t kMaxTimeFormatBytes = 256;

absl::StatusOr<Value> Range(Evaluator& evaluator, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind("range", arguments, {"start", "stop", "step"}, 1));
  for (size_t i = 0; i < 3; ++i) {
    if (bound[i].Is(Value::Kind::kNone)) {
      return absl::InvalidArgumentError("range() needs integers, got NoneType");
    }
  }
  BATON_ASSIGN_OR_RETURN(int64_t start, bound.Integer(0, 0));
  BATON_ASSIGN_OR_RETURN(const std::optional<int64_t> stop_given, bound.Integer(1));
  BATON_ASSIGN_OR_RETURN(const int64_t step, bound.Integer(2, 1));
  if (!bound.Has(0)) return absl::InvalidArgumentError(bound[0].why_undefined());
  const int64_t stop = stop_given.value_or(start);
  if (!stop_given.has_value()) start = 0;
  if (step == 0) return absl::InvalidArgumentError("range() must not have a step of 0");
  List items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      return absl::InvalidArgumentError(
          Concat("range() has more than ", kMaxRange, " elements, which is not allowed"));
    }
    items.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return MakeList(std::move(items), evaluator.budget());
}

absl::StatusOr<Dict> DictOf(const Arguments& arguments, Budget& budget) {
  Dict dict;
  if (arguments.positional.size() > 1) {
    return absl::InvalidArgumentError("dict() takes at most 1 argument without a name");
  }
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.Is(Value::Kind::kDict)) {
      dict = from.dict();
    } else {
      BATON_ASSIGN_OR_RETURN(const auto pairs, Iterate(from, budget));
      for (const Value& pair : *pairs) {
        BATON_ASSIGN_OR_RETURN(const auto parts, Iterate(pair, budget));
        if (parts->size() != 2) return absl::InvalidArgumentError("dict() needs pairs");
        BATON_RETURN_IF_ERROR(dict.Set((*parts)[0], (*parts)[1]));
      }
    }
  }
  for (const auto& [name, value] : arguments.named) dict.Set(name, value);
  BATON_RETURN_IF_ERROR(budget.Work(dict.size() * 4 * sizeof(Value)));
  return dict;
}

absl::StatusOr<Value> MakeDict(Evaluator& evaluator, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(Dict dict, DictOf(arguments, evaluator.budget()));
  return Value::MakeDict(std::move(dict));
}

absl::StatusOr<Value> MakeNamespace(Evaluator& evaluator, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const Dict dict, DictOf(arguments, evaluator.budget()));
  BATON_RETURN_IF_ERROR(evaluator.budget().Work(sizeof(Namespace)));
  Namespace* variables = evaluator.NewNamespace();
  for (const Dict::Entry& entry : dict.entries()) {
    if (entry.key.IsString()) variables->variables.emplace_back(entry.key.str(), entry.value);
  }
  return Value::Of(variables);
}

// The separator, except for the first time.
absl::StatusOr<Value> Joiner(Evaluator&, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind("joiner", arguments, {"sep"}));
  const Value separator = bound.Has(0) ? bound[0] : Value::String(", ");
  const auto used = std::make_shared<bool>(false);
  return Value::Of(Callable{"joiner", [=](Evaluator&, const Arguments&) -> absl::StatusOr<Value> {
                              return std::exchange(*used, true) ? separator : Value::String("");
                            }});
}

absl::StatusOr<Value> RaiseException(Evaluator& evaluator, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind("raise_exception", arguments, {"message"}, 1));
  BATON_ASSIGN_OR_RETURN(const Text message, Str(bound[0], evaluator.budget()));
  return evaluator.Raise(message.bytes());
}

absl::StatusOr<Value> StrftimeNow(Evaluator& evaluator, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind("strftime_now", arguments, {"format"}, 1));
  BATON_ASSIGN_OR_RETURN(const Text format, bound.String(0));
  if (format.size() > kMaxTimeFormatBytes) {
    return absl::InvalidArgumentError("strftime_now() got a format that is too long");
  }
  char written[16 * kMaxTimeFormatBytes];
  const size_t bytes =
      std::strftime(written, sizeof(written), format.bytes().c_str(), &evaluator.now());
  return Value::String(Text(std::string(written, bytes), format.origin()));
}

}  // namespace

Value FindFunction(const std::string& name) {
  using Function = absl::StatusOr<Value> (*)(Evaluator&, const Arguments&);
  constexpr Named<Function> kKnown[] = {{"range", Range},
                                        {"dict", MakeDict},
                                        {"namespace", MakeNamespace},
                                        {"joiner", Joiner},
                                        {"raise_exception", RaiseException},
                                        {"strftime_now", StrftimeNow}};
  if (const Function call = FindNamed(kKnown, name)) return Value::Of(Callable{name, call});
  return Value::Undefined(Concat("'", name, "' is undefined"));
}

}  // namespace baton::jinja
