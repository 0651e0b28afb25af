// Calls written as a list of Python's: "[f(a=1, b='x'), g()]".
#include <array>
#include <charconv>
#include <set>
#include <utility>

#include "common/json/parse_json.h"
#include "common/tokenizer/chat/output/tool_call.h"
#include "common/tokenizer/words/utf8.h"

namespace baton::chat {
namespace {

using Json = nlohmann::json;

bool IsNameByte(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// Reads from left to right; what it can't read makes the whole text malformed.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  std::optional<std::vector<ToolCall>> Calls() {
    std::vector<ToolCall> calls;
    if (!Take('[')) return std::nullopt;
    while (!Take(']')) {
      std::optional<ToolCall> call = Call();
      if (!call.has_value()) return std::nullopt;
      calls.push_back(*std::move(call));
      if (!TakeComma(']')) return std::nullopt;
    }
    Skip();
    if (!rest_.empty()) return std::nullopt;
    return calls;
  }

 private:
  void Skip() { rest_.remove_prefix(std::min(rest_.find_first_not_of(kSpaces), rest_.size())); }
  bool Take(char c) {
    Skip();
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  // A comma, which may be left out before `close` and may stand before it.
  bool TakeComma(char close) {
    if (Take(',')) return true;
    return rest_.starts_with(close);
  }
  std::string_view Name(bool dotted) {
    Skip();
    size_t length = 0;
    while (length < rest_.size() && (IsNameByte(rest_[length]) || (dotted && rest_[length] == '.')))
      ++length;
    const std::string_view name = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return name;
  }

  std::optional<ToolCall> Call() {
    const std::string_view name = Name(/*dotted=*/true);
    if (name.empty() || name.size() > kMaxNameBytes || !Take('(')) return std::nullopt;
    std::string arguments;
    std::set<std::string_view> keys;
    while (!Take(')')) {
      const std::string_view key = Name(/*dotted=*/false);
      if (key.empty() || !keys.insert(key).second || !Take('=')) return std::nullopt;
      arguments += (arguments.empty() ? "\"" : ", \"") + std::string(key) + "\": ";
      if (!Value(arguments, 1) || !TakeComma(')')) return std::nullopt;
    }
    return ToolCall{"", std::string(name), "{" + arguments + "}"};
  }

  // Appends a value as JSON.
  bool Value(std::string& json, int depth) {
    Skip();
    if (rest_.empty() || depth > kMaxJsonDepth) return false;
    switch (rest_.front()) {
      case '[':
        return Sequence(']', json, depth);
      case '(':
        return Sequence(')', json, depth);
      case '{':
        return Dict(json, depth);
      case '"':
      case '\'':
        return String(json);
      default:
        return Word(json);
    }
  }
  bool Sequence(char close, std::string& json, int depth) {
    rest_.remove_prefix(1);
    json += '[';
    for (bool first = true; !Take(close); first = false) {
      if (!first) json += ", ";
      if (!Value(json, depth + 1) || !TakeComma(close)) return false;
    }
    json += ']';
    return true;
  }
  bool Dict(std::string& json, int depth) {
    rest_.remove_prefix(1);
    json += '{';
    for (bool first = true; !Take('}'); first = false) {
      if (!first) json += ", ";
      Skip();
      if (!(rest_.starts_with('"') || rest_.starts_with('\'')) || !String(json)) return false;
      if (!Take(':')) return false;
      json += ": ";
      if (!Value(json, depth + 1) || !TakeComma('}')) return false;
    }
    json += '}';
    return true;
  }
  // A number, or one of the constants in Python's and JSON's spelling.
  bool Word(std::string& json) {
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kConstants = {
        {{"True", "true"},
         {"False", "false"},
         {"None", "null"},
         {"true", "true"},
         {"false", "false"},
         {"null", "null"}}};
    const size_t length = std::min(rest_.find_first_of(",)]} \t\r\n:"), rest_.size());
    const std::string_view word = rest_.substr(0, length);
    rest_.remove_prefix(length);
    for (const auto& [python, other] : kConstants) {
      if (word != python) continue;
      json += other;
      return true;
    }
    const Json number = Json::parse(word, nullptr, false);
    if (!number.is_number()) return false;
    json += word;
    return true;
  }
  bool String(std::string& json) {
    const char quote = rest_.front();
    rest_.remove_prefix(1);
    std::string text;
    while (!rest_.starts_with(quote)) {
      if (rest_.empty()) return false;
      const char c = rest_.front();
      rest_.remove_prefix(1);
      if (c != '\\') {
        text += c;
      } else if (!Escape(text)) {
        return false;
      }
    }
    rest_.remove_prefix(1);
    json += Json(text).dump();
    return true;
  }
  // What follows a backslash. As in Python, one that means nothing stands for itself.
  bool Escape(std::string& text) {
    if (rest_.empty()) return false;
    const char c = rest_.front();
    rest_.remove_prefix(1);
    constexpr std::string_view kLetters = "ntrbf\\'\"\n";
    constexpr std::string_view kMeanings = "\n\t\r\b\f\\'\"";
    if (c == '\n') return true;  // The line goes on.
    if (const size_t at = kLetters.find(c); at != std::string_view::npos) {
      text += kMeanings[at];
      return true;
    }
    if (c == 'x') return CodePoint(2, text);
    if (c == 'u') return CodePoint(4, text);
    if (c == 'U') return CodePoint(8, text);
    text += '\\';
    text += c;
    return true;
  }
  bool CodePoint(size_t digits, std::string& text) {
    if (rest_.size() < digits) return false;
    uint32_t value = 0;
    const char* end = rest_.data() + digits;
    const auto [at, error] = std::from_chars(rest_.data(), end, value, 16);
    const bool is_scalar = value < 0xd800 || (value > 0xdfff && value <= 0x10ffff);
    if (error != std::errc() || at != end || !is_scalar) return false;
    rest_.remove_prefix(digits);
    AppendCodePoint(static_cast<char32_t>(value), &text);
    return true;
  }

  std::string_view rest_;
};

}  // namespace

std::optional<std::vector<ToolCall>> ParsePythonCalls(std::string_view body) {
  return Reader(body).Calls();
}

}  // namespace baton::chat
