
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/grammar/notations.h"
#include "common/grammar/utf8_ranges.h"

namespace baton::grammar {
namespace {

using NodeId = Grammar::NodeId;

constexpr int kMaxDepth = 64;
constexpr size_t kMaxShownName = 64;

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

std::optional<ArgumentSpelling::Kind> SpellingNamed(std::string_view name) {
  if (name == "keywords") return ArgumentSpelling::Kind::kKeywords;
  if (name == "arg_tags") return ArgumentSpelling::Kind::kArgTags;
  if (name == "parameter_tags") return ArgumentSpelling::Kind::kParameterTags;
  return std::nullopt;
}

class Parser {
 public:
  Parser(std::string_view text, Grammar& grammar) : text_(text), grammar_(grammar) {}

  absl::Status Parse() {
    for (Skip(); !AtEnd(); Skip()) BATON_RETURN_IF_ERROR(Rule());
    for (const auto& [name, rule] : rules_) {
      if (grammar_.rules()[static_cast<size_t>(rule.id)].body >= 0) continue;
      at_ = rule.first_use;
      return Error(Concat("no rule is called ", std::string_view(name).substr(0, kMaxShownName)));
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) return absl::InvalidArgumentError("there is no rule called root");
    grammar_.SetRoot(root->second.id);
    return absl::OkStatus();
  }

 private:
  struct Named {
    int id = 0;
    size_t first_use = 0;
  };

  bool AtEnd() const { return at_ >= text_.size(); }
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool Take(std::string_view wanted) {
    if (text_.substr(at_, wanted.size()) != wanted) return false;
    at_ += wanted.size();
    return true;
  }

  void Skip() {
    while (!AtEnd()) {
      if (Peek() == '#') {
        while (!AtEnd() && Peek() != '\n') ++at_;
      } else if (Peek() == ' ' || Peek() == '\t' || Peek() == '\r' || Peek() == '\n') {
        ++at_;
      } else {
        return;
      }
    }
  }

  absl::Status Error(std::string_view what) const {
    const std::string_view before = text_.substr(0, std::min(at_, text_.size()));
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t begin = before.rfind('\n');
    const size_t column = before.size() - (begin == std::string_view::npos ? 0 : begin + 1) + 1;
    return absl::InvalidArgumentError(Concat("line ", line, ", column ", column, ": ", what));
  }

  std::string Name() {
    const size_t from = at_;
    while (!AtEnd() && IsNameChar(Peek())) ++at_;
    return std::string(text_.substr(from, at_ - from));
  }

  int IdOf(const std::string& name, size_t at) {
    const auto [it, added] = rules_.try_emplace(name);
    if (added) it->second = {grammar_.AddRule(name.substr(0, kMaxShownName)), at};
    return it->second.id;
  }

  absl::Status Rule() {
    const size_t from = at_;
    const std::string name = Name();
    if (name.empty()) return Error("expected the name of a rule");
    Skip();
    if (!Take("::=")) return Error("expected ::= behind the name of a rule");
    const int id = IdOf(name, from);
    if (grammar_.rules()[static_cast<size_t>(id)].body >= 0) {
      at_ = from;
      return Error("another rule has this name, too");
    }
    BATON_ASSIGN_OR_RETURN(const NodeId body, Alternatives(0));
    grammar_.Define(id, body);
    return absl::OkStatus();
  }

  absl::StatusOr<NodeId> Alternatives(int depth) {
    if (depth > kMaxDepth) return Error("the groups are nested too deep");
    std::vector<NodeId> ways;
    do {
      BATON_ASSIGN_OR_RETURN(const NodeId way, Sequence(depth));
      ways.push_back(way);
      Skip();
    } while (Take("|"));
    return grammar_.Choice(std::move(ways));
  }

  // Whether what follows begins the next rule.
  bool AtRule() {
    if (!IsNameChar(Peek())) return false;
    const size_t from = at_;
    Name();
    Skip();
    const bool begins = text_.substr(at_, 3) == "::=";
    at_ = from;
    return begins;
  }

  absl::StatusOr<NodeId> Sequence(int depth) {
    std::vector<NodeId> parts;
    for (Skip(); !AtEnd() && Peek() != '|' && Peek() != ')' && !AtRule(); Skip()) {
      BATON_ASSIGN_OR_RETURN(NodeId part, Atom(depth));
      BATON_ASSIGN_OR_RETURN(part, Counted(part));
      parts.push_back(part);
    }
    return grammar_.Sequence(std::move(parts));
  }

  absl::StatusOr<NodeId> Atom(int depth) {
    if (Peek() == '"' || Peek() == '\'') {
      BATON_ASSIGN_OR_RETURN(const std::string text, Quoted());
      return grammar_.Text(text);
    }
    if (Take("[")) return Class();
    if (Take(".")) return grammar_.Chars(kAnyChar);
    if (Take("%")) return Extension();
    if (Take("(")) {
      BATON_ASSIGN_OR_RETURN(const NodeId body, Alternatives(depth + 1));
      if (!Take(")")) return Error("a group does not end");
      return body;
    }
    const size_t from = at_;
    const std::string name = Name();
    if (name.empty()) return Error("expected a text, a class, a group or the name of a rule");
    return grammar_.Call(IdOf(name, from));
  }

  absl::StatusOr<NodeId> Extension() {
    const std::string kind = Name();
    while (Peek() == ' ') ++at_;
    if (kind == "json") return Schema();
    if (const auto spelling = SpellingNamed(kind)) return Arguments(kind, {*spelling, {}});
    if (kind != "special" && kind != "until" && kind != "without") {
      return Error(
          "expected %json, %keywords, %arg_tags, %parameter_tags, %special, %until or %without");
    }
    if (Peek() != '"' && Peek() != '\'') return Error("expected a text in quotes");
    BATON_ASSIGN_OR_RETURN(const std::string text, Quoted());
    if (text.empty()) return Error("the text must not be empty");
    if (kind == "special") return grammar_.SpecialToken(text);
    return kind == "until" ? grammar_.Until(text) : grammar_.Without(text);
  }

  // The text of a schema that stands here.
  std::string_view TakeSchema() {
    const size_t from = at_;
    int depth = 0;
    bool in_string = false;
    while (!AtEnd()) {
      const char c = text_[at_++];
      if (in_string) {
        if (c == '\\') ++at_;
        if (c == '"') in_string = false;
        continue;
      }
      if (c == '"') in_string = true;
      if (c == '{') ++depth;
      if (c == '}') --depth;
      if (depth <= 0) break;
    }
    return text_.substr(from, std::min(at_, text_.size()) - from);
  }

  absl::StatusOr<NodeId> Schema() {
    const size_t from = at_;
    return OrErrorAt(from, "json", AddJsonSchema(TakeSchema(), grammar_));
  }

  // Names of arguments that are bare text, and the schema.
  absl::StatusOr<NodeId> Arguments(const std::string& kind, ArgumentSpelling spelling) {
    for (; Peek() == '"' || Peek() == '\''; Skip()) {
      BATON_ASSIGN_OR_RETURN(std::string name, Quoted());
      spelling.bare.insert(std::move(name));
    }
    const size_t from = at_;
    return OrErrorAt(from, kind, AddArguments(TakeSchema(), std::move(spelling), grammar_));
  }

  absl::StatusOr<NodeId> OrErrorAt(size_t at, std::string_view kind, absl::StatusOr<NodeId> node) {
    if (node.ok()) return node;
    at_ = at;
    return Error(Concat("%", kind, ": ", std::string(node.status().message())));
  }

  absl::StatusOr<NodeId> Counted(NodeId atom) {
    for (int counts = 0;; ++counts) {
      if (counts > 1) return Error("a count of a count needs a group");
      if (Take("*")) {
        atom = grammar_.Repeat(atom, 0, kUnbounded);
      } else if (Take("+")) {
        atom = grammar_.Repeat(atom, 1, kUnbounded);
      } else if (Take("?")) {
        atom = grammar_.Optional(atom);
      } else if (Take("{")) {
        BATON_ASSIGN_OR_RETURN(atom, Braces(atom));
      } else {
        return atom;
      }
    }
  }

  std::optional<int> Number() {
    const size_t from = at_;
    int64_t sum = 0;
    for (; Peek() >= '0' && Peek() <= '9'; ++at_) {
      sum = std::min<int64_t>(sum * 10 + (Peek() - '0'), kMaxCount + 1);
    }
    if (at_ == from) return std::nullopt;
    return static_cast<int>(sum);
  }

  absl::StatusOr<NodeId> Braces(NodeId atom) {
    Skip();
    const auto least = Number();
    Skip();
    auto most = least;
    if (Take(",")) {
      Skip();
      most = Number().value_or(kUnbounded);
      Skip();
    }
    if (!least || !Take("}")) return Error("expected a count such as {2}, {2,} or {2,3}");
    if (*least > kMaxCount || *most > kMaxCount) {
      return Error(absl::StrCat("a count of more than ", kMaxCount));
    }
    if (*most != kUnbounded && *most < *least) return Error("the counts are in the wrong order");
    return grammar_.Repeat(atom, *least, *most);
  }

  // A character of a text or a class, which may be escaped.
  absl::StatusOr<uint32_t> Character() {
    if (AtEnd()) return Error("the text ends in a quote or class");
    if (Peek() != '\\') {
      const auto code_point = NextCodePoint(text_, at_);
      if (!code_point) return Error("this is not UTF-8");
      return *code_point;
    }
    ++at_;
    const char c = Peek();
    ++at_;
    switch (c) {
      case 'n':
        return '\n';
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case 'x':
        return Hex(2);
      case 'u':
        return Hex(4);
      case 'U':
        return Hex(8);
      case '"':
      case '\'':
      case '\\':
      case '[':
      case ']':
      case '-':
      case '^':
      case '/':
        return static_cast<uint32_t>(c);
      default:
        --at_;
        return Error("this escape is not known");
    }
  }

  absl::StatusOr<uint32_t> Hex(int digits) {
    uint64_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = Peek();
      const bool digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
      if (!digit) return Error(absl::StrCat("expected ", digits, " hexadecimal digits"));
      value = value * 16 + static_cast<uint64_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (value > kLastCodePoint || (value >= 0xD800 && value <= 0xDFFF)) {
      return Error("there is no such character");
    }
    return static_cast<uint32_t>(value);
  }

  absl::StatusOr<std::string> Quoted() {
    const char quote = text_[at_++];
    std::string out;
    while (Peek() != quote || AtEnd()) {
      BATON_ASSIGN_OR_RETURN(const uint32_t code_point, Character());
      AppendUtf8(code_point, out);
    }
    ++at_;
    return out;
  }

  absl::StatusOr<NodeId> Class() {
    const bool negated = Take("^");
    CodeRanges ranges;
    while (Peek() != ']' || AtEnd()) {
      BATON_ASSIGN_OR_RETURN(const uint32_t low, Character());
      uint32_t high = low;
      if (Peek() == '-' && Peek(1) != ']') {
        ++at_;
        BATON_ASSIGN_OR_RETURN(high, Character());
      }
      if (high < low) return Error("the range of a class is in the wrong order");
      ranges.push_back({low, high});
    }
    ++at_;
    return grammar_.Chars(negated ? Complement(ranges) : ranges);
  }

  const std::string_view text_;
  Grammar& grammar_;
  std::map<std::string, Named> rules_;
  size_t at_ = 0;
};

}  // namespace

absl::Status ParseEbnf(std::string_view text, Grammar& grammar) {
  return Parser(text, grammar).Parse();
}

}  // namespace baton::grammar
