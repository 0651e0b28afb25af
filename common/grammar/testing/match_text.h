// Whether texts match a source, for tests.
#ifndef COMMON_GRAMMAR_TESTING_MATCH_TEXT_H_
#define COMMON_GRAMMAR_TESTING_MATCH_TEXT_H_

#include <string>
#include <string_view>

#include "common/grammar/compile.h"
#include "common/grammar/state_table.h"

namespace baton::grammar {

inline Source Schema(std::string text) { return {.text = std::move(text)}; }
inline Source Regex(std::string text) {
  return {.kind = Source::Kind::kRegex, .text = std::move(text)};
}
inline Source Ebnf(std::string text) {
  return {.kind = Source::Kind::kEbnf, .text = std::move(text)};
}

class Matcher {
 public:
  explicit Matcher(const Source& source) : Matcher(Compile(source)) {}
  explicit Matcher(absl::StatusOr<Automaton> automaton) : automaton_(std::move(automaton)) {}

  std::string error() const {
    return automaton_.ok() ? "" : std::string(automaton_.status().message());
  }
  bool Matches(std::string_view text) const {
    const auto [table, state] = Walk(text);
    return state != StateTable::kDead && table.EndsAt(state);
  }
  bool Begins(std::string_view text) const { return Walk(text).second != StateTable::kDead; }

 private:
  std::pair<StateTable, int32_t> Walk(std::string_view text) const {
    StateTable table(automaton_.value());
    const int32_t start = table.Find({{automaton_->start, kBottom}});
    const int32_t state = table.Walk(start, text);
    return {std::move(table), state};
  }
  absl::StatusOr<Automaton> automaton_;
};

inline bool Matches(const Source& source, std::string_view text) {
  return Matcher(source).Matches(text);
}
inline std::string ErrorOf(const Source& source) { return Matcher(source).error(); }

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_TESTING_MATCH_TEXT_H_
