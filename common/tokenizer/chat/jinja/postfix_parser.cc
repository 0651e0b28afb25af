// What follows a value: attributes, subscripts, calls, filters and tests; and targets of
// assignments.
#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/jinja/builtins.h"
#include "common/tokenizer/chat/jinja/expression_parser.h"

namespace baton::jinja {

using Kind = Expression::Kind;
using Result = ExpressionParser::Result;

Result ExpressionParser::ParsePostfix(ExpressionRef node) {
  while (true) {
    if (tokens_.SeesOperator(".")) {
      BATON_ASSIGN_OR_RETURN(node, ParseAttribute(std::move(node)));
    } else if (tokens_.SeesOperator("[")) {
      BATON_ASSIGN_OR_RETURN(node, ParseSubscript(std::move(node)));
    } else if (tokens_.SeesOperator("(")) {
      BATON_ASSIGN_OR_RETURN(node, ParseInvocation(std::move(node)));
    } else {
      return node;
    }
  }
}

Result ExpressionParser::ParsePostfixFilters(ExpressionRef node) {
  while (true) {
    if (tokens_.SkipOperator("|")) {
      BATON_ASSIGN_OR_RETURN(node, ParseOneFilter(std::move(node)));
    } else if (tokens_.SeesName("is")) {
      BATON_ASSIGN_OR_RETURN(node, ParseTest(std::move(node)));
    } else if (tokens_.SeesOperator("(")) {
      BATON_ASSIGN_OR_RETURN(node, ParseInvocation(std::move(node)));
    } else {
      return node;
    }
  }
}

Result ExpressionParser::ParseAttribute(ExpressionRef node) {
  Expression attribute = Make(Kind::kAttribute);
  tokens_.Next();
  attribute.parts.push_back(std::move(node));
  if (tokens_.current().kind == Token::Kind::kInteger) {
    Expression index = Make(Kind::kLiteral);
    index.literal = Value::Int(tokens_.Next().integer);
    BATON_ASSIGN_OR_RETURN(ExpressionRef part, Finish(std::move(index)));
    attribute.kind = Kind::kSubscript;
    attribute.parts.push_back(std::move(part));
  } else {
    BATON_ASSIGN_OR_RETURN(attribute.name, tokens_.ExpectAnyName());
  }
  return Finish(std::move(attribute));
}

Result ExpressionParser::ParseSubscript(ExpressionRef node) {
  Expression subscript = Make(Kind::kSubscript);
  tokens_.Next();
  subscript.parts.push_back(std::move(node));
  const auto bound = [&]() -> Result {
    if (tokens_.SeesOperator(":") || tokens_.SeesOperator("]")) return ExpressionRef();
    return ParseExpression();
  };
  BATON_ASSIGN_OR_RETURN(ExpressionRef first, bound());
  if (tokens_.SeesOperator(":")) {
    subscript.kind = Kind::kSlice;
    subscript.parts.push_back(std::move(first));
    for (int i = 0; i < 2; ++i) {
      ExpressionRef next;
      if (tokens_.SkipOperator(":")) {
        BATON_ASSIGN_OR_RETURN(next, bound());
      }
      subscript.parts.push_back(std::move(next));
    }
  } else if (first == nullptr) {
    return tokens_.Unexpected("an expression");
  } else {
    subscript.parts.push_back(std::move(first));
  }
  BATON_RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
  return Finish(std::move(subscript));
}

Result ExpressionParser::ParseInvocation(ExpressionRef callee) {
  Expression call = Make(Kind::kCall);
  call.parts.push_back(std::move(callee));
  BATON_ASSIGN_OR_RETURN(call.arguments, ParseArguments());
  return Finish(std::move(call));
}

absl::StatusOr<CallArguments> ExpressionParser::ParseArguments() {
  CallArguments arguments;
  BATON_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
  bool first = true;
  while (!tokens_.SeesOperator(")")) {
    if (!first) BATON_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
    first = false;
    if (tokens_.SeesOperator(")")) break;
    const bool named = tokens_.current().kind == Token::Kind::kName &&
                       tokens_.ahead().Is(Token::Kind::kOperator, "=");
    if (arguments.dict != nullptr) return tokens_.Unexpected("')' after **");
    if (tokens_.SkipOperator("**")) {
      BATON_ASSIGN_OR_RETURN(arguments.dict, ParseExpression());
    } else if (tokens_.SeesOperator("*") && arguments.list == nullptr) {
      tokens_.Next();
      BATON_ASSIGN_OR_RETURN(arguments.list, ParseExpression());
    } else if (named) {
      std::string name = tokens_.Next().text;
      tokens_.Next();
      BATON_ASSIGN_OR_RETURN(ExpressionRef value, ParseExpression());
      arguments.named.emplace_back(std::move(name), std::move(value));
    } else if (arguments.named.empty() && arguments.list == nullptr) {
      BATON_ASSIGN_OR_RETURN(ExpressionRef value, ParseExpression());
      arguments.positional.push_back(std::move(value));
    } else {
      return tokens_.Unexpected("name=value");
    }
  }
  BATON_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
  return arguments;
}

void ExpressionParser::NoteName(std::string_view what, bool known, const std::string& name,
                                int line) {
  if (known || branches_ > 0 || !unknown_.ok()) return;
  unknown_ = ErrorAt(line, Concat("there is no ", what, " named '", name, "'"));
}

Result ExpressionParser::ParseOneFilter(ExpressionRef input) {
  Expression filter = Make(Kind::kFilter);
  BATON_ASSIGN_OR_RETURN(filter.name, tokens_.ExpectAnyName());
  NoteName("filter", FindFilter(filter.name) != nullptr, filter.name, filter.line);
  filter.parts.push_back(std::move(input));
  if (tokens_.SeesOperator("(")) {
    BATON_ASSIGN_OR_RETURN(filter.arguments, ParseArguments());
  }
  return Finish(std::move(filter));
}

Result ExpressionParser::ParseFilters(ExpressionRef input) {
  BATON_ASSIGN_OR_RETURN(ExpressionRef node, ParseOneFilter(std::move(input)));
  while (tokens_.SkipOperator("|")) {
    BATON_ASSIGN_OR_RETURN(node, ParseOneFilter(std::move(node)));
  }
  return node;
}

Result ExpressionParser::ParseTest(ExpressionRef node) {
  Expression test = Make(Kind::kTest);
  tokens_.Next();
  const bool negated = tokens_.SkipName("not");
  BATON_ASSIGN_OR_RETURN(test.name, tokens_.ExpectAnyName());
  NoteName("test", FindTest(test.name) != nullptr, test.name, test.line);
  test.parts.push_back(std::move(node));
  const Token& token = tokens_.current();
  const bool joins = tokens_.SeesName("else") || tokens_.SeesName("or") || tokens_.SeesName("and");
  const bool begins_argument =
      (token.kind == Token::Kind::kName && !joins) || token.kind == Token::Kind::kString ||
      token.kind == Token::Kind::kInteger || token.kind == Token::Kind::kFloat ||
      tokens_.SeesOperator("[") || tokens_.SeesOperator("{");
  if (tokens_.SeesOperator("(")) {
    BATON_ASSIGN_OR_RETURN(test.arguments, ParseArguments());
  } else if (tokens_.SeesName("is")) {
    return tokens_.Unexpected("no second test");
  } else if (begins_argument) {
    BATON_ASSIGN_OR_RETURN(ExpressionRef argument, ParsePrimary());
    BATON_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    test.arguments.positional.push_back(std::move(argument));
  }
  const int line = test.line;
  BATON_ASSIGN_OR_RETURN(ExpressionRef result, Finish(std::move(test)));
  if (!negated) return result;
  Expression negation;
  negation.kind = Kind::kNot;
  negation.line = line;
  negation.parts.push_back(std::move(result));
  return Finish(std::move(negation));
}

Result ExpressionParser::ParseCall() {
  BATON_ASSIGN_OR_RETURN(ExpressionRef node, ParseExpression());
  if (node->kind != Kind::kCall) return ErrorAt(node->line, "expected a call");
  return node;
}

Result ExpressionParser::ParseTarget(bool with_attribute) {
  Expression tuple = Make(Kind::kTuple);
  bool is_tuple = false;
  do {
    const bool at_end = tokens_.SeesName("in") || tokens_.SeesOperator("=") ||
                        tokens_.SeesOperator(")") ||
                        tokens_.current().kind == Token::Kind::kBlockEnd;
    if (at_end && !tuple.parts.empty()) break;
    BATON_ASSIGN_OR_RETURN(ExpressionRef part, ParseTargetPart(with_attribute));
    tuple.parts.push_back(std::move(part));
    is_tuple = is_tuple || tokens_.SeesOperator(",");
  } while (tokens_.SkipOperator(","));
  if (!is_tuple) return std::move(tuple.parts[0]);
  return Finish(std::move(tuple));
}

Result ExpressionParser::ParseTargetPart(bool with_attribute) {
  if (tokens_.SkipOperator("(")) {
    if (++nesting_ > kMaxTargetNesting) return tokens_.Unexpected("fewer brackets");
    BATON_ASSIGN_OR_RETURN(ExpressionRef target, ParseTarget(/*with_attribute=*/false));
    --nesting_;
    BATON_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
    return target;
  }
  Expression name = Make(Kind::kName);
  BATON_ASSIGN_OR_RETURN(name.name, tokens_.ExpectAnyName());
  for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
    if (name.name == constant) return ErrorAt(name.line, Concat("can't assign to ", constant));
  }
  if (!with_attribute || !tokens_.SeesOperator(".")) return Finish(std::move(name));
  Expression attribute = Make(Kind::kAttribute);
  tokens_.Next();
  BATON_ASSIGN_OR_RETURN(ExpressionRef object, Finish(std::move(name)));
  attribute.parts.push_back(std::move(object));
  BATON_ASSIGN_OR_RETURN(attribute.name, tokens_.ExpectAnyName());
  return Finish(std::move(attribute));
}

}  // namespace baton::jinja
