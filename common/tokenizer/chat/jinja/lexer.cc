#include "common/tokenizer/chat/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/jinja/strings.h"
#include "common/tokenizer/words/unicode.h"
#include "common/tokenizer/words/utf8.h"

namespace baton::jinja {
namespace {

constexpr size_t kMaxTokens = 1 << 18;

constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Line ends become \n, and one at the end goes.
std::string NormalizeLines(std::string_view source) {
  std::string lines;
  lines.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      lines.push_back(source[i]);
      continue;
    }
    lines.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (lines.ends_with('\n')) lines.pop_back();
  return lines;
}

constexpr std::string_view kSimpleEscapes = "\\'\"abfnrtv";
constexpr std::string_view kSimpleEscapeValues = "\\'\"\a\b\f\n\r\t\v";

absl::Status AppendScalar(uint32_t code_point, std::string* text) {
  if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point <= 0xDFFF)) {
    return absl::InvalidArgumentError("an escape in a string stands for no character");
  }
  AppendCodePoint(code_point, text);
  return absl::OkStatus();
}

// \xNN, \uNNNN and \UNNNNNNNN; `*at` stands on the digits.
absl::Status AppendHex(std::string_view body, size_t digits, size_t* at, std::string* text) {
  const std::string_view hex = body.substr(*at, digits);
  uint32_t code_point = 0;
  const auto read = std::from_chars(hex.data(), hex.data() + hex.size(), code_point, 16);
  if (hex.size() != digits || read.ptr != hex.data() + hex.size()) {
    return absl::InvalidArgumentError(
        Concat("an escape in a string needs ", digits, " hexadecimal digits"));
  }
  *at += digits;
  return AppendScalar(code_point, text);
}

// A string literal, whose escapes are Python's; `body` is what stands between the quotes.
// InvalidArgument for an escape that stands for no character; one that Python doesn't know stays as
// it is, with its backslash.
absl::StatusOr<std::string> ResolveEscapes(std::string_view body) {
  std::string text;
  text.reserve(body.size());
  size_t at = 0;
  while (at < body.size()) {
    const char c = body[at++];
    if (c != '\\' || at == body.size()) {
      text.push_back(c);
      continue;
    }
    const char escape = body[at++];
    if (const size_t simple = kSimpleEscapes.find(escape); simple != std::string_view::npos) {
      text.push_back(kSimpleEscapeValues[simple]);
    } else if (escape == '\n') {
      // The literal goes on in the next line.
    } else if (escape == 'x' || escape == 'u' || escape == 'U') {
      const size_t digits = escape == 'x' ? 2 : escape == 'u' ? 4 : 8;
      BATON_RETURN_IF_ERROR(AppendHex(body, digits, &at, &text));
    } else if (escape >= '0' && escape <= '7') {
      uint32_t code_point = static_cast<uint32_t>(escape - '0');
      for (int i = 0; i < 2 && at < body.size() && body[at] >= '0' && body[at] <= '7'; ++i) {
        code_point = code_point * 8 + static_cast<uint32_t>(body[at++] - '0');
      }
      BATON_RETURN_IF_ERROR(AppendScalar(code_point, &text));
    } else if (escape == 'N') {
      return absl::InvalidArgumentError("characters by name (\\N) are not supported");
    } else {
      text.push_back('\\');
      text.push_back(escape);
    }
  }
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) BATON_RETURN_IF_ERROR(NextTag());
    Push(Token::Kind::kEnd);
    return std::move(tokens_);
  }

 private:
  std::string_view Rest() const { return std::string_view(source_).substr(at_); }
  bool Sees(std::string_view text) const { return Rest().starts_with(text); }
  size_t SpaceEnd(size_t at) const { return at + StripBegin(std::string_view(source_).substr(at)); }

  Token& Push(Token::Kind kind, std::string_view text = "") {
    Token& token = tokens_.emplace_back();
    token.kind = kind;
    token.line = Line();
    token.text = text;
    return token;
  }

  int Line() {
    line_ += static_cast<int>(std::count(source_.begin() + counted_, source_.begin() + at_, '\n'));
    counted_ = at_;
    return line_;
  }
  absl::Status Error(std::string_view what) { return ErrorAt(Line(), what); }

  // Moves to `at`; a tag after it stands at the beginning of a line if what was passed ended one.
  void MoveTo(size_t at) {
    at_ = at;
    at_line_start_ = at > 0 && source_[at - 1] == '\n';
  }

  // The text up to the next tag, and the tag.
  absl::Status NextTag() {
    size_t tag = source_.find('{', at_);
    while (tag != std::string::npos &&
           (tag + 1 == source_.size() ||
            (source_[tag + 1] != '{' && source_[tag + 1] != '%' && source_[tag + 1] != '#'))) {
      tag = source_.find('{', tag + 1);
    }
    if (tag == std::string::npos) {
      Push(Token::Kind::kText, Rest());
      at_ = source_.size();
      return absl::OkStatus();
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const bool signed_tag = sign == '-' || sign == '+';
    PushText(tag, kind, sign);
    MoveTo(tag + (signed_tag ? 3 : 2));
    if (kind == '#') return Comment();
    if (kind == '{') return Tag(Token::Kind::kVariableBegin, Token::Kind::kVariableEnd);
    if (const std::optional<size_t> body = RawBody()) return Raw(*body);
    return Tag(Token::Kind::kBlockBegin, Token::Kind::kBlockEnd);
  }

  void PushText(size_t end, char kind, char sign) {
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    if (sign == '-') {
      text = text.substr(0, StripEnd(text));
    } else if (sign != '+' && kind != '{') {
      const size_t line = text.rfind('\n') + 1;  // 0 if there is none.
      if ((line > 0 || at_line_start_) && SpaceEnd(at_ + line) >= end) text = text.substr(0, line);
    }
    if (!text.empty()) Push(Token::Kind::kText, text);
  }

  // After the end of a tag or a comment: `minus` takes all white space along; else a block's end
  // takes the line's end, unless it has a plus.
  void AfterTag(size_t end, char sign, bool trim) {
    if (sign == '-') {
      end = SpaceEnd(end);
    } else if (trim && sign != '+' && end < source_.size() && source_[end] == '\n') {
      ++end;
    }
    MoveTo(end);
  }

  absl::Status Comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) return Error("the comment has no end");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    AfterTag(end + 2, sign, /*trim=*/true);
    return absl::OkStatus();
  }

  // Behind {% where the tag is {% raw %}: where its body begins.
  std::optional<size_t> RawBody() const {
    size_t at = SpaceEnd(at_);
    if (!std::string_view(source_).substr(at).starts_with("raw")) return std::nullopt;
    at = SpaceEnd(at + 3);
    const std::string_view rest = std::string_view(source_).substr(at);
    if (rest.starts_with("-%}")) return SpaceEnd(at + 3);
    if (rest.starts_with("%}")) return at + 2;
    return std::nullopt;
  }

  absl::Status Raw(size_t body) {
    MoveTo(body);
    for (size_t tag = source_.find("{%", body); tag != std::string::npos;
         tag = source_.find("{%", tag + 2)) {
      size_t at = tag + 2;
      const char sign = at < source_.size() ? source_[at] : '\0';
      if (sign == '-' || sign == '+') ++at;
      at = SpaceEnd(at);
      if (!std::string_view(source_).substr(at).starts_with("endraw")) continue;
      at = SpaceEnd(at + 6);
      const std::string_view rest = std::string_view(source_).substr(at);
      const bool signed_end = rest.starts_with("-%}") || rest.starts_with("+%}");
      if (!signed_end && !rest.starts_with("%}")) continue;
      PushText(tag, '%', sign);
      AfterTag(at + (signed_end ? 3 : 2), signed_end ? rest[0] : '\0', /*trim=*/true);
      return absl::OkStatus();
    }
    return Error("the raw block has no end");
  }

  // The inside of a tag.
  absl::Status Tag(Token::Kind begin, Token::Kind end) {
    const bool block = begin == Token::Kind::kBlockBegin;
    const std::string_view closing = block ? "%}" : "}}";
    Push(begin);
    std::string open;  // Brackets that are not closed yet; while there are any, }} is two of them.
    while (true) {
      at_ = SpaceEnd(at_);
      if (at_ >= source_.size()) return Error("the tag has no end");
      const bool signed_end =
          (Sees("-") || (block && Sees("+"))) && Rest().substr(1).starts_with(closing);
      if (open.empty() && (signed_end || Sees(closing))) {
        const char sign = signed_end ? source_[at_] : '\0';
        Push(end);
        AfterTag(at_ + (signed_end ? 3 : 2), sign, /*trim=*/block);
        return absl::OkStatus();
      }
      if (tokens_.size() >= kMaxTokens) return Error("the template is too long");
      BATON_RETURN_IF_ERROR(Inside(&open));
    }
  }

  absl::Status Inside(std::string* open) {
    const char c = source_[at_];
    if (IsDigit(c)) return Number();
    if (c == '\'' || c == '"') return String(c);
    const Utf8Step step = NextUtf8(Rest());
    if (IsWordCharacter(step.code_point)) return Name();
    for (const std::string_view op : kOperators) {
      if (!Sees(op)) continue;
      BATON_RETURN_IF_ERROR(Balance(op[0], open));
      Push(Token::Kind::kOperator, op);
      at_ += op.size();
      return absl::OkStatus();
    }
    return Error(Concat("unexpected character '", Rest().substr(0, step.length), "'"));
  }

  absl::Status Balance(char c, std::string* open) {
    if (c == '(' || c == '[' || c == '{') {
      open->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (open->empty()) return Error(Concat("unexpected '", std::string(1, c), "'"));
      if (open->back() != c) {
        return Error(Concat("unexpected '", std::string(1, c), "', expected '",
                            std::string(1, open->back()), "'"));
      }
      open->pop_back();
    }
    return absl::OkStatus();
  }

  absl::Status Name() {
    size_t end = at_;
    while (end < source_.size()) {
      const Utf8Step step = NextUtf8(std::string_view(source_).substr(end));
      if (!IsWordCharacter(step.code_point)) break;
      end += step.length;
    }
    Push(Token::Kind::kName, std::string_view(source_).substr(at_, end - at_));
    at_ = end;
    return absl::OkStatus();
  }

  absl::Status String(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return Error("the string has no end");
    const absl::StatusOr<std::string> text =
        ResolveEscapes(std::string_view(source_).substr(at_ + 1, end - at_ - 1));
    if (!text.ok()) return Error(text.status().message().data());
    Push(Token::Kind::kString, *text);
    at_ = end + 1;
    return absl::OkStatus();
  }

  absl::Status Number();
  // Digits of `base` from `at`, with an underscore between any two; where they end.
  size_t DigitsEnd(size_t at, int base) const;

  const std::string source_;
  size_t at_ = 0;
  bool at_line_start_ = true;
  int line_ = 1;
  size_t counted_ = 0;  // Lines are counted up to here.
  std::vector<Token> tokens_;
};

size_t Lexer::DigitsEnd(size_t at, int base) const {
  const auto is_digit = [&](size_t i) {
    if (i >= source_.size()) return false;
    const char c = source_[i];
    const int digit = IsDigit(c)               ? c - '0'
                      : (c >= 'a' && c <= 'f') ? c - 'a' + 10
                      : (c >= 'A' && c <= 'F') ? c - 'A' + 10
                                               : 99;
    return digit < base;
  };
  while (is_digit(at) || (at < source_.size() && source_[at] == '_' && is_digit(at + 1))) ++at;
  return at;
}

absl::Status Lexer::Number() {
  const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
  const auto lower = [&](size_t i) { return i < source_.size() ? source_[i] | 0x20 : 0; };
  int base = 10;
  size_t begin = at_;
  if (source_[at_] == '0') {
    base = lower(at_ + 1) == 'x' ? 16 : lower(at_ + 1) == 'o' ? 8 : lower(at_ + 1) == 'b' ? 2 : 10;
    if (base != 10) begin += 2;
  }
  size_t end = DigitsEnd(begin, base);
  bool is_float = false;
  if (base == 10 && !after_dot) {
    size_t fraction = end;
    if (fraction + 1 < source_.size() && source_[fraction] == '.' &&
        IsDigit(source_[fraction + 1])) {
      fraction = DigitsEnd(fraction + 1, 10);
      is_float = true;
    }
    size_t exponent = fraction;
    if (lower(exponent) == 'e') {
      ++exponent;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
        ++exponent;
      }
      if (exponent < source_.size() && IsDigit(source_[exponent])) {
        fraction = DigitsEnd(exponent, 10);
        is_float = true;
      }
    }
    if (is_float) end = fraction;
  }
  std::string digits = source_.substr(begin, end - begin);
  std::erase(digits, '_');
  Token& token = Push(is_float ? Token::Kind::kFloat : Token::Kind::kInteger);
  const char* last = digits.data() + digits.size();
  const std::from_chars_result read =
      is_float ? std::from_chars(digits.data(), last, token.number)
               : std::from_chars(digits.data(), last, token.integer, base);
  if (read.ec != std::errc() || read.ptr != last) {
    return Error(Concat("the number ", digits, " can't be held in 64 bits"));
  }
  at_ = end;
  return absl::OkStatus();
}

}  // namespace

absl::Status ErrorAt(int line, std::string_view what) {
  return absl::InvalidArgumentError(Concat("line ", line, ": ", what));
}

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return absl::InvalidArgumentError(Concat("the template has ", source.size(), " bytes; at most ",
                                             kMaxSourceBytes, " are accepted"));
  }
  if (const std::optional<size_t> offset = FirstInvalidUtf8(source)) {
    return absl::InvalidArgumentError(Concat("the template is not UTF-8 at byte ", *offset));
  }
  return Lexer(NormalizeLines(source)).Run();
}

}  // namespace baton::jinja
