// A parsed template. Immutable after parsing; any thread.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_AST_H_
#define COMMON_TOKENIZER_CHAT_JINJA_AST_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/tokenizer/chat/jinja/value.h"

namespace baton::jinja {

struct Expression;
using ExpressionRef = std::unique_ptr<const Expression>;

// Arguments of a call, a filter or a test.
struct CallArguments {
  std::vector<ExpressionRef> positional;
  std::vector<std::pair<std::string, ExpressionRef>> named;
  ExpressionRef list;  // *list
  ExpressionRef dict;  // **dict
};

struct Expression {
  enum class Kind {
    kLiteral,      // `literal`
    kName,         // `name`
    kList,         // `parts`
    kTuple,        // `parts`
    kDict,         // `parts`: key, value, key, value...
    kAttribute,    // parts[0].name
    kSubscript,    // parts[0][parts[1]]
    kSlice,        // parts[0][parts[1]:parts[2]:parts[3]], each bound may be null
    kCall,         // parts[0](arguments)
    kFilter,       // parts[0] | name(arguments); parts[0] is null in a filter block
    kTest,         // parts[0] is name(arguments)
    kNegative,     // -parts[0]
    kPositive,     // +parts[0]
    kNot,          // not parts[0]
    kArithmetic,   // parts[0] name parts[1]
    kConcat,       // parts, with ~ between them
    kCompare,      // parts[0] operators[0] parts[1] operators[1] parts[2]...
    kAnd,          // parts[0] and parts[1]
    kOr,           // parts[0] or parts[1]
    kConditional,  // parts[0] if parts[1] else parts[2], which may be null
  };
  Kind kind = Kind::kLiteral;
  int line = 0;
  int depth = 1;  // The deepest path through its parts.
  std::string name;
  Value literal;
  std::vector<ExpressionRef> parts;
  std::vector<std::string> operators;
  CallArguments arguments;
};

struct Parameter {
  std::string name;
  ExpressionRef otherwise;  // Null: none.
};

struct Statement {
  enum class Kind {
    kText,         // `text`
    kOutput,       // {{ value }}
    kIf,           // value; body; otherwise
    kFor,          // target in value if condition; body; otherwise
    kSet,          // target = value
    kSetBlock,     // target = body, through the filters of `value` if there are any
    kMacro,        // name(parameters); body
    kCallBlock,    // call(parameters) value; body
    kFilterBlock,  // body through the filters of `value`
    kWith,         // assignments; body
    kScope,        // body with variables of its own
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 0;
  Text text;
  std::string name;
  ExpressionRef value;
  ExpressionRef target;  // A name, an attribute of a name, or a tuple of targets.
  ExpressionRef condition;
  std::vector<Parameter> parameters;
  bool uses_caller = false;   // For a macro: its body has the names `caller`,
  bool uses_varargs = false;  // `varargs`
  bool uses_kwargs = false;   // and `kwargs`.
  std::vector<std::pair<ExpressionRef, ExpressionRef>> assignments;  // Target, value.
  std::vector<Statement> body;
  std::vector<Statement> otherwise;
};

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_AST_H_
