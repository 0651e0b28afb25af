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
// references, looking around, word borders, flags. The whole text must match.
absl::StatusOr<Grammar::NodeId> AddRegex(std::string_view pattern, Grammar& grammar);

// Makes the node of a character that is one of these.
using RegexChars = std::function<Grammar::NodeId(CodeRanges)>;
// As AddRegex, but a part of the text must match, as JSON Schema's pattern says.
absl::StatusOr<Grammar::NodeId> AddPattern(std::string_view pattern, RegexChars chars,
                                           Grammar& grammar);

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_REGEX_H_
