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

using Kind = Value::Kind;

bool IsOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

absl::StatusOr<Value> CallDictMethod(Evaluator& evaluator, const Value& object,
                                     std::string_view name, const Arguments& arguments) {
  if (name == "get") {
    BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                           BoundArguments::Bind("get", arguments, {"key", "default"}, 1));
    const Value* found = object.dict().Find(bound[0]);
    if (found != nullptr) return *found;
    return arguments.positional.size() + arguments.named.size() > 1 ? bound[1] : Value::None();
  }
  BATON_RETURN_IF_ERROR(BoundArguments::Bind(name, arguments, {}).status());
  if (name == "copy") return object;
  List items;
  for (const Dict::Entry& entry : object.dict().entries()) {
    if (name == "items") {
      BATON_ASSIGN_OR_RETURN(Value pair, Value::MakeTuple({entry.key, entry.value}));
      items.push_back(std::move(pair));
    } else {
      items.push_back(name == "keys" ? entry.key : entry.value);
    }
  }
  return MakeList(std::move(items), evaluator.budget());
}

absl::StatusOr<Value> CallListMethod(Evaluator& evaluator, const Value& object,
                                     std::string_view name, const Arguments& arguments) {
  if (name == "copy") return object;
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind(name, arguments, {"value"}, 1));
  int64_t count = 0;
  for (size_t i = 0; i < object.items().size(); ++i) {
    BATON_ASSIGN_OR_RETURN(const bool equal,
                           Compare("==", object.items()[i], bound[0], evaluator.budget()));
    BATON_RETURN_IF_ERROR(evaluator.budget().Step());
    if (!equal) continue;
    if (name == "index") return Value::Int(static_cast<int64_t>(i));
    ++count;
  }
  if (name == "index") return absl::InvalidArgumentError("the value is not in the list");
  return Value::Int(count);
}

absl::StatusOr<Value> CallLoopMethod(const Loop& loop, const Arguments& arguments) {
  if (arguments.positional.empty()) {
    return absl::InvalidArgumentError("cycle() needs something to choose from");
  }
  return arguments.positional[loop.index % arguments.positional.size()];
}

std::optional<Value> LoopAttribute(const Loop& loop, std::string_view name) {
  const auto index = static_cast<int64_t>(loop.index);
  const auto length = static_cast<int64_t>(loop.items->size());
  if (name == "index") return Value::Int(index + 1);
  if (name == "index0") return Value::Int(index);
  if (name == "revindex") return Value::Int(length - index);
  if (name == "revindex0") return Value::Int(length - index - 1);
  if (name == "first") return Value::Bool(index == 0);
  if (name == "last") return Value::Bool(index + 1 == length);
  if (name == "length") return Value::Int(length);
  if (name == "depth") return Value::Int(1);
  if (name == "depth0") return Value::Int(0);
  if (name == "previtem") {
    if (index == 0) return Value::Undefined("there is no previous item");
    return (*loop.items)[loop.index - 1];
  }
  if (name == "nextitem") {
    if (index + 1 == length) return Value::Undefined("there is no next item");
    return (*loop.items)[loop.index + 1];
  }
  return std::nullopt;
}

std::string ObjectName(const Value& object) {
  return object.Is(Kind::kNone) ? "None" : Concat("'", TypeName(object), " object'");
}

Value NoSuchAttribute(const Value& object, std::string_view name) {
  return Value::Undefined(Concat(ObjectName(object), " has no attribute '", name, "'"));
}

// object[key] where there is such an element.
std::optional<Value> Element(const Value& object, const Value& key, Budget& budget) {
  if (object.Is(Kind::kDict)) {
    const Value* found = object.dict().Find(key);
    return found == nullptr ? std::nullopt : std::optional<Value>(*found);
  }
  if (!key.IsInteger() || !(object.IsSequence() || object.IsString())) return std::nullopt;
  const int64_t length = *LengthOf(object);
  int64_t index = key.int_value();
  if (index < 0) index += length;
  if (index < 0 || index >= length) return std::nullopt;
  if (object.IsSequence()) return object.items()[static_cast<size_t>(index)];
  if (!budget.Work(object.text().size()).ok()) return std::nullopt;
  const size_t begin = ByteOffset(object.str(), index);
  const size_t end = begin + ByteOffset(std::string_view(object.str()).substr(begin), 1);
  return Value::String(object.text().Slice(begin, end));
}

// An attribute that is no element; none if there is none.
std::optional<Value> OwnAttribute(const Value& object, const std::string& name) {
  if (object.Is(Kind::kNamespace)) {
    for (const auto& [known, value] : object.variables().variables) {
      if (known == name) return value;
    }
    return std::nullopt;
  }
  switch (MethodOf(object, name)) {
    case MethodKind::kNone:
      break;
    case MethodKind::kForbidden:
      return Value::Undefined(Concat("access to '", name, "' of a ", TypeName(object),
                                     " is unsafe: templates can't change what they are given"));
    case MethodKind::kAllowed:
      return Value::Of(Callable{name, [=](Evaluator& evaluator, const Arguments& arguments) {
                                  return CallMethod(evaluator, object, name, arguments);
                                }});
  }
  if (object.Is(Kind::kLoop)) return LoopAttribute(object.loop(), name);
  if (object.Is(Kind::kCallable) && name == "name") return Value::String(object.callable().name);
  return std::nullopt;
}

}  // namespace

MethodKind MethodOf(const Value& object, std::string_view name) {
  switch (object.kind()) {
    case Kind::kString:
      return IsStringMethod(name) ? MethodKind::kAllowed : MethodKind::kNone;
    case Kind::kDict:
      if (IsOneOf(name, {"get", "items", "keys", "values", "copy"})) return MethodKind::kAllowed;
      return IsOneOf(name, {"clear", "pop", "popitem", "setdefault", "update"})
                 ? MethodKind::kForbidden
                 : MethodKind::kNone;
    case Kind::kList:
      if (IsOneOf(name,
                  {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"})) {
        return MethodKind::kForbidden;
      }
      return IsOneOf(name, {"count", "index", "copy"}) ? MethodKind::kAllowed : MethodKind::kNone;
    case Kind::kTuple:
      return IsOneOf(name, {"count", "index"}) ? MethodKind::kAllowed : MethodKind::kNone;
    case Kind::kLoop:
      return name == "cycle" ? MethodKind::kAllowed : MethodKind::kNone;
    default:
      return MethodKind::kNone;
  }
}

absl::StatusOr<Value> CallMethod(Evaluator& evaluator, const Value& object, std::string_view name,
                                 const Arguments& arguments) {
  if (object.IsString()) return CallStringMethod(evaluator, object.text(), name, arguments);
  if (object.Is(Kind::kDict)) return CallDictMethod(evaluator, object, name, arguments);
  if (object.Is(Kind::kLoop)) return CallLoopMethod(object.loop(), arguments);
  return CallListMethod(evaluator, object, name, arguments);
}

absl::StatusOr<Value> Evaluator::Attribute(const Value& object, const std::string& name) {
  if (object.IsUndefined()) return absl::InvalidArgumentError(object.why_undefined());
  if (std::optional<Value> own = OwnAttribute(object, name)) return *own;
  if (std::optional<Value> element = Element(object, Value::String(name), budget_)) return *element;
  return NoSuchAttribute(object, name);
}

absl::StatusOr<Value> Evaluator::Item(const Value& object, const Value& key) {
  if (object.IsUndefined()) return absl::InvalidArgumentError(object.why_undefined());
  if (std::optional<Value> element = Element(object, key, budget_)) return *element;
  if (key.IsString()) {
    if (std::optional<Value> own = OwnAttribute(object, key.str())) return *own;
    return NoSuchAttribute(object, key.str());
  }
  Text shown;
  BATON_RETURN_IF_ERROR(AppendRepr(key, budget_, &shown));
  return Value::Undefined(Concat(ObjectName(object), " has no element ", shown.bytes()));
}

absl::StatusOr<Value> Slice(const Value& object, std::optional<int64_t> start,
                            std::optional<int64_t> stop, std::optional<int64_t> step_given,
                            Budget& budget) {
  if (object.IsUndefined()) return absl::InvalidArgumentError(object.why_undefined());
  if (object.Is(Kind::kDict)) return NoSuchAttribute(object, "slice");
  if (!object.IsString() && !object.IsSequence()) {
    return absl::InvalidArgumentError(
        Concat("'", TypeName(object), "' object is not subscriptable"));
  }
  const int64_t step = step_given.value_or(1);
  if (step == 0) return absl::InvalidArgumentError("a slice must not have a step of 0");
  const int64_t length = *LengthOf(object);
  const int64_t lowest = step > 0 ? 0 : -1;
  const int64_t highest = step > 0 ? length : length - 1;
  const auto place = [&](std::optional<int64_t> bound, int64_t otherwise) {
    if (!bound.has_value()) return otherwise;
    const int64_t index = *bound < 0 ? *bound + length : *bound;
    return std::clamp(index, lowest, highest);
  };
  const int64_t begin = place(start, step > 0 ? 0 : length - 1);
  const int64_t end = place(stop, step > 0 ? length : -1);
  if (object.IsString() && step == 1) {
    BATON_RETURN_IF_ERROR(budget.Work(object.text().size()));
    const size_t first = ByteOffset(object.str(), begin);
    const size_t bytes =
        ByteOffset(std::string_view(object.str()).substr(first), std::max(end - begin, int64_t{0}));
    return MakeString(object.text().Slice(first, first + bytes), budget);
  }
  std::vector<size_t> offsets;
  if (object.IsString()) {
    BATON_RETURN_IF_ERROR(budget.Work(object.text().size() * sizeof(size_t)));
    offsets = CharacterOffsets(object.str());
  }
  Text text;
  List items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    const auto at = static_cast<size_t>(i);
    if (object.IsString()) {
      text.AppendSlice(object.text(), offsets[at], offsets[at + 1]);
    } else {
      items.push_back(object.items()[at]);
    }
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  if (object.IsString()) return MakeString(std::move(text), budget);
  BATON_RETURN_IF_ERROR(budget.Work(items.size() * sizeof(Value)));
  return Value::MakeSequence(object.kind(), std::move(items));
}

}  // namespace baton::jinja
