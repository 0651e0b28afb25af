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
#ifndef COMMON_GRAMMAR_EBNF_H_
#define COMMON_GRAMMAR_EBNF_H_

#include <string_view>

#include "absl/status/status.h"
#include "common/grammar/grammar.h"

namespace baton::grammar {

// Adds the rules to an empty grammar; its root is the rule "root". INVALID_ARGUMENT with line and
// column for what is malformed, and for a name that no rule has.
absl::Status ParseEbnf(std::string_view text, Grammar& grammar);

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_EBNF_H_
