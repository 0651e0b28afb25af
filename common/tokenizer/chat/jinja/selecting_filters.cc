// Filters that ask other filters, tests and attributes about each element.
#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/jinja/arguments.h"
#include "common/tokenizer/chat/jinja/builtins.h"
#include "common/tokenizer/chat/jinja/evaluator.h"
#include "common/tokenizer/chat/jinja/operations.h"
#include "common/tokenizer/chat/jinja/strings.h"

namespace baton::jinja {
namespace {

// One step of a path, which is an index if it is all digits.
absl::StatusOr<Value> Step(Evaluator& evaluator, const Value& item, const std::string& part) {
  if (!part.empty() && part.size() < 10 &&
      part.find_first_not_of("0123456789") == std::string::npos) {
    return evaluator.Item(item, Value::Int(std::stoll(part)));
  }
  return evaluator.Item(item, Value::String(part));
}

absl::StatusOr<Value> Follow(Evaluator& evaluator, Value item, const std::string& path) {
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    BATON_ASSIGN_OR_RETURN(item, Step(evaluator, item, path.substr(begin, end - begin)));
    begin = end + 1;
  }
  return item;
}

Value Folded(const Value& key, bool case_sensitive) {
  if (case_sensitive || !key.IsString()) return key;
  return Value::String(Text(Lower(key.str()), key.text().origin()));
}

absl::StatusOr<Value> Map(Evaluator& evaluator, const Value& input, const Arguments& arguments) {
  if (!IsTrue(input)) return Value::MakeList({});  // None and false, too.
  BATON_ASSIGN_OR_RETURN(const auto items, Iterate(input, evaluator.budget()));
  List mapped;
  if (arguments.positional.empty()) {
    BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                           BoundArguments::Bind("map", arguments, {"attribute", "default"}));
    if (!bound.Has(0)) return absl::InvalidArgumentError("map() needs a filter or an attribute");
    for (const Value& item : *items) {
      BATON_RETURN_IF_ERROR(evaluator.budget().Step());
      BATON_ASSIGN_OR_RETURN(Value value, AtPath(evaluator, item, bound[0]));
      if (value.IsUndefined() && bound.Has(1)) value = bound[1];
      mapped.push_back(std::move(value));
    }
    return MakeList(std::move(mapped), evaluator.budget());
  }
  if (!arguments.positional[0].IsString()) {
    return absl::InvalidArgumentError("map() needs the name of a filter");
  }
  const Arguments rest{List(arguments.positional.begin() + 1, arguments.positional.end()),
                       arguments.named};
  for (const Value& item : *items) {
    BATON_ASSIGN_OR_RETURN(Value value,
                           evaluator.ApplyFilter(arguments.positional[0].str(), item, rest));
    mapped.push_back(std::move(value));
  }
  return MakeList(std::move(mapped), evaluator.budget());
}

// select, reject (by the element itself), selectattr and rejectattr (by an attribute).
template <bool kKeep, bool kByAttribute>
absl::StatusOr<Value> Select(Evaluator& evaluator, const Value& input, const Arguments& arguments) {
  if (!IsTrue(input)) return Value::MakeList({});  // None and false, too.
  BATON_ASSIGN_OR_RETURN(const auto items, Iterate(input, evaluator.budget()));
  List rest = arguments.positional;
  Value path;
  if (kByAttribute) {
    if (rest.empty()) return absl::InvalidArgumentError("selectattr() needs an attribute");
    path = rest[0];
    rest.erase(rest.begin());
  }
  std::string test;
  if (!rest.empty()) {
    if (!rest[0].IsString()) return absl::InvalidArgumentError("select() needs a test's name");
    test = rest[0].str();
    rest.erase(rest.begin());
  }
  const Arguments test_arguments{rest, arguments.named};
  List kept;
  for (const Value& item : *items) {
    BATON_RETURN_IF_ERROR(evaluator.budget().Step());
    BATON_ASSIGN_OR_RETURN(const Value value, AtPath(evaluator, item, path));
    bool passes = IsTrue(value);
    if (!test.empty()) {
      BATON_ASSIGN_OR_RETURN(passes, evaluator.ApplyTest(test, value, test_arguments));
    }
    if (passes == kKeep) kept.push_back(item);
  }
  return MakeList(std::move(kept), evaluator.budget());
}

absl::StatusOr<Value> Attr(Evaluator& evaluator, const Value& input, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind("attr", arguments, {"name"}, 1));
  BATON_ASSIGN_OR_RETURN(const Text name, bound.String(0));
  // Only what is an attribute by itself: the keys of a dict are none.
  if (input.Is(Value::Kind::kDict)) {
    static const Value* empty = new Value(*Value::MakeDict(Dict()));
    BATON_ASSIGN_OR_RETURN(const Value own, evaluator.Attribute(*empty, name.bytes()));
    if (own.IsUndefined()) return own;
  }
  return evaluator.Attribute(input, name.bytes());
}

}  // namespace

absl::StatusOr<Value> AtPath(Evaluator& evaluator, const Value& item, const Value& path) {
  if (path.IsUndefined() || path.Is(Value::Kind::kNone)) return item;
  if (path.IsString()) return Follow(evaluator, item, path.str());
  return evaluator.Item(item, path);
}

absl::StatusOr<Value> SortKey(Evaluator& evaluator, const Value& item, const Value& path,
                              bool case_sensitive) {
  if (!path.IsString() || path.str().find(',') == std::string::npos) {
    BATON_ASSIGN_OR_RETURN(const Value key, AtPath(evaluator, item, path));
    BATON_RETURN_IF_ERROR(evaluator.budget().Work(key.IsString() ? 8 * key.text().size() : 0));
    return Folded(key, case_sensitive);
  }
  List keys;
  for (size_t begin = 0; begin <= path.str().size();) {
    const size_t end = std::min(path.str().find(',', begin), path.str().size());
    BATON_ASSIGN_OR_RETURN(const Value key,
                           Follow(evaluator, item, path.str().substr(begin, end - begin)));
    keys.push_back(Folded(key, case_sensitive));
    begin = end + 1;
  }
  return MakeList(std::move(keys), evaluator.budget());
}

Filter FindSelectingFilter(std::string_view name) {
  constexpr Named<Filter> kKnown[] = {
      {"map", Map},
      {"attr", Attr},
      {"select", Select<true, false>},
      {"reject", Select<false, false>},
      {"selectattr", Select<true, true>},
      {"rejectattr", Select<false, true>},
  };
  return FindNamed(kKnown, name);
}

}  // namespace baton::jinja
