// Writes texts that a grammar allows, for its fuzz targets.
#ifndef COMMON_GRAMMAR_FUZZ_WALK_H_
#define COMMON_GRAMMAR_FUZZ_WALK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "common/grammar/automaton.h"
#include "common/grammar/compile.h"
#include "common/grammar/state_table.h"

namespace baton::grammar {

// A text of the automaton. Checks that each place allows a byte or an end. nullopt if the text does
// not end within 500 bytes by this seed, or if the grammar is too ambiguous on the way.
inline std::optional<std::string> Walk(const Automaton& automaton, uint64_t seed) {
  StateTable table(automaton);
  Random random(seed);
  std::string text;
  int32_t state = table.Find({{automaton.start, kBottom}});
  while (text.size() < 500 && !table.overflowed()) {
    const bool may_end = table.EndsAt(state);
    if (may_end && random.Chance(0.5)) return text;
    const uint64_t first = random.Below(256);
    int32_t next = StateTable::kDead;
    for (uint64_t i = 0; i < 256 && next == StateTable::kDead; ++i) {
      const auto byte = static_cast<uint8_t>(first + i);
      next = table.Step(state, byte);
      if (next != StateTable::kDead) text += static_cast<char>(byte);
    }
    if (next != StateTable::kDead) {
      state = next;
      continue;
    }
    BATON_CHECK(may_end || table.overflowed()) << "what has begun can't be finished";
    return text;
  }
  return std::nullopt;
}

// The automaton of a source, after some of its texts have been written; nullopt if it is refused.
// Checks that a refusal calls it the client's fault.
inline std::optional<Automaton> CompileAndWalk(Source::Kind kind, std::string text) {
  Source source;
  source.kind = kind;
  source.text = std::move(text);
  absl::StatusOr<Automaton> automaton = Compile(source);
  if (!automaton.ok()) {
    BATON_CHECK(absl::IsInvalidArgument(automaton.status())) << automaton.status();
    return std::nullopt;
  }
  for (uint64_t seed = 0; seed < 3; ++seed) (void)Walk(*automaton, seed);
  return *std::move(automaton);
}

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_FUZZ_WALK_H_
