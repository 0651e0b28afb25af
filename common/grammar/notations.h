// The notations in which a client writes what a text has to be, as nodes of a grammar.
#ifndef COMMON_GRAMMAR_NOTATIONS_H_
#define COMMON_GRAMMAR_NOTATIONS_H_

#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/grammar/argument_rules.h"
#include "common/grammar/grammar.h"

namespace baton::grammar {

// ---- JSON Schema ----

// The values of a schema, as texts of JSON with the properties in the schema's order. Every such
// text is valid; not every valid one can be written: an object has no properties that the schema
// does not speak of unless it speaks of additional ones, and JsonRules bounds white space and
// digits. INVALID_ARGUMENT with the path for what is malformed or not supported, for instance
// "properties.a.items: uniqueItems is not supported".
absl::StatusOr<Grammar::NodeId> AddJsonSchema(std::string_view schema, Grammar& grammar);

// The same for the arguments of a call, which are the properties of an object. Where the schema
// names none there may be one of any name, else no additional ones.
absl::StatusOr<Grammar::NodeId> AddArguments(std::string_view schema, ArgumentSpelling spelling,
                                             Grammar& grammar);

// ---- Regular expressions ----

// What Python and ECMAScript have in common: characters, classes, groups, alternatives, counts, and
// ^ and $ at the ends. INVALID_ARGUMENT, with the position, for what is malformed or not regular:
// references, looking around, word borders, flags. The whole text must match.
absl::StatusOr<Grammar::NodeId> AddRegex(std::string_view pattern, Grammar& grammar);

// Makes the node of a character that is one of these.
using RegexChars = std::function<Grammar::NodeId(CodeRanges)>;
// As AddRegex, but a part of the text must match, as JSON Schema's pattern says.
absl::StatusOr<Grammar::NodeId> AddPattern(std::string_view pattern, RegexChars chars,
                                           Grammar& grammar);

// ---- GBNF ----
// Grammars as a client writes them, in the notation of llama.cpp's GBNF:
//
//   root  ::= "SELECT " name ("," name)* "\n"   # a comment
//   name  ::= [a-z_]{1,20} | %json {"type": "integer"}
//
// Beside that: . is any character, 'x' is "x", %json is a value of a JSON schema, %special "<x>" is
// a special token of the vocabulary, %until "x" is any text up to and with the first x, and
// %without "x" any text that x is not in. %keywords {...}, %arg_tags "a" {...} and %parameter_tags
// "a" {...} are the arguments of a call by the schema of their object (argument_rules.h); the names
// before the schema are of those that are bare text.

// Adds the rules to an empty grammar; its root is the rule "root". INVALID_ARGUMENT with line and
// column for what is malformed, and for a name that no rule has.
absl::Status ParseEbnf(std::string_view text, Grammar& grammar);

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_NOTATIONS_H_
