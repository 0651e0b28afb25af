#include "common/tokenizer/chat/jinja/expression_parser.h"

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/jinja/builtins.h"

namespace baton::jinja {
namespace {

using Kind = Expression::Kind;
using Result = ExpressionParser::Result;

// Brackets and signs within each other, and operators after each other.
constexpr int kMaxNesting = 100;
constexpr int kMaxTreeDepth = 200;

std::string Shown(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kEnd:
      return "the end of the template";
    case Token::Kind::kBlockEnd:
      return "%}";
    case Token::Kind::kVariableEnd:
      return "}}";
    case Token::Kind::kInteger:
    case Token::Kind::kFloat:
      return "a number";
    case Token::Kind::kString:
      return "a string";
    default:
      return Concat("'", token.text, "'");
  }
}

}  // namespace

absl::Status TokenStream::Unexpected(std::string_view wanted) const {
  return ErrorAt(current().line, Concat("expected ", wanted, ", found ", Shown(current())));
}

absl::Status TokenStream::ExpectOperator(std::string_view op) {
  return SkipOperator(op) ? absl::OkStatus() : Unexpected(Concat("'", op, "'"));
}

absl::Status TokenStream::ExpectName(std::string_view name) {
  return SkipName(name) ? absl::OkStatus() : Unexpected(Concat("'", name, "'"));
}

absl::Status TokenStream::Expect(Token::Kind kind, std::string_view what) {
  if (current().kind != kind) return Unexpected(what);
  Next();
  return absl::OkStatus();
}

absl::StatusOr<std::string> TokenStream::ExpectAnyName() {
  if (current().kind != Token::Kind::kName) return Unexpected("a name");
  return Next().text;
}

Expression ExpressionParser::Make(Kind kind) const {
  Expression node;
  node.kind = kind;
  node.line = tokens_.current().line;
  return node;
}

Result ExpressionParser::Finish(Expression node) const {
  const auto include = [&](const ExpressionRef& part) {
    if (part != nullptr) node.depth = std::max(node.depth, part->depth + 1);
  };
  for (const ExpressionRef& part : node.parts) include(part);
  for (const ExpressionRef& part : node.arguments.positional) include(part);
  for (const auto& [name, part] : node.arguments.named) include(part);
  include(node.arguments.list);
  include(node.arguments.dict);
  if (node.depth > kMaxTreeDepth) {
    return ErrorAt(node.line, Concat("an expression is nested more than ", kMaxTreeDepth, " deep"));
  }
  return std::make_unique<const Expression>(std::move(node));
}

Result ExpressionParser::ParseTuple(bool with_conditional) {
  const auto at_end = [&] {
    const Token& token = tokens_.current();
    return token.kind == Token::Kind::kVariableEnd || token.kind == Token::Kind::kBlockEnd ||
           tokens_.SeesOperator(")");
  };
  Expression tuple = Make(Kind::kTuple);
  bool is_tuple = false;
  while (true) {
    if (!tuple.parts.empty() && at_end()) break;
    BATON_ASSIGN_OR_RETURN(ExpressionRef part, with_conditional ? ParseExpression() : ParseOr());
    tuple.parts.push_back(std::move(part));
    if (!tokens_.SkipOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) return std::move(tuple.parts[0]);
  return Finish(std::move(tuple));
}

Result ExpressionParser::ParseExpression() {
  if (++nesting_ > kMaxNesting) {
    return ErrorAt(tokens_.current().line,
                   Concat("brackets are nested more than ", kMaxNesting, " deep"));
  }
  Result expression = ParseConditional();
  --nesting_;
  return expression;
}

Result ExpressionParser::ParseConditional() {
  // The value stands before its condition: whether it may never be reached shows only then.
  const absl::Status outer = std::exchange(unknown_, absl::OkStatus());
  BATON_ASSIGN_OR_RETURN(ExpressionRef expression, ParseOr());
  while (tokens_.SeesName("if")) {
    Expression node = Make(Kind::kConditional);
    tokens_.Next();
    BATON_ASSIGN_OR_RETURN(ExpressionRef condition, ParseOr());
    ExpressionRef otherwise;
    if (tokens_.SkipName("else")) {
      BATON_ASSIGN_OR_RETURN(otherwise, ParseExpression());
    }
    node.parts.push_back(std::move(expression));
    node.parts.push_back(std::move(condition));
    node.parts.push_back(std::move(otherwise));
    BATON_ASSIGN_OR_RETURN(expression, Finish(std::move(node)));
    unknown_ = absl::OkStatus();
  }
  if (!outer.ok()) unknown_ = outer;
  return expression;
}

Result ExpressionParser::LeftToRight(Kind kind, Result (ExpressionParser::*operand)(),
                                     std::initializer_list<std::string_view> operators) {
  const Token::Kind spelled =
      kind == Kind::kArithmetic ? Token::Kind::kOperator : Token::Kind::kName;
  BATON_ASSIGN_OR_RETURN(ExpressionRef left, (this->*operand)());
  while (tokens_.current().kind == spelled &&
         std::find(operators.begin(), operators.end(), tokens_.current().text) != operators.end()) {
    Expression node = Make(kind);
    node.name = tokens_.Next().text;
    BATON_ASSIGN_OR_RETURN(ExpressionRef right, (this->*operand)());
    node.parts.push_back(std::move(left));
    node.parts.push_back(std::move(right));
    BATON_ASSIGN_OR_RETURN(left, Finish(std::move(node)));
  }
  return left;
}

Result ExpressionParser::ParseOr() {
  return LeftToRight(Kind::kOr, &ExpressionParser::ParseAnd, {"or"});
}

Result ExpressionParser::ParseAnd() {
  return LeftToRight(Kind::kAnd, &ExpressionParser::ParseNot, {"and"});
}

Result ExpressionParser::ParseNot() {
  if (!tokens_.SeesName("not")) return ParseCompare();
  Expression node = Make(Kind::kNot);
  tokens_.Next();
  if (++nesting_ > kMaxNesting) return tokens_.Unexpected("fewer operators before a value");
  BATON_ASSIGN_OR_RETURN(ExpressionRef part, ParseNot());
  --nesting_;
  node.parts.push_back(std::move(part));
  return Finish(std::move(node));
}

Result ExpressionParser::ParseCompare() {
  Expression node = Make(Kind::kCompare);
  BATON_ASSIGN_OR_RETURN(ExpressionRef first, ParseSum());
  node.parts.push_back(std::move(first));
  while (true) {
    const Token& token = tokens_.current();
    constexpr std::string_view kOrdering[] = {"==", "!=", "<", "<=", ">", ">="};
    if (token.kind == Token::Kind::kOperator &&
        std::find(std::begin(kOrdering), std::end(kOrdering), token.text) != std::end(kOrdering)) {
      node.operators.push_back(tokens_.Next().text);
    } else if (tokens_.SkipName("in")) {
      node.operators.emplace_back("in");
    } else if (tokens_.SeesName("not") && tokens_.ahead().Is(Token::Kind::kName, "in")) {
      tokens_.Next();
      tokens_.Next();
      node.operators.emplace_back("not in");
    } else {
      break;
    }
    BATON_ASSIGN_OR_RETURN(ExpressionRef part, ParseSum());
    node.parts.push_back(std::move(part));
  }
  if (node.operators.empty()) return std::move(node.parts[0]);
  return Finish(std::move(node));
}

Result ExpressionParser::ParseSum() {
  return LeftToRight(Kind::kArithmetic, &ExpressionParser::ParseConcat, {"+", "-"});
}

Result ExpressionParser::ParseConcat() {
  Expression node = Make(Kind::kConcat);
  do {
    BATON_ASSIGN_OR_RETURN(ExpressionRef part, ParseProduct());
    node.parts.push_back(std::move(part));
  } while (tokens_.SkipOperator("~"));
  if (node.parts.size() == 1) return std::move(node.parts[0]);
  return Finish(std::move(node));
}

Result ExpressionParser::ParseProduct() {
  return LeftToRight(Kind::kArithmetic, &ExpressionParser::ParsePower, {"*", "/", "//", "%"});
}

Result ExpressionParser::ParsePower() {
  return LeftToRight(Kind::kArithmetic, &ExpressionParser::ParseFiltered, {"**"});
}

Result ExpressionParser::ParseUnary(bool with_filters) {
  ExpressionRef node;
  if (tokens_.SeesOperator("-") || tokens_.SeesOperator("+")) {
    Expression sign = Make(tokens_.SeesOperator("-") ? Kind::kNegative : Kind::kPositive);
    tokens_.Next();
    if (++nesting_ > kMaxNesting) return tokens_.Unexpected("fewer signs before a number");
    BATON_ASSIGN_OR_RETURN(ExpressionRef part, ParseUnary(/*with_filters=*/false));
    --nesting_;
    sign.parts.push_back(std::move(part));
    BATON_ASSIGN_OR_RETURN(node, Finish(std::move(sign)));
  } else {
    BATON_ASSIGN_OR_RETURN(node, ParsePrimary());
  }
  BATON_ASSIGN_OR_RETURN(node, ParsePostfix(std::move(node)));
  return with_filters ? ParsePostfixFilters(std::move(node)) : std::move(node);
}

Result ExpressionParser::ParsePrimary() {
  const Token& token = tokens_.current();
  Expression node = Make(Kind::kLiteral);
  switch (token.kind) {
    case Token::Kind::kName:
      if (token.text == "true" || token.text == "True") {
        node.literal = Value::Bool(true);
      } else if (token.text == "false" || token.text == "False") {
        node.literal = Value::Bool(false);
      } else if (token.text == "none" || token.text == "None") {
        node.literal = Value::None();
      } else {
        node.kind = Kind::kName;
        node.name = token.text;
        special_.caller = special_.caller || token.text == "caller";
        special_.varargs = special_.varargs || token.text == "varargs";
        special_.kwargs = special_.kwargs || token.text == "kwargs";
      }
      tokens_.Next();
      return Finish(std::move(node));
    case Token::Kind::kString: {
      std::string text;
      while (tokens_.current().kind == Token::Kind::kString) text += tokens_.Next().text;
      node.literal = Value::String(text);
      return Finish(std::move(node));
    }
    case Token::Kind::kInteger:
      node.literal = Value::Int(tokens_.Next().integer);
      return Finish(std::move(node));
    case Token::Kind::kFloat:
      node.literal = Value::Float(tokens_.Next().number);
      return Finish(std::move(node));
    default:
      break;
  }
  if (tokens_.SeesOperator("(")) return ParseParentheses();
  if (tokens_.SeesOperator("[")) return ParseList();
  if (tokens_.SeesOperator("{")) return ParseDict();
  return tokens_.Unexpected("an expression");
}

Result ExpressionParser::ParseParentheses() {
  Expression empty = Make(Kind::kTuple);
  tokens_.Next();
  if (tokens_.SkipOperator(")")) return Finish(std::move(empty));
  BATON_ASSIGN_OR_RETURN(ExpressionRef node, ParseTuple());
  BATON_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
  return node;
}

Result ExpressionParser::ParseList() {
  Expression node = Make(Kind::kList);
  tokens_.Next();
  while (!tokens_.SeesOperator("]")) {
    if (!node.parts.empty()) BATON_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
    if (tokens_.SeesOperator("]")) break;
    BATON_ASSIGN_OR_RETURN(ExpressionRef part, ParseExpression());
    node.parts.push_back(std::move(part));
  }
  BATON_RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
  return Finish(std::move(node));
}

Result ExpressionParser::ParseDict() {
  Expression node = Make(Kind::kDict);
  tokens_.Next();
  while (!tokens_.SeesOperator("}")) {
    if (!node.parts.empty()) BATON_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
    if (tokens_.SeesOperator("}")) break;
    BATON_ASSIGN_OR_RETURN(ExpressionRef key, ParseExpression());
    BATON_RETURN_IF_ERROR(tokens_.ExpectOperator(":"));
    BATON_ASSIGN_OR_RETURN(ExpressionRef value, ParseExpression());
    node.parts.push_back(std::move(key));
    node.parts.push_back(std::move(value));
  }
  BATON_RETURN_IF_ERROR(tokens_.ExpectOperator("}"));
  return Finish(std::move(node));
}

}  // namespace baton::jinja
