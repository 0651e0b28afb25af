// What a text may be: rules over characters. Schemas, regular expressions and EBNF become one of
// these; automaton.h makes an automaton of it.
#ifndef COMMON_GRAMMAR_GRAMMAR_H_
#define COMMON_GRAMMAR_GRAMMAR_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baton::grammar {

// Code points [low, high].
struct CodeRange {
  uint32_t low = 0;
  uint32_t high = 0;
  bool operator==(const CodeRange&) const = default;
};
using CodeRanges = std::vector<CodeRange>;

inline constexpr uint32_t kLastCodePoint = 0x10FFFF;
inline const CodeRanges kAnyChar = {{0, kLastCodePoint}};
inline constexpr int kUnbounded = -1;
inline constexpr int kMaxCount = 1 << 16;  // The most of a repetition.

// How a string between quotes may also write a character.
enum class Escapes : uint8_t {
  kNone,
  kJson,
  kPython,  // As kJson, but / stands for itself alone.
};

// Sorts, merges, and leaves out surrogates and what lies past the last code point.
CodeRanges Normalized(CodeRanges ranges);
// Every code point that is not in `ranges`.
CodeRanges Complement(const CodeRanges& ranges);

// An arena of nodes. One thread. Nodes past kMaxNodes are not made: the builder says `full()` and
// automaton.h refuses the grammar.
class Grammar {
 public:
  static constexpr size_t kMaxNodes = 1 << 18;

  using NodeId = int32_t;
  enum class Kind : uint8_t { kText, kChars, kSequence, kChoice, kRepeat, kRule };

  struct Node {
    Kind kind = Kind::kText;
    Escapes escapes = Escapes::kNone;  // kChars.
    int least = 0;                     // kRepeat.
    int most = 0;                      // kRepeat; kUnbounded.
    int rule = -1;                     // kRule.
    std::string text;                  // kText: bytes.
    CodeRanges ranges;                 // kChars; none: nothing matches.
    std::vector<NodeId> children;      // kSequence, kChoice; one for kRepeat.
  };

  struct Rule {
    std::string name;  // For messages.
    NodeId body = -1;
  };

  NodeId Text(std::string_view text);
  NodeId Empty() { return Text(""); }
  // One of these characters.
  NodeId Chars(CodeRanges ranges);
  // A character of a JSON string whose value is one of these: as it stands where JSON allows that,
  // or behind a backslash.
  NodeId EscapedChars(CodeRanges ranges, Escapes escapes = Escapes::kJson);
  NodeId Sequence(std::vector<NodeId> children);
  NodeId Choice(std::vector<NodeId> children);
  NodeId Repeat(NodeId child, int least, int most);
  NodeId Optional(NodeId child) { return Repeat(child, 0, 1); }
  NodeId Call(int rule);

  // A token of the vocabulary that is no text, by its spelling; where the vocabulary has no such
  // special token, the spelling itself.
  NodeId SpecialToken(std::string_view spelling);

  // Any text up to and with the first `mark`, which is valid UTF-8 or a special token's spelling.
  NodeId Until(std::string_view mark);
  // Any text without the mark.
  NodeId Without(std::string_view mark);

  // A rule is defined once, before or after it is called.
  int AddRule(std::string name);
  void Define(int rule, NodeId body) { rules_[static_cast<size_t>(rule)].body = body; }
  void SetRoot(int rule) { root_ = rule; }

  const Node& node(NodeId id) const { return nodes_[static_cast<size_t>(id)]; }
  const std::vector<Rule>& rules() const { return rules_; }
  int root() const { return root_; }
  bool full() const { return full_; }

 private:
  NodeId Add(Node node);
  NodeId Search(std::string_view mark, bool until);

  std::vector<Node> nodes_;
  std::vector<Rule> rules_;
  int root_ = -1;
  bool full_ = false;
};

// The bytes that stand for a special token in the automaton: no text has them.
std::string SpecialBytes(std::string_view spelling);

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_GRAMMAR_H_
