#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/grammar/notations.h"
#include "common/grammar/utf8_ranges.h"

namespace baton::grammar {
namespace {

using NodeId = Grammar::NodeId;

constexpr int kMaxDepth = 64;

const CodeRanges kDigits = {{'0', '9'}};
const CodeRanges kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodeRanges kSpace = {{'\t', '\r'}, {' ', ' '}};
const CodeRanges kLineEnds = {{'\n', '\n'}, {'\r', '\r'}};

class Parser {
 public:
  Parser(std::string_view pattern, bool search, RegexChars chars, Grammar& grammar)
      : text_(ToCodePoints(pattern)),
        search_(search),
        chars_(std::move(chars)),
        grammar_(grammar) {}

  absl::StatusOr<NodeId> Parse() {
    std::vector<NodeId> ways;
    do {
      BATON_ASSIGN_OR_RETURN(const NodeId way, OuterSequence());
      ways.push_back(way);
    } while (Take('|'));
    if (!AtEnd()) return Error("a ) that nothing opens");
    return grammar_.Choice(std::move(ways));
  }

 private:
  bool AtEnd() const { return at_ >= text_.size(); }
  char32_t Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : U'\0';
  }
  bool Take(char32_t c) {
    if (AtEnd() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool TakeText(std::u32string_view text) {
    if (std::u32string_view(text_).substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }

  absl::Status Error(std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("position ", at_, ": ", std::string(what)));
  }

  NodeId Chars(CodeRanges ranges) { return chars_(std::move(ranges)); }
  NodeId AnyText() { return grammar_.Repeat(Chars(kAnyChar), 0, kUnbounded); }

  // An alternative that is in no group: only there an anchor may stand.
  absl::StatusOr<NodeId> OuterSequence() {
    const bool from_start = Take('^') || TakeText(U"\\A");
    BATON_ASSIGN_OR_RETURN(const NodeId body, Sequence(0));
    const bool to_end = Take('$') || TakeText(U"\\Z") || TakeText(U"\\z");
    if (to_end && !AtEnd() && Peek() != '|') return Error("$ is supported at the end alone");
    std::vector<NodeId> parts;
    if (search_ && !from_start) parts.push_back(AnyText());
    parts.push_back(body);
    if (search_ && !to_end) parts.push_back(AnyText());
    return grammar_.Sequence(std::move(parts));
  }

  absl::StatusOr<NodeId> Alternatives(int depth) {
    std::vector<NodeId> ways;
    do {
      BATON_ASSIGN_OR_RETURN(const NodeId way, Sequence(depth));
      ways.push_back(way);
    } while (Take('|'));
    return grammar_.Choice(std::move(ways));
  }

  bool AtOuterEnd() const {
    return Peek() == '$' || (Peek() == '\\' && (Peek(1) == 'Z' || Peek(1) == 'z'));
  }

  absl::StatusOr<NodeId> Sequence(int depth) {
    if (depth > kMaxDepth) return Error("the groups are nested too deep");
    std::vector<NodeId> parts;
    while (!AtEnd() && Peek() != '|' && Peek() != ')') {
      if (depth == 0 && AtOuterEnd()) break;
      BATON_ASSIGN_OR_RETURN(const NodeId atom, Atom(depth));
      BATON_ASSIGN_OR_RETURN(const NodeId counted, Counted(atom));
      parts.push_back(counted);
    }
    return grammar_.Sequence(std::move(parts));
  }

  absl::StatusOr<NodeId> Atom(int depth) {
    const char32_t c = text_[at_];
    switch (c) {
      case '(':
        ++at_;
        return Group(depth);
      case '[':
        ++at_;
        return Class();
      case '.':
        ++at_;
        return Chars(Complement(kLineEnds));
      case '\\': {
        BATON_ASSIGN_OR_RETURN(CodeRanges ranges, Escape(false));
        return Chars(std::move(ranges));
      }
      case '^':
      case '$':
        return Error("^ and $ are supported at the ends alone");
      case '*':
      case '+':
      case '?':
        return Error("nothing stands before the count");
      default:
        ++at_;
        return Chars({{c, c}});
    }
  }

  absl::StatusOr<NodeId> Group(int depth) {
    if (Take('?')) {
      if (TakeText(U"P<") || (Peek() == '<' && Peek(1) != '=' && Peek(1) != '!' && Take('<'))) {
        while (!AtEnd() && Peek() != '>') ++at_;
        if (!Take('>')) return Error("the name of a group does not end");
      } else if (!Take(':')) {
        return Error("looking ahead or behind, and flags, are not supported");
      }
    }
    BATON_ASSIGN_OR_RETURN(const NodeId body, Alternatives(depth + 1));
    if (!Take(')')) return Error("a group does not end");
    return body;
  }

  absl::StatusOr<NodeId> Counted(NodeId atom) {
    for (int counts = 0;; ++counts) {
      int least = 0;
      int most = kUnbounded;
      if (Take('*')) {
      } else if (Take('+')) {
        least = 1;
      } else if (Take('?')) {
        most = 1;
      } else if (Peek() == '{' && IsCount()) {
        BATON_RETURN_IF_ERROR(Braces(least, most));
      } else {
        return atom;
      }
      if (counts > 0) return Error("a count of a count needs a group");
      if (Peek() == '+') return Error("possessive counts are not supported");
      Take('?');  // The texts are the same.
      atom = grammar_.Repeat(atom, least, most);
    }
  }

  // {2}, {2,} or {2,3}; anything else behind a brace is text.
  bool IsCount() const {
    size_t at = at_ + 1;
    const auto digits = [&] {
      const size_t from = at;
      while (at < text_.size() && text_[at] >= '0' && text_[at] <= '9') ++at;
      return at > from;
    };
    if (!digits()) return false;
    if (at < text_.size() && text_[at] == ',') {
      ++at;
      digits();
    }
    return at < text_.size() && text_[at] == '}';
  }

  absl::Status Braces(int& least, int& most) {
    const auto number = [&](int& value) {
      int64_t sum = 0;
      for (; Peek() >= '0' && Peek() <= '9'; ++at_) {
        sum = std::min<int64_t>(sum * 10 + (Peek() - '0'), kMaxCount + 1);
      }
      value = static_cast<int>(sum);
    };
    ++at_;
    number(least);
    most = least;
    if (Take(',')) {
      most = kUnbounded;
      if (Peek() != '}') number(most);
    }
    if (least > kMaxCount || most > kMaxCount) {
      return Error(absl::StrCat("a count of more than ", kMaxCount));
    }
    if (most != kUnbounded && most < least) return Error("the counts are in the wrong order");
    ++at_;
    return absl::OkStatus();
  }

  absl::StatusOr<NodeId> Class() {
    const bool negated = Take('^');
    CodeRanges ranges;
    for (bool first = true; first || Peek() != ']'; first = false) {
      if (AtEnd()) return Error("a class does not end");
      if (first && Peek() == ']') break;  // ECMAScript's empty class.
      BATON_ASSIGN_OR_RETURN(const CodeRanges low, ClassAtom());
      if (Peek() == '-' && Peek(1) != ']' && at_ + 1 < text_.size()) {
        ++at_;
        BATON_ASSIGN_OR_RETURN(const CodeRanges high, ClassAtom());
        const bool single = low.size() == 1 && low[0].low == low[0].high && high.size() == 1 &&
                            high[0].low == high[0].high;
        if (!single || low[0].low > high[0].low) return Error("the range of a class is malformed");
        ranges.push_back({low[0].low, high[0].low});
      } else {
        ranges.insert(ranges.end(), low.begin(), low.end());
      }
    }
    if (!Take(']')) return Error("a class does not end");
    return Chars(negated ? Complement(ranges) : ranges);
  }

  absl::StatusOr<CodeRanges> ClassAtom() {
    if (AtEnd()) return Error("a class does not end");
    if (Peek() == '\\') return Escape(true);
    const char32_t c = text_[at_++];
    return CodeRanges{{c, c}};
  }

  absl::StatusOr<CodeRanges> Escape(bool in_class) {
    ++at_;
    if (AtEnd()) return Error("nothing follows the backslash");
    const char32_t c = text_[at_++];
    const auto one = [](char32_t code_point) { return CodeRanges{{code_point, code_point}}; };
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return Complement(kDigits);
      case 'w':
        return kWord;
      case 'W':
        return Complement(kWord);
      case 's':
        return kSpace;
      case 'S':
        return Complement(kSpace);
      case 'n':
        return one('\n');
      case 't':
        return one('\t');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        return one(0);
      case 'b':
        if (in_class) return one('\b');
        break;
      case 'x':
        return Hex(2);
      case 'u':
        if (Peek() == '{') return BracedHex();
        return Hex(4);
      default:
        break;
    }
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9');
    if (!letter) return one(c);
    --at_;
    return Error(absl::StrCat("\\", std::string(1, static_cast<char>(c)), " is not supported"));
  }

  std::optional<uint32_t> Digit() {
    const char32_t c = Peek();
    std::optional<uint32_t> value;
    if (c >= '0' && c <= '9') value = c - '0';
    if (c >= 'a' && c <= 'f') value = c - 'a' + 10;
    if (c >= 'A' && c <= 'F') value = c - 'A' + 10;
    if (value) ++at_;
    return value;
  }

  absl::StatusOr<CodeRanges> Hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const auto digit = Digit();
      if (!digit) return Error(absl::StrCat("expected ", digits, " hexadecimal digits"));
      value = value * 16 + *digit;
    }
    return CodeRanges{{value, value}};
  }

  absl::StatusOr<CodeRanges> BracedHex() {
    ++at_;
    uint32_t value = 0;
    while (const auto digit = Digit()) value = std::min(value * 16 + *digit, kLastCodePoint + 1);
    if (!Take('}') || value > kLastCodePoint) return Error("\\u{...} names no character");
    return CodeRanges{{value, value}};
  }

  const std::u32string text_;
  const bool search_;
  const RegexChars chars_;
  Grammar& grammar_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<NodeId> AddRegex(std::string_view pattern, Grammar& grammar) {
  return Parser(
             pattern, false,
             [&grammar](CodeRanges ranges) { return grammar.Chars(std::move(ranges)); }, grammar)
      .Parse();
}

absl::StatusOr<NodeId> AddPattern(std::string_view pattern, RegexChars chars, Grammar& grammar) {
  return Parser(pattern, true, std::move(chars), grammar).Parse();
}

}  // namespace baton::grammar
