// Regular expressions, as a client writes them, as nodes of a grammar.
#ifndef COMMON_GRAMMAR_REGEX_H_
#define COMMON_GRAMMAR_REGEX_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "common/grammar/grammar.h"

namespace baton::grammar {

enum class RegexUse {
  kWholeText,   // The text is what the expression matches.
  kJsonString,  // The value of a JSON string has a part that it matches: JSON Schema's pattern.
};

// What Python and ECMAScript have in common: characters, classes, groups, alternatives, counts, and
// ^ and $ at the ends. INVALID_ARGUMENT, with the position, for what is malformed or not regular:
// references, looking around, word borders, flags.
absl::StatusOr<Grammar::NodeId> AddRegex(std::string_view pattern, RegexUse use, Grammar& grammar);

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_REGEX_H_
