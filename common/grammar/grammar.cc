#include "common/grammar/grammar.h"

#include <algorithm>
#include <utility>

#include "common/grammar/utf8_ranges.h"

namespace baton::grammar {
namespace {

constexpr uint32_t kFirstSurrogate = 0xD800;
constexpr uint32_t kLastSurrogate = 0xDFFF;

}  // namespace

CodeRanges Normalized(CodeRanges ranges) {
  CodeRanges cut;
  for (CodeRange& range : ranges) {
    range.high = std::min(range.high, kLastCodePoint);
    if (range.low > range.high) continue;
    if (range.low < kFirstSurrogate) {
      cut.push_back({range.low, std::min(range.high, kFirstSurrogate - 1)});
    }
    if (range.high > kLastSurrogate) {
      cut.push_back({std::max(range.low, kLastSurrogate + 1), range.high});
    }
  }
  std::sort(cut.begin(), cut.end(),
            [](const CodeRange& a, const CodeRange& b) { return a.low < b.low; });
  CodeRanges merged;
  for (const CodeRange& range : cut) {
    if (!merged.empty() && range.low <= merged.back().high + 1) {
      merged.back().high = std::max(merged.back().high, range.high);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

CodeRanges Complement(const CodeRanges& ranges) {
  CodeRanges rest;
  uint32_t next = 0;
  for (const CodeRange& range : Normalized(ranges)) {
    if (range.low > next) rest.push_back({next, range.low - 1});
    next = range.high + 1;
  }
  if (next <= kLastCodePoint) rest.push_back({next, kLastCodePoint});
  return Normalized(std::move(rest));
}

Grammar::NodeId Grammar::Add(Node node) {
  if (nodes_.size() >= kMaxNodes) {
    full_ = true;
    return 0;
  }
  nodes_.push_back(std::move(node));
  return static_cast<NodeId>(nodes_.size() - 1);
}

Grammar::NodeId Grammar::Text(std::string_view text) {
  return Add({.kind = Kind::kText, .text = std::string(text)});
}

Grammar::NodeId Grammar::Chars(CodeRanges ranges) {
  return Add({.kind = Kind::kChars, .ranges = Normalized(std::move(ranges))});
}

Grammar::NodeId Grammar::EscapedChars(CodeRanges ranges, Escapes escapes) {
  return Add({.kind = Kind::kChars, .escapes = escapes, .ranges = Normalized(std::move(ranges))});
}

Grammar::NodeId Grammar::Sequence(std::vector<NodeId> children) {
  if (children.size() == 1) return children[0];
  return Add({.kind = Kind::kSequence, .children = std::move(children)});
}

Grammar::NodeId Grammar::Choice(std::vector<NodeId> children) {
  if (children.size() == 1) return children[0];
  return Add({.kind = Kind::kChoice, .children = std::move(children)});
}

Grammar::NodeId Grammar::Repeat(NodeId child, int least, int most) {
  if (least == 1 && most == 1) return child;
  return Add({.kind = Kind::kRepeat, .least = least, .most = most, .children = {child}});
}

Grammar::NodeId Grammar::Call(int rule) { return Add({.kind = Kind::kRule, .rule = rule}); }

Grammar::NodeId Grammar::SpecialToken(std::string_view spelling) {
  return Choice({Text(SpecialBytes(spelling)), Text(spelling)});
}

int Grammar::AddRule(std::string name) {
  rules_.push_back({std::move(name), -1});
  return static_cast<int>(rules_.size() - 1);
}

// The states of Knuth, Morris and Pratt's search as rules that call one another at their ends.
Grammar::NodeId Grammar::Search(std::string_view mark, bool until) {
  const std::u32string wanted = ToCodePoints(mark);
  const size_t length = wanted.size();
  // border[i]: the longest proper border of the first i characters.
  std::vector<size_t> border(length + 1, 0);
  for (size_t i = 2; i <= length; ++i) {
    size_t k = border[i - 1];
    while (k > 0 && wanted[k] != wanted[i - 1]) k = border[k];
    border[i] = wanted[k] == wanted[i - 1] ? k + 1 : 0;
  }
  std::vector<int> states;
  for (size_t i = 0; i < length; ++i) states.push_back(AddRule("text before a mark"));
  for (size_t i = 0; i < length; ++i) {
    std::vector<NodeId> ways = {until ? Text(SpecialBytes(mark)) : Empty()};
    CodeRanges others;
    for (size_t k = i;; k = border[k]) {
      const CodeRange next = {wanted[k], wanted[k]};
      if (std::find(others.begin(), others.end(), next) == others.end()) {
        others.push_back(next);
        const NodeId character = Chars({next});
        if (k + 1 < length) {
          ways.push_back(Sequence({character, Call(states[k + 1])}));
        } else if (until) {
          ways.push_back(character);
        }
      }
      if (k == 0) break;
    }
    ways.push_back(Sequence({Chars(Complement(others)), Call(states[0])}));
    Define(states[i], Choice(std::move(ways)));
  }
  return length == 0 ? Empty() : Call(states[0]);
}

Grammar::NodeId Grammar::Until(std::string_view mark) { return Search(mark, true); }

Grammar::NodeId Grammar::Without(std::string_view mark) { return Search(mark, false); }

std::string SpecialBytes(std::string_view spelling) {
  std::string bytes(1, '\xFF');
  bytes += spelling;
  bytes += '\xFF';
  return bytes;
}

}  // namespace baton::grammar
