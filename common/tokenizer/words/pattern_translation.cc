// TranslatePattern: the subset of Oniguruma's syntax that has the same meaning in PCRE2.
#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/words/split_pattern.h"
#include "common/tokenizer/words/unicode.h"
#include "common/tokenizer/words/utf8.h"

namespace baton {
namespace {

// General categories; scripts and derived properties are defined differently by the two engines.
constexpr std::array<std::string_view, 34> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N", "Nd",
    "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm",
    "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};

// Two letters that one character folds to ("ß" is "ss"): Oniguruma matches it, PCRE2 doesn't.
constexpr std::array<std::string_view, 5> kFoldedPairs = {"ss", "ff", "fi", "fl", "st"};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (!AtEnd()) {
      BATON_RETURN_IF_ERROR(ignore_case_depth_ > 0 ? IgnoreCaseItem() : Item());
    }
    return std::move(out_);
  }

 private:
  bool AtEnd() const { return at_ == pattern_.size(); }
  char Peek() const { return pattern_[at_]; }
  bool Sees(std::string_view text) const { return pattern_.substr(at_, text.size()) == text; }
  void Copy(size_t bytes) {
    out_.append(pattern_.substr(at_, bytes));
    at_ += bytes;
  }
  absl::Status Refuse(std::string_view construct) const {
    return absl::UnimplementedError(Concat("regular expression \"", pattern_, "\" uses ", construct,
                                           " at byte ", at_, ", which is not supported"));
  }

  absl::Status Item() {
    switch (Peek()) {
      case '\\':
        return Escape(/*in_class=*/false);
      case '[':
        return Class();
      case '(':
        return Group();
      case '{':
        return Repetition();
      case '$':  // Before any line's end, as in Ruby.
        out_.append("(?=\\n|\\z)");
        ++at_;
        return absl::OkStatus();
      case '.':
      case '^':
        return Refuse(Concat("\"", pattern_.substr(at_, 1), "\""));
      default:
        Copy(1);  // A literal, or one of | ) * + ? which both engines read alike.
        return absl::OkStatus();
    }
  }

  absl::Status Group() {
    for (const std::string_view opening : {"(?:", "(?=", "(?!", "(?<=", "(?<!"}) {
      if (Sees(opening)) {
        Copy(opening.size());
        return absl::OkStatus();
      }
    }
    if (Sees("(?i:")) {
      Copy(4);
      ignore_case_depth_ = 1;
      last_letter_ = '\0';
      return absl::OkStatus();
    }
    if (Sees("(?") || Sees("(*")) return Refuse("a group of this kind");
    Copy(1);
    return absl::OkStatus();
  }

  // Inside (?i:...) only ASCII text and alternatives, where case folding agrees.
  absl::Status IgnoreCaseItem() {
    const char c = Peek();
    if (c == ')' || c == '|' || Sees("(?:")) {
      ignore_case_depth_ += c == '(' ? 1 : c == ')' ? -1 : 0;
      last_letter_ = '\0';
      Copy(c == '(' ? 3 : 1);
      return absl::OkStatus();
    }
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '\'' && c != ' ') {
      return Refuse("other than ASCII letters and alternatives inside (?i:");
    }
    const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
    const std::array<char, 2> pair = {last_letter_, lower};
    if (std::count(kFoldedPairs.begin(), kFoldedPairs.end(),
                   std::string_view(pair.data(), pair.size())) > 0) {
      return Refuse("a pair of letters that one character folds to, inside (?i:");
    }
    last_letter_ = lower;
    Copy(1);
    return absl::OkStatus();
  }

  // {n}, {n,} or {n,m}. A following + or ? is possessive or lazy in one engine only.
  absl::Status Repetition() {
    size_t end = at_ + 1;
    const auto digits = [&] {
      const size_t start = end;
      while (end < pattern_.size() &&
             absl::ascii_isdigit(static_cast<unsigned char>(pattern_[end])))
        ++end;
      return end > start;
    };
    bool known = digits();
    if (known && end < pattern_.size() && pattern_[end] == ',') {
      ++end;
      digits();
    }
    known = known && end < pattern_.size() && pattern_[end] == '}';
    if (!known) return Refuse("\"{\" that is not a repetition");
    Copy(end + 1 - at_);
    if (!AtEnd() && (Peek() == '+' || Peek() == '?')) return Refuse("a modified repetition");
    return absl::OkStatus();
  }

  absl::Status Class() {
    Copy(Sees("[^") ? 2 : 1);
    if (Sees("]")) return Refuse("an empty class");
    while (!AtEnd() && Peek() != ']') {
      BATON_RETURN_IF_ERROR(Peek() == '[' ? InnerClass() : Member());
    }
    if (AtEnd()) return Refuse("a class without end");
    Copy(1);
    return absl::OkStatus();
  }

  // Its members are the outer class's, too: it is written without brackets.
  absl::Status InnerClass() {
    const bool plain =
        !Sees("[^") && !Sees("[:") && !Sees("[]") && !Sees("[-") && out_.back() != '-';
    if (!plain) return Refuse("such a class inside a class");
    ++at_;
    while (!AtEnd() && Peek() != ']') {
      if (Peek() == '[') return Refuse("a class inside a class inside a class");
      BATON_RETURN_IF_ERROR(Member());
    }
    if (out_.back() == '-' || Sees("]-")) return Refuse("such a class inside a class");
    if (AtEnd()) return Refuse("a class without end");
    ++at_;
    return absl::OkStatus();
  }

  absl::Status Member() {
    if (Sees("&&")) return Refuse("an intersection of classes");
    if (Peek() == '\\') return Escape(/*in_class=*/true);
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status Escape(bool in_class) {
    if (at_ + 1 == pattern_.size()) return Refuse("a lone backslash");
    const char c = pattern_[at_ + 1];
    if (c == 's') {
      out_.append(in_class ? Concat(kWhiteSpaceClass) : Concat("[", kWhiteSpaceClass, "]"));
      at_ += 2;
      return absl::OkStatus();
    }
    if (c == 'S' && !in_class) {
      out_.append(Concat("[^", kWhiteSpaceClass, "]"));
      at_ += 2;
      return absl::OkStatus();
    }
    if (c == 'p' || c == 'P') return Property();
    const bool same = absl::ascii_ispunct(static_cast<unsigned char>(c)) || c == ' ' || c == 'r' ||
                      c == 'n' || c == 't' || c == 'd';
    if (!same) return Refuse(Concat("\"\\", std::string_view(&c, 1), "\""));
    Copy(2);
    return absl::OkStatus();
  }

  absl::Status Property() {
    const size_t open = at_ + 2;
    const size_t close = pattern_.find('}', at_);
    if (open >= pattern_.size() || pattern_[open] != '{' || close == std::string_view::npos) {
      return Refuse("a property without braces");
    }
    const std::string_view name = pattern_.substr(open + 1, close - open - 1);
    if (std::find(kCategories.begin(), kCategories.end(), name) == kCategories.end()) {
      return Refuse(Concat("property \"", name, "\""));
    }
    Copy(close + 1 - at_);
    return absl::OkStatus();
  }

  const std::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
  int ignore_case_depth_ = 0;  // Open groups from the outermost (?i: inwards.
  char last_letter_ = '\0';
};

}  // namespace

absl::StatusOr<std::string> TranslatePattern(std::string_view pattern) {
  if (FirstInvalidUtf8(pattern).has_value()) {
    return absl::InvalidArgumentError("regular expression is not UTF-8");
  }
  return Translator(pattern).Run();
}

}  // namespace baton
