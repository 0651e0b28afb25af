// What a request asks of its text, compiled.
#ifndef COMMON_GRAMMAR_COMPILE_H_
#define COMMON_GRAMMAR_COMPILE_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/grammar/automaton.h"

namespace baton::grammar {

struct Source {
  enum class Kind { kJsonSchema, kRegex, kEbnf, kChoice, kAnything };
  Kind kind = Kind::kJsonSchema;
  std::string text;                  // Not of kChoice and kAnything.
  std::vector<std::string> choices;  // One of them is the text.
  // Reasoning that may stand before the text, between these marks, with white space behind them.
  // Both empty: none does.
  std::string reasoning_begin;
  std::string reasoning_end;
  bool in_reasoning = false;  // The prompt ends within it.

  bool operator==(const Source&) const = default;
};

inline constexpr size_t kMaxSourceBytes = 256 << 10;
inline constexpr size_t kMaxChoices = 4096;

// "json_schema", "regex", "ebnf", "choice" or "anything".
std::string_view NameOf(Source::Kind kind);

// Takes milliseconds, at most some hundred. INVALID_ARGUMENT, beginning with the kind's name, for
// what is malformed, too large or not supported.
absl::StatusOr<Automaton> Compile(const Source& source);

// What follows where reasoning is cut short: the mark of its end, which must not be empty, and what
// Compile allows behind it; of kAnything the mark alone.
absl::StatusOr<Automaton> CompileClosing(const Source& source);

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_COMPILE_H_
