// Values of templates: what Python's str, int, float, bool, None, list, tuple and dict are to
// Jinja, and its Undefined, namespaces and callables. Values are immutable and shared, except for
// namespaces; lists and dicts can't change, as in transformers' ImmutableSandboxedEnvironment.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_VALUE_H_
#define COMMON_TOKENIZER_CHAT_JINJA_VALUE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/chat/jinja/text.h"

namespace baton::jinja {

class Dict;
class Evaluator;
class Value;

using List = std::vector<Value>;

struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;
};

// A function, a macro, or a method with its object.
struct Callable {
  std::string name;
  std::function<absl::StatusOr<Value>(Evaluator&, const Arguments&)> call;
};

// Where a for loop stands; what its variable `loop` shows.
struct Loop {
  std::shared_ptr<const List> items;
  size_t index = 0;
};

// The variables of a `namespace()`; owned by the evaluator, since namespaces may form circles.
struct Namespace {
  std::vector<std::pair<std::string, Value>> variables;
};

class Value {
 public:
  // The order is that of the variant below.
  enum class Kind {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kList,
    kTuple,
    kDict,
    kNamespace,
    kCallable,
    kLoop,
  };
  // How deep lists and dicts may stand in each other.
  static constexpr int kMaxDepth = 128;

  Value() = default;  // Undefined, for no stated reason.
  // `why` is what an operation on it is refused with: "'x' is undefined".
  static Value Undefined(std::string why);
  static Value None() { return Value(Storage(std::in_place_index<1>)); }
  static Value Bool(bool value) { return Value(Storage(value)); }
  static Value Int(int64_t value) { return Value(Storage(value)); }
  static Value Float(double value) { return Value(Storage(value)); }
  static Value String(Text text);
  static Value String(std::string_view text, Origin origin = Origin::kTemplate);
  // InvalidArgument past kMaxDepth.
  static absl::StatusOr<Value> MakeSequence(Kind kind, List items);  // kList or kTuple.
  static absl::StatusOr<Value> MakeList(List items);
  static absl::StatusOr<Value> MakeTuple(List items);
  static absl::StatusOr<Value> MakeDict(Dict dict);
  static Value Of(Namespace* variables) { return Value(Storage(variables)); }
  static Value Of(Callable callable);
  static Value Of(std::shared_ptr<const Loop> loop) { return Value(Storage(std::move(loop))); }

  Kind kind() const { return static_cast<Kind>(storage_.index()); }
  bool Is(Kind kind) const { return this->kind() == kind; }
  bool IsUndefined() const { return Is(Kind::kUndefined); }
  bool IsString() const { return Is(Kind::kString); }
  bool IsSequence() const { return Is(Kind::kList) || Is(Kind::kTuple); }
  // As in Python, where a bool is an int.
  bool IsInteger() const { return Is(Kind::kInt) || Is(Kind::kBool); }
  bool IsNumber() const { return IsInteger() || Is(Kind::kFloat); }

  // Each requires the kind.
  std::string why_undefined() const;
  bool bool_value() const { return std::get<bool>(storage_); }
  int64_t int_value() const;   // A bool counts as 0 or 1.
  double float_value() const;  // Any number.
  const Text& text() const { return *std::get<TextRef>(storage_); }
  const std::string& str() const { return text().bytes(); }
  const List& items() const { return *items_ref(); }
  const std::shared_ptr<const List>& items_ref() const;  // A list's or a tuple's.
  const Dict& dict() const { return *std::get<DictRef>(storage_); }
  Namespace& variables() const { return *std::get<Namespace*>(storage_); }
  const Callable& callable() const { return *std::get<CallableRef>(storage_); }
  const Loop& loop() const { return *std::get<LoopRef>(storage_); }

  int depth() const;  // 0 for what holds no values.
  // Whether two values are one object, which is what `sameas` asks.
  bool SameAs(const Value& other) const { return storage_ == other.storage_; }

 private:
  struct Sequence {
    std::shared_ptr<const List> items;
    int depth;
    bool operator==(const Sequence& other) const { return items == other.items; }
  };
  struct Tuple : Sequence {};
  using WhyRef = std::shared_ptr<const std::string>;
  using TextRef = std::shared_ptr<const Text>;
  using DictRef = std::shared_ptr<const Dict>;
  using CallableRef = std::shared_ptr<const Callable>;
  using LoopRef = std::shared_ptr<const Loop>;
  using Storage = std::variant<WhyRef, std::monostate, bool, int64_t, double, TextRef, Sequence,
                               Tuple, DictRef, Namespace*, CallableRef, LoopRef>;
  explicit Value(Storage storage) : storage_(std::move(storage)) {}

  Storage storage_;
};

inline absl::StatusOr<Value> Value::MakeList(List items) {
  return MakeSequence(Kind::kList, std::move(items));
}
inline absl::StatusOr<Value> Value::MakeTuple(List items) {
  return MakeSequence(Kind::kTuple, std::move(items));
}

// In order of insertion, as Python's.
class Dict {
 public:
  struct Entry {
    Value key;
    Value value;
  };

  // InvalidArgument for a key that can't be one (a list, a dict). A key that is there keeps its
  // place.
  absl::Status Set(Value key, Value value);
  void Set(std::string_view key, Value value);
  const Value* Find(const Value& key) const;  // nullptr if absent, and for what can't be a key.
  const Value* Find(std::string_view key) const;

  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  int depth() const { return depth_; }

 private:
  void Put(std::string hash_key, Value key, Value value);

  std::vector<Entry> entries_;
  absl::flat_hash_map<std::string, size_t> index_;  // By a spelling that equal keys share.
  int depth_ = 0;                                   // The deepest entry's.
};

// What the type is called in messages: "str", "dict", "NoneType".
std::string_view TypeName(const Value& value);

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_VALUE_H_
