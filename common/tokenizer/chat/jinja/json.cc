#include "common/tokenizer/chat/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/jinja/operations.h"
#include "common/tokenizer/chat/jinja/strings.h"
#include "nlohmann/json.hpp"

namespace baton::jinja {
namespace {

using Kind = Value::Kind;

// nlohmann's own values sort keys or look each key up one by one; this keeps the order.
class ValueBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  ValueBuilder(Origin origin, std::initializer_list<std::string_view> members)
      : origin_(origin), members_(members) {}

  const absl::Status& status() const { return status_; }
  Value Take() { return std::move(result_); }

  bool null() override { return Put(Value::None()); }
  bool boolean(bool value) override { return Put(Value::Bool(value)); }
  bool number_integer(number_integer_t value) override { return Put(Value::Int(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<uint64_t>(INT64_MAX)) return TooLarge();
    return Put(Value::Int(static_cast<int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t& spelled) override {
    if (spelled.find_first_of(".eE") == string_t::npos) return TooLarge();
    return Put(Value::Float(value));
  }
  bool string(string_t& value) override {
    return Put(skips_ ? Value::None() : Value::String(Text(std::move(value), origin_)));
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(/*is_object=*/true); }
  bool start_array(size_t) override { return Open(/*is_object=*/false); }
  bool key(string_t& value) override {
    if (open_.size() == 1 && members_.size() > 0) {
      skips_ = std::find(members_.begin(), members_.end(), value) == members_.end();
    }
    open_.back().key = Value::String(Text(std::move(value), origin_));
    return true;
  }
  bool end_object() override { return Close(Value::MakeDict(std::move(open_.back().dict))); }
  bool end_array() override { return Close(Value::MakeList(std::move(open_.back().items))); }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
    return Fail(Concat("not valid JSON: ", error.what()));
  }

 private:
  struct Container {
    bool is_object = false;
    Dict dict;
    List items;
    Value key;
  };

  bool Fail(const std::string& why) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(why);
    return false;
  }
  bool TooLarge() {
    if (skips_) return Put(Value::None());
    if (status_.ok()) status_ = InvalidField(Path(), "an integer does not fit into 64 bits");
    return false;
  }
  // Where it is: "tools[0].function".
  std::string Path() const {
    std::string path;
    for (const Container& container : open_) {
      if (!container.is_object) {
        path += Concat("[", container.items.size(), "]");
      } else {
        path += Concat(path.empty() ? "" : ".", container.key.str());
      }
    }
    return path.empty() ? "JSON" : path;
  }

  bool Open(bool is_object) {
    if (open_.size() >= static_cast<size_t>(Value::kMaxDepth)) {
      return Fail(Concat("JSON is nested more than ", Value::kMaxDepth, " deep"));
    }
    open_.emplace_back().is_object = is_object;
    return true;
  }

  bool Close(absl::StatusOr<Value> value) {
    if (!value.ok()) return Fail(std::string(value.status().message()));
    open_.pop_back();
    return Put(*std::move(value));
  }

  bool Put(Value value) {
    if (open_.empty()) {
      result_ = std::move(value);
      return true;
    }
    Container& parent = open_.back();
    if (skips_ && open_.size() == 1) return true;
    if (!parent.is_object) {
      parent.items.push_back(std::move(value));
      return true;
    }
    const absl::Status set = parent.dict.Set(std::move(parent.key), std::move(value));
    return set.ok() || Fail(std::string(set.message()));
  }

  const Origin origin_;
  const std::initializer_list<std::string_view> members_;
  bool skips_ = false;  // Within a member that is not taken.
  absl::Status status_;
  std::vector<Container> open_;
  Value result_;
};

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  absl::Status Write(const Value& value) {
    BATON_RETURN_IF_ERROR(budget_.Step());
    switch (value.kind()) {
      case Kind::kNone:
        out_.Append("null");
        return absl::OkStatus();
      case Kind::kBool:
        out_.Append(value.bool_value() ? "true" : "false");
        return absl::OkStatus();
      case Kind::kInt:
        out_.Append(Concat(value.int_value()));
        return absl::OkStatus();
      case Kind::kFloat:
        out_.Append(Number(value.float_value()));
        return absl::OkStatus();
      case Kind::kString:
        return String(value.text());
      case Kind::kList:
      case Kind::kTuple:
        return Items(value.items());
      case Kind::kDict:
        return Entries(value.dict());
      default:
        return absl::InvalidArgumentError(
            Concat("Object of type ", TypeName(value), " is not JSON serializable"));
    }
  }
  Text Take() { return std::move(out_); }

 private:
  static std::string Number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return FloatRepr(value);
  }

  void NewLine() {
    if (!style_.indent.has_value()) return;
    out_.Append("\n");
    for (int i = 0; i < level_; ++i) out_.Append(*style_.indent);
  }

  void Separate(size_t i) {
    if (i > 0) out_.Append(style_.item_separator);
    NewLine();
  }

  absl::Status Items(const List& items) {
    out_.Append("[");
    ++level_;
    for (size_t i = 0; i < items.size(); ++i) {
      Separate(i);
      BATON_RETURN_IF_ERROR(Write(items[i]));
    }
    --level_;
    if (!items.empty()) NewLine();
    out_.Append("]");
    return absl::OkStatus();
  }

  // Keys that are no strings become some; json.dumps refuses tuples.
  absl::StatusOr<Text> Key(const Value& key) {
    if (key.IsString()) return key.text();
    if (key.Is(Kind::kNone)) return Text("null");
    if (key.Is(Kind::kBool)) return Text(key.bool_value() ? "true" : "false");
    if (key.Is(Kind::kFloat)) return Text(Number(key.float_value()));
    if (key.Is(Kind::kInt)) return Text(Concat(key.int_value()));
    return absl::InvalidArgumentError(
        Concat("keys must be str, int, float, bool or None, not ", TypeName(key)));
  }

  absl::Status Entries(const Dict& dict) {
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : dict.entries()) entries.push_back(&entry);
    BATON_RETURN_IF_ERROR(budget_.Work(entries.size() * sizeof(const Dict::Entry*)));
    if (style_.sort_keys) {
      absl::Status wrong;
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
        const absl::StatusOr<int> order = Order("<", a->key, b->key);
        if (!order.ok()) wrong = order.status();
        return order.ok() && *order < 0;
      });
      BATON_RETURN_IF_ERROR(wrong);
    }
    out_.Append("{");
    ++level_;
    for (size_t i = 0; i < entries.size(); ++i) {
      Separate(i);
      BATON_ASSIGN_OR_RETURN(const Text key, Key(entries[i]->key));
      BATON_RETURN_IF_ERROR(String(key));
      out_.Append(style_.key_separator);
      BATON_RETURN_IF_ERROR(Write(entries[i]->value));
    }
    --level_;
    if (!entries.empty()) NewLine();
    out_.Append("}");
    return absl::OkStatus();
  }

  // What stands for a character; empty if it stands for itself.
  std::string Escape(char32_t c) const {
    switch (c) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\b':
        return "\\b";
      case '\f':
        return "\\f";
      default:
        break;
    }
    if (c >= 0x20 && (c < 0x7F || !style_.ensure_ascii)) return "";
    char escape[16];
    if (c < 0x10000) {
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c));
    } else {
      const auto rest = static_cast<unsigned>(c) - 0x10000;
      std::snprintf(escape, sizeof(escape), "\\u%04x\\u%04x", 0xD800 + (rest >> 10),
                    0xDC00 + (rest & 0x3FF));
    }
    return escape;
  }

  absl::Status String(const Text& text) {
    BATON_RETURN_IF_ERROR(budget_.Work(text.size()));
    out_.Append("\"");
    AppendEscaped(
        text, [this](char32_t c) { return Escape(c); }, &out_);
    out_.Append("\"");
    return absl::OkStatus();
  }

  const JsonStyle& style_;
  Budget& budget_;
  int level_ = 0;
  Text out_;
};

}  // namespace

absl::StatusOr<Value> ParseJsonValue(std::string_view text, Origin origin,
                                     std::initializer_list<std::string_view> members) {
  ValueBuilder builder(origin, members);
  if (!nlohmann::json::sax_parse(text, &builder)) {
    return builder.status().ok() ? absl::InvalidArgumentError("not valid JSON") : builder.status();
  }
  return builder.Take();
}

absl::StatusOr<Text> ToJson(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  BATON_RETURN_IF_ERROR(writer.Write(value));
  return writer.Take();
}

}  // namespace baton::jinja
