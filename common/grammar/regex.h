// Regular expressions, as a client writes them, as nodes of a grammar.
#ifndef COMMON_GRAMMAR_REGEX_H_
#define COMMON_GRAMMAR_REGEX_H_

#include <functional>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/grammar/grammar.h"

namespace baton::grammar {

// What Python and ECMAScript have in common: characters, classes, groups, alternatives, counts, and
// ^ and $ at the ends. INVALID_ARGUMENT, with the position, for what is malformed or not regular:
// references, looking around, word borders, flags.
// The whole text is what the expression matches.
absl::StatusOr<Grammar::NodeId> AddRegex(std::string_view pattern, Grammar& grammar);

// How one of these characters is written.
using RegexChars = std::function<Grammar::NodeId(CodeRanges)>;
// A part of the text is: JSON Schema's pattern.
absl::StatusOr<Grammar::NodeId> AddPattern(std::string_view pattern, RegexChars chars,
                                           Grammar& grammar);

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_REGEX_H_
