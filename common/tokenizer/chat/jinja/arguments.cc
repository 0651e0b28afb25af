#include "common/tokenizer/chat/jinja/arguments.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/jinja/operations.h"

namespace baton::jinja {

absl::StatusOr<BoundArguments> BoundArguments::Bind(std::string_view function,
                                                    const Arguments& arguments,
                                                    std::initializer_list<std::string_view> names,
                                                    size_t required) {
  BoundArguments bound;
  bound.function_ = function;
  bound.names_.assign(names.begin(), names.end());
  bound.values_.resize(names.size());
  const auto refuse = [&](std::string_view what) {
    return absl::InvalidArgumentError(Concat(function, "() ", what));
  };
  if (arguments.positional.size() > names.size()) {
    return refuse(
        Concat("takes at most ", names.size(), " argument(s), got ", arguments.positional.size()));
  }
  size_t given = arguments.positional.size();
  std::copy(arguments.positional.begin(), arguments.positional.end(), bound.values_.begin());
  for (const auto& [name, value] : arguments.named) {
    const auto place = std::find(names.begin(), names.end(), name);
    if (place == names.end()) return refuse(Concat("has no argument '", name, "'"));
    const auto i = static_cast<size_t>(place - names.begin());
    if (i < arguments.positional.size()) return refuse(Concat("got '", name, "' twice"));
    bound.values_[i] = value;
    if (i < required) ++given;
  }
  if (given < required) return refuse(Concat("needs ", required, " argument(s)"));
  return bound;
}

absl::Status BoundArguments::Wrong(size_t i, std::string_view expected) const {
  return absl::InvalidArgumentError(
      Concat(function_, "(): '", names_[i], "' must be ", expected, ", is ", TypeName(values_[i])));
}

absl::StatusOr<std::optional<int64_t>> BoundArguments::Integer(size_t i) const {
  if (!Has(i) || values_[i].Is(Value::Kind::kNone)) return std::optional<int64_t>();
  if (!values_[i].IsInteger()) return Wrong(i, "an integer");
  return std::optional<int64_t>(values_[i].int_value());
}

absl::StatusOr<int64_t> BoundArguments::Integer(size_t i, int64_t otherwise) const {
  BATON_ASSIGN_OR_RETURN(const std::optional<int64_t> value, Integer(i));
  return value.value_or(otherwise);
}

absl::StatusOr<Text> BoundArguments::String(size_t i, std::string_view otherwise) const {
  if (!Has(i)) return Text(std::string(otherwise));
  if (!values_[i].IsString()) return Wrong(i, "a string");
  return values_[i].text();
}

bool BoundArguments::True(size_t i, bool otherwise) const {
  return Has(i) ? IsTrue(values_[i]) : otherwise;
}

}  // namespace baton::jinja
