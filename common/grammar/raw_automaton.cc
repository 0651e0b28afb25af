#include "common/grammar/raw_automaton.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/grammar/grammar_size.h"
#include "common/grammar/utf8_ranges.h"

namespace baton::grammar {
namespace {

using NodeId = Grammar::NodeId;
using Node = Grammar::Node;

// Rules whose states are so few are built anew wherever they are called: a token that goes on
// behind such a rule is then decided without the stack.
constexpr size_t kInlineStates = 24;
// Shorter runs are looked at state by state.
constexpr int kShortestRun = 4;

constexpr std::string_view kEscapes = "\"\\/\b\f\n\r\t";
constexpr std::string_view kEscapeLetters = "\"\\/bfnrt";

struct RawState {
  std::vector<ByteEdge> edges;
  std::vector<CallEdge> calls;
  std::vector<int32_t> empties;
  bool accepts = false;
  bool kept = false;
  int32_t run = -1;
  int32_t run_left = 0;
  int32_t run_needed = 0;
  int32_t run_exit = 0;
};

absl::Status TooLarge() {
  return absl::InvalidArgumentError(absl::StrCat("is too large: it needs more than ", kMaxStates,
                                                 " states or ", kMaxEdges, " edges"));
}

class Builder {
 public:
  explicit Builder(const Grammar& grammar)
      : grammar_(grammar), sizes_(grammar), rule_starts_(grammar.rules().size(), -1) {}

  absl::StatusOr<RawAutomaton> Build() {
    if (grammar_.full()) return TooLarge();
    BATON_RETURN_IF_ERROR(sizes_.CheckCounts());
    const int32_t start = StartOf(grammar_.root());
    while (!pending_.empty() && !overflow_) {
      const int rule = pending_.back();
      pending_.pop_back();
      const int32_t end = NewState();
      raw_[Index(end)].accepts = true;
      Add(grammar_.rules()[Index(rule)].body, rule_starts_[Index(rule)], end);
    }
    if (overflow_) return TooLarge();
    return Keep(start);
  }

 private:
  template <typename T>
  static size_t Index(T id) {
    return static_cast<size_t>(id);
  }

  int32_t NewState() {
    if (raw_.size() >= 2 * kMaxStates) {
      overflow_ = true;
      return 0;
    }
    raw_.emplace_back();
    return static_cast<int32_t>(raw_.size() - 1);
  }

  int32_t StartOf(int rule) {
    int32_t& start = rule_starts_[Index(rule)];
    if (start < 0) {
      start = NewState();
      raw_[Index(start)].kept = true;
      pending_.push_back(rule);
    }
    return start;
  }

  void AddByte(int32_t from, ByteRange range, int32_t to, bool in_run = false) {
    raw_[Index(to)].kept = true;
    raw_[Index(from)].edges.push_back({range.low, range.high, in_run, to});
    if (++edges_ > kMaxEdges) overflow_ = true;
  }

  void AddEmpty(int32_t from, int32_t to) {
    if (from != to) raw_[Index(from)].empties.push_back(to);
  }

  // Adds ways from `from` to `to` for the texts of the node: edges out of `from` and into `to`
  // alone, and new states between.
  void Add(NodeId id, int32_t from, int32_t to) {
    if (overflow_) return;
    const Node& node = grammar_.node(id);
    switch (node.kind) {
      case Grammar::Kind::kText:
        return AddText(node.text, from, to);
      case Grammar::Kind::kChars:
        return AddChars(node, from, to, false);
      case Grammar::Kind::kSequence:
        for (size_t i = 0; i < node.children.size(); ++i) {
          const int32_t next = i + 1 == node.children.size() ? to : NewState();
          Add(node.children[i], from, next);
          from = next;
        }
        if (node.children.empty()) AddEmpty(from, to);
        return;
      case Grammar::Kind::kChoice:
        return AddChoice(node, from, to);
      case Grammar::Kind::kRepeat:
        return AddRepeat(node, from, to);
      case Grammar::Kind::kRule:
        if (sizes_.OfRule(node.rule) <= kInlineStates) {
          const NodeId body = grammar_.rules()[Index(node.rule)].body;
          return body < 0 ? AddEmpty(from, to) : Add(body, from, to);
        }
        return AddCall(node.rule, from, to);
    }
  }

  void AddCall(int rule, int32_t from, int32_t to) {
    raw_[Index(to)].kept = true;
    const int32_t start = StartOf(rule);
    raw_[Index(from)].calls.push_back({start, to});
  }

  void AddText(std::string_view text, int32_t from, int32_t to) {
    if (text.empty()) return AddEmpty(from, to);
    for (size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<uint8_t>(text[i]);
      const int32_t next = i + 1 == text.size() ? to : NewState();
      AddByte(from, {byte, byte}, next);
      from = next;
    }
  }

  // Texts with equal beginnings share their states, so that long lists stay unambiguous.
  void AddChoice(const Node& node, int32_t from, int32_t to) {
    std::map<std::pair<int32_t, uint8_t>, int32_t> next;
    for (const NodeId child : node.children) {
      const Node& way = grammar_.node(child);
      if (way.kind != Grammar::Kind::kText || way.text.empty()) {
        Add(child, from, to);
        continue;
      }
      int32_t state = from;
      for (size_t i = 0; i + 1 < way.text.size() && !overflow_; ++i) {
        const auto byte = static_cast<uint8_t>(way.text[i]);
        const auto [it, added] = next.try_emplace({state, byte}, -1);
        if (added) {
          it->second = NewState();
          AddByte(state, {byte, byte}, it->second);
        }
        state = it->second;
      }
      const auto last = static_cast<uint8_t>(way.text.back());
      AddByte(state, {last, last}, to);
    }
  }

  // Sequences of bytes with equal ends share the states of these.
  void AddRanges(const CodeRanges& ranges, int32_t from, int32_t to, bool in_run) {
    std::map<ByteRangeSequence, int32_t> states = {{{}, to}};
    for (const ByteRangeSequence& sequence : ToByteRanges(ranges)) {
      int32_t next = to;
      for (size_t i = sequence.size() - 1; i > 0; --i) {
        const ByteRangeSequence rest(sequence.begin() + static_cast<ptrdiff_t>(i), sequence.end());
        const auto [it, added] = states.try_emplace(rest, -1);
        if (added) {
          it->second = NewState();
          AddByte(it->second, sequence[i], next);
        }
        next = it->second;
      }
      AddByte(from, sequence[0], next, in_run);
    }
  }

  void AddChars(const Node& node, int32_t from, int32_t to, bool in_run) {
    if (node.escapes == Escapes::kNone) return AddRanges(node.ranges, from, to, in_run);
    CodeRanges not_raw = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
    for (const CodeRange& range : Complement(node.ranges)) not_raw.push_back(range);
    const CodeRanges raw = Complement(not_raw);
    AddRanges(raw, from, to, in_run);
    int32_t behind = -1;  // Behind the backslash.
    const auto escape = [&] {
      if (behind >= 0) return behind;
      behind = NewState();
      AddByte(from, {'\\', '\\'}, behind, in_run);
      return behind;
    };
    for (uint32_t code_point = 0; code_point < 0x80; ++code_point) {
      const bool wanted =
          std::any_of(node.ranges.begin(), node.ranges.end(), [&](const CodeRange& range) {
            return range.low <= code_point && code_point <= range.high;
          });
      if (!wanted || (code_point == '/' && node.escapes == Escapes::kPython)) continue;
      const size_t at = kEscapes.find(static_cast<char>(code_point));
      if (at != std::string_view::npos && code_point != 0) {
        const auto letter = static_cast<uint8_t>(kEscapeLetters[at]);
        AddByte(escape(), {letter, letter}, to);
      } else if (code_point < 0x20 && raw.empty()) {
        AddText(absl::StrCat("u", absl::Hex(code_point, absl::kZeroPad4)), escape(), to);
      }
    }
  }

  void AddRepeat(const Node& node, int32_t from, int32_t to) {
    const NodeId child = node.children[0];
    const Node& body = grammar_.node(child);
    const bool unbounded = node.most == kUnbounded;
    const int copies = unbounded ? node.least : node.most;
    const bool chars = body.kind == Grammar::Kind::kChars;
    const int charset = chars && copies >= kShortestRun ? CharsetOf(body) : -1;
    if (charset >= 0) raw_[Index(to)].kept = true;
    // A large body that stands there often is called.
    const size_t size = chars ? 0 : sizes_.OfNode(child);
    const bool called = copies > 2 && size > 4 && body.kind != Grammar::Kind::kRule;
    const int rule = called ? RuleOf(child) : -1;
    const auto add = [&](int32_t begin, int32_t end) {
      if (chars) return AddChars(body, begin, end, charset >= 0);
      rule >= 0 ? AddBody(rule, begin, end) : Add(child, begin, end);
    };
    int32_t state = NewState();  // Its own: loops must not lead back to `from`.
    AddEmpty(from, state);
    for (int i = 0; i < copies && !overflow_; ++i) {
      if (charset >= 0) {
        RawState& of = raw_[Index(state)];
        of.run = charset;
        of.run_left = unbounded ? kUnbounded : copies - i;
        of.run_needed = std::max(0, node.least - i);
        of.run_exit = to;
      }
      if (i >= node.least) AddEmpty(state, to);
      const int32_t next = NewState();
      add(state, next);
      state = next;
    }
    if (unbounded && !overflow_) {
      const int32_t loop = NewState();
      AddEmpty(state, loop);
      add(loop, loop);
      state = loop;
    }
    AddEmpty(state, to);
  }

  // The body of a repetition as a rule without name; its node names it.
  int RuleOf(NodeId child) {
    const auto [it, added] = body_rules_.try_emplace(child, static_cast<int>(bodies_.size()));
    if (added) bodies_.push_back({child, -1});
    return it->second;
  }

  void AddBody(int body, int32_t from, int32_t to) {
    if (bodies_[Index(body)].start < 0) {
      const int32_t start = NewState();
      const int32_t end = NewState();
      raw_[Index(start)].kept = true;
      raw_[Index(end)].accepts = true;
      bodies_[Index(body)].start = start;
      Add(bodies_[Index(body)].node, start, end);
    }
    raw_[Index(to)].kept = true;
    raw_[Index(from)].calls.push_back({bodies_[Index(body)].start, to});
  }

  int CharsetOf(const Node& node) {
    std::vector<std::pair<uint32_t, uint32_t>> key;
    for (const CodeRange& range : node.ranges) key.emplace_back(range.low, range.high);
    const auto [it, added] =
        charsets_.try_emplace({node.escapes, std::move(key)}, static_cast<int>(run_loops_.size()));
    if (added) {
      const int32_t loop = NewState();
      raw_[Index(loop)].kept = true;
      raw_[Index(loop)].accepts = true;
      run_loops_.push_back(loop);
      AddChars(node, loop, loop, false);
    }
    return it->second;
  }

  // What a state does by itself and through empty edges.
  absl::Status Close(int32_t state, KeptState& out) {
    std::vector<int32_t> reached = {state};
    seen_[Index(state)] = state;
    int runs = 0;
    for (size_t i = 0; i < reached.size(); ++i) {
      const RawState& of = raw_[Index(reached[i])];
      out.edges.insert(out.edges.end(), of.edges.begin(), of.edges.end());
      out.calls.insert(out.calls.end(), of.calls.begin(), of.calls.end());
      out.accepts |= of.accepts;
      if (of.run >= 0 && ++runs == 1) {
        out.run = of.run;
        out.run_left = of.run_left;
        out.run_needed = of.run_needed;
        out.run_exit = of.run_exit;
      }
      for (const int32_t to : of.empties) {
        if (std::exchange(seen_[Index(to)], state) != state) reached.push_back(to);
      }
    }
    if (runs > 1) out.run = -1;
    kept_edges_ += out.edges.size() + out.calls.size();
    return kept_edges_ > kMaxEdges ? TooLarge() : absl::OkStatus();
  }

  absl::StatusOr<RawAutomaton> Keep(int32_t start) {
    seen_.assign(raw_.size(), -1);
    std::vector<int32_t> renamed(raw_.size(), -1);
    RawAutomaton out;
    for (size_t i = 0; i < raw_.size(); ++i) {
      if (!raw_[i].kept) continue;
      renamed[i] = static_cast<int32_t>(out.kept.size());
      out.kept.emplace_back();
    }
    if (out.kept.size() > kMaxStates) return TooLarge();
    for (size_t i = 0; i < raw_.size(); ++i) {
      if (renamed[i] < 0) continue;
      KeptState& state = out.kept[Index(renamed[i])];
      BATON_RETURN_IF_ERROR(Close(static_cast<int32_t>(i), state));
      for (ByteEdge& edge : state.edges) edge.to = renamed[Index(edge.to)];
      for (CallEdge& call : state.calls) {
        call = {renamed[Index(call.start)], renamed[Index(call.to)]};
      }
      if (state.run >= 0) state.run_exit = renamed[Index(state.run_exit)];
    }
    for (const int32_t of : rule_starts_) out.starts.push_back(of < 0 ? -1 : renamed[Index(of)]);
    for (const int32_t loop : run_loops_) out.run_loops.push_back(renamed[Index(loop)]);
    out.start = renamed[Index(start)];
    return out;
  }

  const Grammar& grammar_;
  std::vector<RawState> raw_;
  GrammarSize sizes_;
  std::vector<int32_t> rule_starts_;
  std::vector<int> pending_;
  struct Body {
    NodeId node = 0;
    int32_t start = -1;
  };
  std::map<NodeId, int> body_rules_;
  std::vector<Body> bodies_;
  std::map<std::pair<Escapes, std::vector<std::pair<uint32_t, uint32_t>>>, int> charsets_;
  std::vector<int32_t> run_loops_;
  std::vector<int32_t> seen_;
  size_t edges_ = 0;
  size_t kept_edges_ = 0;
  bool overflow_ = false;
};

}  // namespace

std::string RawAutomaton::NameOf(const Grammar& grammar, int32_t state) const {
  const auto it = std::find(starts.begin(), starts.end(), state);
  if (it == starts.end()) return "of a repetition";
  return grammar.rules()[static_cast<size_t>(it - starts.begin())].name;
}

absl::StatusOr<RawAutomaton> BuildRaw(const Grammar& grammar) { return Builder(grammar).Build(); }

}  // namespace baton::grammar
