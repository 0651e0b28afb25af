#include "common/grammar/automaton.h"

#include <algorithm>
#include <utility>

#include "common/grammar/raw_automaton.h"

namespace baton::grammar {
namespace {

// Which states lead to an end of their rule. States and rules that don't are left out.
class Trimmer {
 public:
  explicit Trimmer(const RawAutomaton& raw) : raw_(raw), live_(raw.kept.size(), false) {}

  // Whether each kept state leads to the end of its rule.
  std::vector<bool> Run() {
    std::vector<std::vector<int32_t>> before(raw_.kept.size());  // By edges, and by calls.
    std::vector<std::vector<int32_t>> callers(raw_.kept.size());
    for (size_t i = 0; i < raw_.kept.size(); ++i) {
      const auto from = static_cast<int32_t>(i);
      for (const ByteEdge& edge : raw_.kept[i].edges) before[Index(edge.to)].push_back(from);
      for (const CallEdge& call : raw_.kept[i].calls) {
        before[Index(call.to)].push_back(from);
        callers[Index(call.start)].push_back(from);
      }
    }
    for (size_t i = 0; i < raw_.kept.size(); ++i) {
      if (raw_.kept[i].accepts) Mark(static_cast<int32_t>(i));
    }
    while (!queue_.empty()) {
      const int32_t state = queue_.back();
      queue_.pop_back();
      for (const int32_t from : before[Index(state)]) Look(from);
      for (const int32_t from : callers[Index(state)]) Look(from);
    }
    return live_;
  }

 private:
  static size_t Index(int32_t state) { return static_cast<size_t>(state); }

  void Mark(int32_t state) {
    if (live_[Index(state)]) return;
    live_[Index(state)] = true;
    queue_.push_back(state);
  }
  void Look(int32_t state) {
    if (live_[Index(state)]) return;
    const KeptState& of = raw_.kept[Index(state)];
    const bool lives = std::any_of(of.edges.begin(), of.edges.end(),
                                   [&](const ByteEdge& edge) { return live_[Index(edge.to)]; }) ||
                       std::any_of(of.calls.begin(), of.calls.end(), [&](const CallEdge& call) {
                         return live_[Index(call.start)] && live_[Index(call.to)];
                       });
    if (lives) Mark(state);
  }

  const RawAutomaton& raw_;
  std::vector<bool> live_;
  std::vector<int32_t> queue_;
};

// Finds a rule that is called again before any byte was read since its start.
class LeftRecursion {
 public:
  explicit LeftRecursion(const RawAutomaton& raw) : raw_(raw), empty_(raw.kept.size(), false) {}

  // The start of such a rule; -1: there is none. A call is left-recursive if its rule's start leads
  // back to where the call stands: both are in one strongly connected component.
  int32_t Find() {
    FindEmpty();
    const std::vector<int32_t> component = Components();
    for (size_t i = 0; i < raw_.kept.size(); ++i) {
      for (const CallEdge& call : raw_.kept[i].calls) {
        if (component[i] == component[Index(call.start)]) return call.start;
      }
    }
    return -1;
  }

 private:
  static size_t Index(int32_t state) { return static_cast<size_t>(state); }

  // Which states reach the end of their rule without a byte.
  void FindEmpty() {
    std::vector<std::vector<int32_t>> users(raw_.kept.size());
    std::vector<int32_t> queue;
    for (size_t i = 0; i < raw_.kept.size(); ++i) {
      const auto state = static_cast<int32_t>(i);
      for (const CallEdge& call : raw_.kept[i].calls) {
        users[Index(call.start)].push_back(state);
        users[Index(call.to)].push_back(state);
      }
      if (raw_.kept[i].accepts) {
        empty_[i] = true;
        queue.push_back(state);
      }
    }
    while (!queue.empty()) {
      const int32_t state = queue.back();
      queue.pop_back();
      for (const int32_t user : users[Index(state)]) {
        if (empty_[Index(user)]) continue;
        for (const CallEdge& call : raw_.kept[Index(user)].calls) {
          if (!empty_[Index(call.start)] || !empty_[Index(call.to)]) continue;
          empty_[Index(user)] = true;
          queue.push_back(user);
          break;
        }
      }
    }
  }

  std::vector<int32_t> Successors(size_t state) const {
    std::vector<int32_t> next;
    for (const CallEdge& call : raw_.kept[state].calls) {
      next.push_back(call.start);
      if (empty_[Index(call.start)]) next.push_back(call.to);
    }
    return next;
  }

  // Kosaraju's, without recursion.
  std::vector<int32_t> Components() const {
    const size_t count = raw_.kept.size();
    std::vector<std::vector<int32_t>> back(count);
    std::vector<int32_t> finished;
    std::vector<bool> seen(count, false);
    struct Frame {
      int32_t state;
      std::vector<int32_t> next;
    };
    for (size_t root = 0; root < count; ++root) {
      if (seen[root] || raw_.kept[root].calls.empty()) continue;
      seen[root] = true;
      std::vector<Frame> path = {{static_cast<int32_t>(root), Successors(root)}};
      while (!path.empty()) {
        if (path.back().next.empty()) {
          finished.push_back(path.back().state);
          path.pop_back();
          continue;
        }
        const int32_t from = path.back().state;
        const int32_t to = path.back().next.back();
        path.back().next.pop_back();
        back[Index(to)].push_back(from);
        if (seen[Index(to)]) continue;
        seen[Index(to)] = true;
        path.push_back({to, Successors(Index(to))});
      }
    }
    std::vector<int32_t> component(count, -1);
    for (size_t i = 0; i < count; ++i) component[i] = -1 - static_cast<int32_t>(i);
    for (size_t i = finished.size(); i-- > 0;) {
      if (component[Index(finished[i])] >= 0) continue;
      std::vector<int32_t> queue = {finished[i]};
      component[Index(finished[i])] = finished[i];
      while (!queue.empty()) {
        const int32_t state = queue.back();
        queue.pop_back();
        for (const int32_t from : back[Index(state)]) {
          if (component[Index(from)] >= 0) continue;
          component[Index(from)] = finished[i];
          queue.push_back(from);
        }
      }
    }
    return component;
  }

  const RawAutomaton& raw_;
  std::vector<bool> empty_;
};

void FindClasses(Automaton& automaton) {
  std::array<bool, 257> begins{};
  begins[0] = true;
  for (const ByteEdge& edge : automaton.edges) {
    begins[edge.low] = true;
    begins[size_t{edge.high} + 1] = true;
  }
  int of = -1;
  for (size_t byte = 0; byte < 256; ++byte) {
    if (begins[byte]) ++of;
    automaton.class_of[byte] = static_cast<uint8_t>(of);
  }
  automaton.class_count = of + 1;
}

// A run is looked at by itself (token_masks.h) only if its end is told by the next byte.
bool RunEndIsPlain(const RawAutomaton& raw, const KeptState& state) {
  const KeptState& end = raw.kept[static_cast<size_t>(state.run_exit)];
  if (end.accepts || !end.calls.empty()) return false;
  for (const ByteEdge& own : state.edges) {
    if (!own.in_run) continue;
    for (const ByteEdge& other : end.edges) {
      if (own.low <= other.high && other.low <= own.high) return false;
    }
  }
  return true;
}

Automaton Assemble(const RawAutomaton& raw, const std::vector<bool>& live) {
  Automaton out;
  std::vector<StateId> renamed(raw.kept.size(), -1);
  StateId next = 0;
  for (size_t i = 0; i < raw.kept.size(); ++i) {
    if (live[i]) renamed[i] = next++;
  }
  const auto name = [&](int32_t state) { return renamed[static_cast<size_t>(state)]; };
  for (size_t i = 0; i < raw.kept.size(); ++i) {
    if (!live[i]) continue;
    const KeptState& from = raw.kept[i];
    Automaton::State& to = out.states.emplace_back();
    to.accepts = from.accepts;
    to.edges_begin = static_cast<uint32_t>(out.edges.size());
    to.calls_begin = static_cast<uint32_t>(out.calls.size());
    for (const ByteEdge& edge : from.edges) {
      if (name(edge.to) < 0) continue;
      out.edges.push_back({edge.low, edge.high, edge.in_run, name(edge.to)});
    }
    for (const CallEdge& call : from.calls) {
      if (name(call.start) < 0 || name(call.to) < 0) continue;
      const KeptState& behind = raw.kept[static_cast<size_t>(call.to)];
      const bool tail = behind.accepts && behind.edges.empty() && behind.calls.empty();
      out.calls.push_back({name(call.start), tail ? CallEdge::kTail : name(call.to)});
    }
    to.edges_count = static_cast<uint32_t>(out.edges.size()) - to.edges_begin;
    to.calls_count = static_cast<uint32_t>(out.calls.size()) - to.calls_begin;
    if (from.run >= 0 && name(from.run_exit) >= 0 && RunEndIsPlain(raw, from)) {
      to.run = from.run;
      to.run_left = from.run_left;
      to.run_needed = from.run_needed;
      to.run_exit = name(from.run_exit);
    }
  }
  out.start = name(raw.start);
  for (const int32_t loop : raw.run_loops) out.run_loops.push_back(name(loop));
  FindClasses(out);
  return out;
}

}  // namespace

absl::StatusOr<Automaton> BuildAutomaton(const Grammar& grammar) {
  absl::StatusOr<RawAutomaton> raw = BuildRaw(grammar);
  if (!raw.ok()) return raw.status();
  const std::vector<bool> live = Trimmer(*raw).Run();
  if (!live[static_cast<size_t>(raw->start)]) {
    return absl::InvalidArgumentError("no text can match it");
  }
  if (const int32_t start = LeftRecursion(*raw).Find(); start >= 0) {
    return absl::InvalidArgumentError("the rule " + raw->NameOf(grammar, start) +
                                      " refers to itself before any text (left recursion)");
  }
  return Assemble(*raw, live);
}

}  // namespace baton::grammar
