// Filters on lists and dicts.
#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/jinja/arguments.h"
#include "common/tokenizer/chat/jinja/builtins.h"
#include "common/tokenizer/chat/jinja/evaluator.h"
#include "common/tokenizer/chat/jinja/operations.h"

namespace baton::jinja {
namespace {

using Kind = Value::Kind;

// An element with what it is sorted by.
struct Keyed {
  Value key;
  Value item;
};

absl::Status SortByKey(std::vector<Keyed>& keyed, bool reverse, Budget& budget) {
  absl::Status wrong;
  // Python reverses a sort without changing the order of equal elements.
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& a, const Keyed& b) {
    if (!wrong.ok()) return false;
    wrong = budget.Step();
    const absl::StatusOr<bool> less =
        reverse ? Compare("<", b.key, a.key, budget) : Compare("<", a.key, b.key, budget);
    if (!less.ok()) wrong = less.status();
    return less.ok() && *less;
  });
  return wrong;
}

absl::StatusOr<std::vector<Keyed>> KeyedItems(Evaluator& evaluator, const Value& input,
                                              const Value& attribute, bool case_sensitive) {
  BATON_ASSIGN_OR_RETURN(const auto items, Iterate(input, evaluator.budget()));
  BATON_RETURN_IF_ERROR(evaluator.budget().Work(items->size() * sizeof(Keyed)));
  std::vector<Keyed> keyed;
  for (const Value& item : *items) {
    BATON_ASSIGN_OR_RETURN(Value key, SortKey(evaluator, item, attribute, case_sensitive));
    keyed.push_back({std::move(key), item});
  }
  return keyed;
}

absl::StatusOr<Value> ItemsOf(const std::vector<Keyed>& keyed, Budget& budget) {
  List items;
  for (const Keyed& entry : keyed) items.push_back(entry.item);
  return MakeList(std::move(items), budget);
}

absl::StatusOr<Value> Length(Evaluator& evaluator, const Value& input, const Arguments&) {
  if (input.IsString()) BATON_RETURN_IF_ERROR(evaluator.budget().Work(input.text().size()));
  const std::optional<int64_t> length = LengthOf(input);
  if (length.has_value()) return Value::Int(*length);
  return absl::InvalidArgumentError(Concat("object of type '", TypeName(input), "' has no len()"));
}

absl::StatusOr<Value> ListFilter(Evaluator& evaluator, const Value& input, const Arguments&) {
  if (input.Is(Kind::kList)) return input;
  BATON_ASSIGN_OR_RETURN(const auto items, Iterate(input, evaluator.budget()));
  return MakeList(*items, evaluator.budget());
}

template <bool kFirst>
absl::StatusOr<Value> End(Evaluator& evaluator, const Value& input, const Arguments&) {
  BATON_ASSIGN_OR_RETURN(const auto items, Iterate(input, evaluator.budget()));
  if (!items->empty()) return kFirst ? items->front() : items->back();
  return Value::Undefined("the sequence was empty");
}

absl::StatusOr<Value> Reverse(Evaluator& evaluator, const Value& input, const Arguments&) {
  if (input.IsString()) return Slice(input, std::nullopt, std::nullopt, -1, evaluator.budget());
  BATON_ASSIGN_OR_RETURN(const auto items, Iterate(input, evaluator.budget()));
  return MakeList(List(items->rbegin(), items->rend()), evaluator.budget());
}

absl::StatusOr<Value> Join(Evaluator& evaluator, const Value& input, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind("join", arguments, {"d", "attribute"}));
  BATON_ASSIGN_OR_RETURN(const Text separator,
                         bound.Has(0) ? Str(bound[0], evaluator.budget()) : Text());
  BATON_ASSIGN_OR_RETURN(const auto items, Iterate(input, evaluator.budget()));
  Text joined;
  for (size_t i = 0; i < items->size(); ++i) {
    BATON_RETURN_IF_ERROR(evaluator.budget().Work(separator.size()));
    if (i > 0) joined.Append(separator);
    BATON_ASSIGN_OR_RETURN(const Value item, AtPath(evaluator, (*items)[i], bound[1]));
    BATON_RETURN_IF_ERROR(AppendStr(item, evaluator.budget(), &joined));
  }
  return MakeString(std::move(joined), evaluator.budget());
}

absl::StatusOr<Value> Items(Evaluator& evaluator, const Value& input, const Arguments&) {
  if (input.IsUndefined()) return Value::MakeList({});
  if (!input.Is(Kind::kDict)) {
    return absl::InvalidArgumentError("items: can only get item pairs from a mapping");
  }
  return CallMethod(evaluator, input, "items", {});
}

absl::StatusOr<Value> DictSort(Evaluator& evaluator, const Value& input,
                               const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(
      const BoundArguments bound,
      BoundArguments::Bind("dictsort", arguments, {"case_sensitive", "by", "reverse"}));
  BATON_ASSIGN_OR_RETURN(const Text by, bound.String(1, "key"));
  if (by.bytes() != "key" && by.bytes() != "value") {
    return absl::InvalidArgumentError("dictsort(): by must be 'key' or 'value'");
  }
  if (!input.Is(Kind::kDict)) return BadOperands("dictsort", input, input);
  BATON_ASSIGN_OR_RETURN(const Value pairs, CallMethod(evaluator, input, "items", {}));
  BATON_ASSIGN_OR_RETURN(
      std::vector<Keyed> keyed,
      KeyedItems(evaluator, pairs, Value::Int(by.bytes() == "key" ? 0 : 1), bound.True(0, false)));
  BATON_RETURN_IF_ERROR(SortByKey(keyed, bound.True(2, false), evaluator.budget()));
  return ItemsOf(keyed, evaluator.budget());
}

absl::StatusOr<Value> Sort(Evaluator& evaluator, const Value& input, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(
      const BoundArguments bound,
      BoundArguments::Bind("sort", arguments, {"reverse", "case_sensitive", "attribute"}));
  BATON_ASSIGN_OR_RETURN(std::vector<Keyed> keyed,
                         KeyedItems(evaluator, input, bound[2], bound.True(1, false)));
  // Jinja compares lists of keys, of which equal ones need no order: what all lack is undefined.
  for (Keyed& entry : keyed) {
    BATON_ASSIGN_OR_RETURN(entry.key, MakeList({entry.key}, evaluator.budget()));
  }
  BATON_RETURN_IF_ERROR(SortByKey(keyed, bound.True(0, false), evaluator.budget()));
  return ItemsOf(keyed, evaluator.budget());
}

template <bool kMin>
absl::StatusOr<Value> Extreme(Evaluator& evaluator, const Value& input,
                              const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(
      const BoundArguments bound,
      BoundArguments::Bind(kMin ? "min" : "max", arguments, {"case_sensitive", "attribute"}));
  BATON_ASSIGN_OR_RETURN(const std::vector<Keyed> keyed,
                         KeyedItems(evaluator, input, bound[1], bound.True(0, false)));
  if (keyed.empty()) return Value::Undefined("the sequence was empty");
  const Keyed* best = &keyed[0];
  for (const Keyed& entry : keyed) {
    BATON_ASSIGN_OR_RETURN(const bool better,
                           Compare(kMin ? "<" : ">", entry.key, best->key, evaluator.budget()));
    if (better) best = &entry;
  }
  return best->item;
}

absl::StatusOr<Value> Unique(Evaluator& evaluator, const Value& input, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(
      const BoundArguments bound,
      BoundArguments::Bind("unique", arguments, {"case_sensitive", "attribute"}));
  BATON_ASSIGN_OR_RETURN(const std::vector<Keyed> keyed,
                         KeyedItems(evaluator, input, bound[1], bound.True(0, false)));
  Dict seen;
  List items;
  for (const Keyed& entry : keyed) {
    const size_t before = seen.size();
    BATON_RETURN_IF_ERROR(seen.Set(entry.key, Value::None()));
    if (seen.size() > before) items.push_back(entry.item);
  }
  return MakeList(std::move(items), evaluator.budget());
}

absl::StatusOr<Value> GroupBy(Evaluator& evaluator, const Value& input,
                              const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(
      const BoundArguments bound,
      BoundArguments::Bind("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1));
  BATON_ASSIGN_OR_RETURN(std::vector<Keyed> keyed,
                         KeyedItems(evaluator, input, bound[0], bound.True(2, false)));
  for (Keyed& entry : keyed) {
    if (entry.key.IsUndefined() && bound.Has(1)) entry.key = bound[1];
  }
  BATON_RETURN_IF_ERROR(SortByKey(keyed, /*reverse=*/false, evaluator.budget()));
  List groups;
  for (size_t begin = 0; begin < keyed.size();) {
    size_t end = begin;
    List members;
    while (end < keyed.size() && Equals(keyed[begin].key, keyed[end].key)) {
      members.push_back(keyed[end++].item);
    }
    BATON_ASSIGN_OR_RETURN(Value name, AtPath(evaluator, keyed[begin].item, bound[0]));
    if (name.IsUndefined()) name = keyed[begin].key;
    BATON_ASSIGN_OR_RETURN(Value list, MakeList(std::move(members), evaluator.budget()));
    BATON_ASSIGN_OR_RETURN(Value group, Value::MakeTuple({std::move(name), std::move(list)}));
    groups.push_back(std::move(group));
    begin = end;
  }
  return MakeList(std::move(groups), evaluator.budget());
}

absl::StatusOr<Value> Batch(Evaluator& evaluator, const Value& input, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind("batch", arguments, {"linecount", "fill_with"}, 1));
  BATON_ASSIGN_OR_RETURN(const int64_t count, bound.Integer(0, 1));
  if (count < 1) return absl::InvalidArgumentError("batch(): linecount must be at least 1");
  BATON_ASSIGN_OR_RETURN(const auto items, Iterate(input, evaluator.budget()));
  const bool fills = bound.Has(1) && !bound[1].Is(Kind::kNone);
  List rows;
  for (size_t at = 0; at < items->size();) {
    List row;
    while (at < items->size() && static_cast<int64_t>(row.size()) < count) {
      row.push_back((*items)[at++]);
    }
    if (fills) {
      BATON_RETURN_IF_ERROR(evaluator.budget().Work(
          static_cast<size_t>(std::min<int64_t>(count, INT32_MAX)) * sizeof(Value)));
      row.resize(static_cast<size_t>(count), bound[1]);
    }
    BATON_ASSIGN_OR_RETURN(Value list, MakeList(std::move(row), evaluator.budget()));
    rows.push_back(std::move(list));
  }
  return MakeList(std::move(rows), evaluator.budget());
}

absl::StatusOr<Value> Sum(Evaluator& evaluator, const Value& input, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind("sum", arguments, {"attribute", "start"}));
  BATON_ASSIGN_OR_RETURN(const auto items, Iterate(input, evaluator.budget()));
  Value sum = bound.Has(1) ? bound[1] : Value::Int(0);
  if (sum.IsString()) return absl::InvalidArgumentError("sum() can't sum strings; use join");
  for (const Value& item : *items) {
    BATON_RETURN_IF_ERROR(evaluator.budget().Step());
    BATON_ASSIGN_OR_RETURN(const Value number, AtPath(evaluator, item, bound[0]));
    BATON_ASSIGN_OR_RETURN(sum, Arithmetic("+", sum, number, evaluator.budget()));
  }
  return sum;
}

absl::StatusOr<Value> Default(Evaluator&, const Value& input, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind("default", arguments, {"default_value", "boolean"}));
  const bool replaced = input.IsUndefined() || (bound.True(1, false) && !IsTrue(input));
  if (!replaced) return input;
  return arguments.positional.empty() && !bound.Has(0) ? Value::String("") : bound[0];
}

}  // namespace

Filter FindSequenceFilter(std::string_view name) {
  constexpr Named<Filter> kKnown[] = {
      {"length", Length},     {"count", Length},    {"list", ListFilter},   {"first", End<true>},
      {"last", End<false>},   {"reverse", Reverse}, {"join", Join},         {"items", Items},
      {"dictsort", DictSort}, {"sort", Sort},       {"min", Extreme<true>}, {"max", Extreme<false>},
      {"unique", Unique},     {"groupby", GroupBy}, {"batch", Batch},       {"sum", Sum},
      {"default", Default},   {"d", Default},
  };
  return FindNamed(kKnown, name);
}

}  // namespace baton::jinja
