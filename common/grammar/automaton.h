// A grammar as a pushdown automaton over bytes.
#ifndef COMMON_GRAMMAR_AUTOMATON_H_
#define COMMON_GRAMMAR_AUTOMATON_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/grammar/grammar.h"

namespace baton::grammar {

using StateId = int32_t;

// A byte in [low, high] leads to `to`.
struct ByteEdge {
  uint8_t low = 0;
  uint8_t high = 0;
  // Its byte begins one more character of a bounded run (Automaton::Run).
  bool in_run = false;
  StateId to = 0;
};

// The text of a rule leads to `to`. The automaton goes to the rule's start and keeps `to` on its
// stack; kTail: nothing is left to do behind the rule, and nothing is kept.
struct CallEdge {
  static constexpr StateId kTail = -1;
  StateId start = 0;
  StateId to = 0;
};

// Immutable; any thread. From each state some text leads to an end.
struct Automaton {
  struct State {
    uint32_t edges_begin = 0;
    uint32_t edges_count = 0;
    uint32_t calls_begin = 0;
    uint32_t calls_count = 0;
    bool accepts = false;  // The rule's text may end here.
    // A bounded run of characters that the state is in: of charset `run`, at least `run_needed` and
    // at most `run_left` more (kUnbounded), then on as from `run_exit`. None of the bytes that lead
    // on there begins a character of the run. -1: it is in none.
    int32_t run = -1;
    int32_t run_left = 0;
    int32_t run_needed = 0;
    StateId run_exit = 0;
  };

  std::vector<State> states;
  std::vector<ByteEdge> edges;
  std::vector<CallEdge> calls;
  StateId start = 0;
  // For each charset of runs: the state of a rule that nothing calls, in which any number of its
  // characters may follow. The state is met again behind each character, and only there.
  std::vector<StateId> run_loops;
  // Bytes of one class lead everywhere to the same.
  std::array<uint8_t, 256> class_of{};
  int class_count = 0;

  std::span<const ByteEdge> EdgesOf(StateId state) const {
    const State& of = states[static_cast<size_t>(state)];
    return std::span(edges).subspan(of.edges_begin, of.edges_count);
  }
  std::span<const CallEdge> CallsOf(StateId state) const {
    const State& of = states[static_cast<size_t>(state)];
    return std::span(calls).subspan(of.calls_begin, of.calls_count);
  }
};

// The most that a grammar may become.
inline constexpr size_t kMaxStates = 1 << 16;
inline constexpr size_t kMaxEdges = 1 << 19;

// INVALID_ARGUMENT, without the name of the source, for a grammar that is too large, that no text
// matches, or that calls a rule before it has read anything of its text (left recursion).
absl::StatusOr<Automaton> BuildAutomaton(const Grammar& grammar);

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_AUTOMATON_H_
