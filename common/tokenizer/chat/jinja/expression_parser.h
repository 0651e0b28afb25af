// The part of the parser that reads expressions.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_EXPRESSION_PARSER_H_
#define COMMON_TOKENIZER_CHAT_JINJA_EXPRESSION_PARSER_H_

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/chat/jinja/ast.h"
#include "common/tokenizer/chat/jinja/lexer.h"

namespace baton::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& Next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }

  bool SeesOperator(std::string_view op) const { return current().Is(Token::Kind::kOperator, op); }
  bool SeesName(std::string_view name) const { return current().Is(Token::Kind::kName, name); }
  bool SkipOperator(std::string_view op) { return SeesOperator(op) && (Next(), true); }
  bool SkipName(std::string_view name) { return SeesName(name) && (Next(), true); }
  absl::Status ExpectOperator(std::string_view op);
  absl::Status ExpectName(std::string_view name);
  absl::Status Expect(Token::Kind kind, std::string_view what);
  absl::StatusOr<std::string> ExpectAnyName();
  absl::Status Unexpected(std::string_view wanted) const;

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

class ExpressionParser {
 public:
  using Result = absl::StatusOr<ExpressionRef>;

  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  // One expression; with a comma behind it a tuple of several.
  Result ParseTuple(bool with_conditional = true);
  Result ParseExpression();
  // Without `a if b else c`, whose `if` belongs to the loop.
  Result ParseLoopSource() { return ParseTuple(/*with_conditional=*/false); }
  // What can be assigned to: a name, an attribute of a name, several of them.
  Result ParseTarget(bool with_attribute);
  // Names of filters with arguments, the first without a bar before it; `input` may be null.
  Result ParseFilters(ExpressionRef input);
  Result ParseCall();  // An expression that has to be a call.

  // InvalidArgument once a filter or a test has no known name and will be come to, since it stands
  // neither in a branch of an `if` nor beside one.
  const absl::Status& unknown() const { return unknown_; }
  void EnterBranch() { ++branches_; }
  void LeaveBranch() { --branches_; }

  // Whether `caller`, `varargs` and `kwargs` were named since the last exchange.
  struct SpecialNames {
    bool caller = false;
    bool varargs = false;
    bool kwargs = false;
  };
  SpecialNames ExchangeSpecialNames(SpecialNames names) { return std::exchange(special_, names); }

 private:
  Result ParseConditional();
  Result ParseOr();
  Result ParseAnd();
  Result ParseNot();
  Result ParseCompare();
  Result ParseSum();
  Result ParseConcat();
  Result ParseProduct();
  Result ParsePower();
  Result ParseFiltered() { return ParseUnary(/*with_filters=*/true); }
  Result ParseUnary(bool with_filters);
  Result ParsePrimary();
  Result ParseList();
  Result ParseDict();
  Result ParsePostfix(ExpressionRef node);
  Result ParsePostfixFilters(ExpressionRef node);
  Result ParseAttribute(ExpressionRef node);
  Result ParseSubscript(ExpressionRef node);
  Result ParseOneFilter(ExpressionRef input);
  Result ParseTest(ExpressionRef node);
  Result ParseInvocation(ExpressionRef callee);
  absl::StatusOr<CallArguments> ParseArguments();
  Result ParseTargetPart(bool with_attribute);
  Result ParseParentheses();
  Result LeftToRight(Expression::Kind kind, Result (ExpressionParser::*operand)(),
                     std::initializer_list<std::string_view> operators);
  void NoteName(std::string_view what, bool known, const std::string& name, int line);

  // Sets the node's depth, which is bounded.
  Result Finish(Expression node) const;
  Expression Make(Expression::Kind kind) const;

  TokenStream& tokens_;
  int nesting_ = 0;
  int branches_ = 0;
  absl::Status unknown_;
  static constexpr int kMaxTargetNesting = 32;
  SpecialNames special_;
};

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_EXPRESSION_PARSER_H_
