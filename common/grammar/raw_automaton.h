// The first half of automaton.h's work: from nodes to states without empty edges.
#ifndef COMMON_GRAMMAR_RAW_AUTOMATON_H_
#define COMMON_GRAMMAR_RAW_AUTOMATON_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/grammar/automaton.h"
#include "common/grammar/grammar.h"

namespace baton::grammar {

struct KeptState {
  std::vector<ByteEdge> edges;
  std::vector<CallEdge> calls;  // No tail calls yet.
  bool accepts = false;
  int32_t run = -1;
  int32_t run_left = 0;
  int32_t run_needed = 0;
  int32_t run_exit = 0;
};

// Some of its states may lead nowhere.
struct RawAutomaton {
  std::vector<KeptState> kept;
  std::vector<int32_t> starts;  // One for each rule; -1: nothing calls it.
  std::vector<int32_t> run_loops;
  int32_t start = 0;

  // The name of the rule that a state belongs to whose start is `state`; else of some rule.
  std::string NameOf(const Grammar& grammar, int32_t state) const;
};

absl::StatusOr<RawAutomaton> BuildRaw(const Grammar& grammar);

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_RAW_AUTOMATON_H_
