#include "common/tokenizer/chat/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "common/base/strings.h"

namespace baton::jinja {
namespace {

absl::Status TooDeep() {
  return absl::InvalidArgumentError(
      Concat("lists and dicts are nested more than ", Value::kMaxDepth, " deep"));
}

// Keys that are equal have one spelling: 1, 1.0 and true are one key to Python. None for a value
// that can't be a key.
std::optional<std::string> HashKey(const Value& key) {
  switch (key.kind()) {
    case Value::Kind::kString:
      return Concat("s", key.str());
    case Value::Kind::kBool:
    case Value::Kind::kInt:
      return Concat("i", key.int_value());
    case Value::Kind::kFloat: {
      const double number = key.float_value();
      if (number == std::floor(number) && std::abs(number) < 9e18) {
        return Concat("i", static_cast<int64_t>(number));
      }
      return Concat("f", std::string(reinterpret_cast<const char*>(&number), sizeof(number)));
    }
    case Value::Kind::kNone:
      return "n";
    case Value::Kind::kUndefined:
      return "u";
    case Value::Kind::kTuple: {
      std::string spelling = "t";
      for (const Value& item : key.items()) {
        const std::optional<std::string> part = HashKey(item);
        if (!part.has_value()) return std::nullopt;
        spelling += Concat(part->size(), ":", *part);
      }
      return spelling;
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

Value Value::Undefined(std::string why) {
  return Value(Storage(std::make_shared<const std::string>(std::move(why))));
}

Value Value::String(Text text) {
  return Value(Storage(std::make_shared<const Text>(std::move(text))));
}

Value Value::String(std::string_view text, Origin origin) {
  return String(Text(std::string(text), origin));
}

absl::StatusOr<Value> Value::MakeSequence(Kind kind, List items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  if (depth >= kMaxDepth) return TooDeep();
  Sequence sequence{std::make_shared<const List>(std::move(items)), depth + 1};
  if (kind == Kind::kTuple) return Value(Storage(Tuple{std::move(sequence)}));
  return Value(Storage(std::move(sequence)));
}

absl::StatusOr<Value> Value::MakeDict(Dict dict) {
  if (dict.depth() >= kMaxDepth) return TooDeep();
  return Value(Storage(std::make_shared<const Dict>(std::move(dict))));
}

Value Value::Of(Callable callable) {
  return Value(Storage(std::make_shared<const Callable>(std::move(callable))));
}

std::string Value::why_undefined() const {
  const WhyRef& why = std::get<WhyRef>(storage_);
  return why == nullptr ? "the value is undefined" : *why;
}

int64_t Value::int_value() const {
  if (Is(Kind::kBool)) return bool_value() ? 1 : 0;
  return std::get<int64_t>(storage_);
}

double Value::float_value() const {
  return Is(Kind::kFloat) ? std::get<double>(storage_) : static_cast<double>(int_value());
}

const std::shared_ptr<const List>& Value::items_ref() const {
  return Is(Kind::kList) ? std::get<Sequence>(storage_).items : std::get<Tuple>(storage_).items;
}

int Value::depth() const {
  switch (kind()) {
    case Kind::kList:
      return std::get<Sequence>(storage_).depth;
    case Kind::kTuple:
      return std::get<Tuple>(storage_).depth;
    case Kind::kDict:
      return dict().depth() + 1;
    default:
      return 0;
  }
}

absl::Status Dict::Set(Value key, Value value) {
  std::optional<std::string> hash_key = HashKey(key);
  if (!hash_key.has_value()) {
    return absl::InvalidArgumentError(Concat("unhashable type: '", TypeName(key), "'"));
  }
  Put(*std::move(hash_key), std::move(key), std::move(value));
  return absl::OkStatus();
}

void Dict::Set(std::string_view key, Value value) {
  Put(Concat("s", key), Value::String(key), std::move(value));
}

void Dict::Put(std::string hash_key, Value key, Value value) {
  depth_ = std::max({depth_, key.depth(), value.depth()});
  const auto [place, inserted] = index_.insert(std::pair(std::move(hash_key), entries_.size()));
  if (inserted) {
    entries_.push_back({std::move(key), std::move(value)});
  } else {
    entries_[place->second].value = std::move(value);
  }
}

const Value* Dict::Find(const Value& key) const {
  const std::optional<std::string> hash_key = HashKey(key);
  if (!hash_key.has_value()) return nullptr;
  const auto found = index_.find(*hash_key);
  return found == index_.end() ? nullptr : &entries_[found->second].value;
}

const Value* Dict::Find(std::string_view key) const {
  const auto found = index_.find(Concat("s", key));
  return found == index_.end() ? nullptr : &entries_[found->second].value;
}

std::string_view TypeName(const Value& value) {
  constexpr std::string_view kNames[] = {"Undefined", "NoneType",  "bool",     "int",
                                         "float",     "str",       "list",     "tuple",
                                         "dict",      "Namespace", "function", "LoopContext"};
  return kNames[static_cast<size_t>(value.kind())];
}

}  // namespace baton::jinja
