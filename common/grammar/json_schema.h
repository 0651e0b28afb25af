// JSON schemas as nodes of a grammar.
#ifndef COMMON_GRAMMAR_JSON_SCHEMA_H_
#define COMMON_GRAMMAR_JSON_SCHEMA_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "common/grammar/argument_rules.h"
#include "common/grammar/grammar.h"

namespace baton::grammar {

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

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_JSON_SCHEMA_H_
