#include "common/tokenizer/chat/jinja/parser.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/jinja/expression_parser.h"
#include "common/tokenizer/chat/jinja/lexer.h"

namespace baton::jinja {
namespace {

using Kind = Statement::Kind;

constexpr int kMaxStatementDepth = 100;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)), expressions_(tokens_) {}

  absl::StatusOr<std::vector<Statement>> Run() {
    std::vector<Statement> body;
    BATON_RETURN_IF_ERROR(ParseBody({}, &body).status());
    return body;
  }

 private:
  // Statements up to a tag whose name is one of `ends`; the name, whose tag is open still.
  absl::StatusOr<std::string> ParseBody(std::initializer_list<std::string_view> ends,
                                        std::vector<Statement>* body);
  absl::Status ParseBodyTo(std::string_view end, std::vector<Statement>* body);
  absl::StatusOr<Statement> ParseStatement();
  absl::StatusOr<Statement> ParseIf(Statement statement);
  absl::StatusOr<Statement> ParseFor(Statement statement);
  absl::StatusOr<Statement> ParseSet(Statement statement);
  absl::StatusOr<Statement> ParseMacro(Statement statement);
  absl::StatusOr<Statement> ParseCallBlock(Statement statement);
  absl::StatusOr<Statement> ParseFilterBlock(Statement statement);
  absl::StatusOr<Statement> ParseWith(Statement statement);
  absl::StatusOr<Statement> ParseLoopControl(Statement statement, Kind kind);
  absl::Status ParseParameters(Statement* statement);
  // The body of a macro or a call, where loops of the outside don't count.
  absl::Status ParseMacroBody(std::string_view end, Statement* statement);
  absl::Status EndTag() { return tokens_.Expect(Token::Kind::kBlockEnd, "%}"); }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int depth_ = 0;
  int loops_ = 0;
};

absl::StatusOr<std::string> Parser::ParseBody(std::initializer_list<std::string_view> ends,
                                              std::vector<Statement>* body) {
  if (++depth_ > kMaxStatementDepth) {
    return ErrorAt(tokens_.current().line,
                   Concat("statements are nested more than ", kMaxStatementDepth, " deep"));
  }
  while (tokens_.current().kind != Token::Kind::kEnd) {
    const Token& token = tokens_.Next();
    Statement statement;
    statement.line = token.line;
    if (token.kind == Token::Kind::kText) {
      statement.text = Text(token.text);
    } else if (token.kind == Token::Kind::kVariableBegin) {
      statement.kind = Kind::kOutput;
      BATON_ASSIGN_OR_RETURN(statement.value, expressions_.ParseTuple());
      BATON_RETURN_IF_ERROR(tokens_.Expect(Token::Kind::kVariableEnd, "}}"));
    } else {
      if (tokens_.current().kind != Token::Kind::kName) return tokens_.Unexpected("a tag's name");
      const std::string& name = tokens_.current().text;
      if (std::find(ends.begin(), ends.end(), name) != ends.end()) {
        --depth_;
        return tokens_.Next().text;
      }
      BATON_ASSIGN_OR_RETURN(statement, ParseStatement());
    }
    BATON_RETURN_IF_ERROR(expressions_.unknown());
    body->push_back(std::move(statement));
  }
  if (ends.size() > 0) return tokens_.Unexpected(Concat("the tag ", *std::prev(ends.end())));
  --depth_;
  return std::string();
}

absl::Status Parser::ParseBodyTo(std::string_view end, std::vector<Statement>* body) {
  BATON_RETURN_IF_ERROR(EndTag());
  BATON_RETURN_IF_ERROR(ParseBody({end}, body).status());
  return EndTag();
}

absl::StatusOr<Statement> Parser::ParseStatement() {
  Statement statement;
  statement.line = tokens_.current().line;
  const std::string tag = tokens_.Next().text;
  if (tag == "if") return ParseIf(std::move(statement));
  if (tag == "for") return ParseFor(std::move(statement));
  if (tag == "set") return ParseSet(std::move(statement));
  if (tag == "macro") return ParseMacro(std::move(statement));
  if (tag == "call") return ParseCallBlock(std::move(statement));
  if (tag == "filter") return ParseFilterBlock(std::move(statement));
  if (tag == "with") return ParseWith(std::move(statement));
  if (tag == "break") return ParseLoopControl(std::move(statement), Kind::kBreak);
  if (tag == "continue") return ParseLoopControl(std::move(statement), Kind::kContinue);
  if (tag == "generation") {
    // It marks what an assistant wrote, for training; the text is the same.
    statement.kind = Kind::kScope;
    BATON_RETURN_IF_ERROR(ParseMacroBody("endgeneration", &statement));
    return statement;
  }
  for (const std::string_view known :
       {"include", "import", "from", "extends", "block", "autoescape", "do", "trans", "debug"}) {
    if (tag == known) {
      return ErrorAt(statement.line, Concat("'", tag, "' is not supported in a chat template"));
    }
  }
  return ErrorAt(statement.line, Concat("there is no tag named '", tag, "' here"));
}

absl::StatusOr<Statement> Parser::ParseIf(Statement statement) {
  statement.kind = Kind::kIf;
  expressions_.EnterBranch();
  BATON_ASSIGN_OR_RETURN(statement.value, expressions_.ParseTuple(/*with_conditional=*/false));
  BATON_RETURN_IF_ERROR(EndTag());
  std::string end;
  BATON_ASSIGN_OR_RETURN(end, ParseBody({"elif", "else", "endif"}, &statement.body));
  if (end == "elif") {
    ++depth_;  // The branches stand within each other; ParseBody bounds them.
    Statement branch;
    branch.line = tokens_.current().line;
    BATON_ASSIGN_OR_RETURN(branch, ParseIf(std::move(branch)));
    statement.otherwise.push_back(std::move(branch));
    --depth_;
  } else if (end == "else") {
    BATON_RETURN_IF_ERROR(ParseBodyTo("endif", &statement.otherwise));
  } else {
    BATON_RETURN_IF_ERROR(EndTag());
  }
  expressions_.LeaveBranch();
  return statement;
}

absl::StatusOr<Statement> Parser::ParseFor(Statement statement) {
  statement.kind = Kind::kFor;
  BATON_ASSIGN_OR_RETURN(statement.target, expressions_.ParseTarget(/*with_attribute=*/false));
  BATON_RETURN_IF_ERROR(tokens_.ExpectName("in"));
  BATON_ASSIGN_OR_RETURN(statement.value, expressions_.ParseLoopSource());
  if (tokens_.SkipName("if")) {
    BATON_ASSIGN_OR_RETURN(statement.condition, expressions_.ParseExpression());
  }
  if (tokens_.SeesName("recursive")) {
    return ErrorAt(statement.line, "recursive loops are not supported; use a macro");
  }
  BATON_RETURN_IF_ERROR(EndTag());
  ++loops_;
  std::string end;
  BATON_ASSIGN_OR_RETURN(end, ParseBody({"else", "endfor"}, &statement.body));
  --loops_;
  if (end == "else") {
    BATON_RETURN_IF_ERROR(ParseBodyTo("endfor", &statement.otherwise));
  } else {
    BATON_RETURN_IF_ERROR(EndTag());
  }
  return statement;
}

absl::StatusOr<Statement> Parser::ParseSet(Statement statement) {
  statement.kind = Kind::kSet;
  BATON_ASSIGN_OR_RETURN(statement.target, expressions_.ParseTarget(/*with_attribute=*/true));
  if (tokens_.SkipOperator("=")) {
    BATON_ASSIGN_OR_RETURN(statement.value, expressions_.ParseTuple());
    BATON_RETURN_IF_ERROR(EndTag());
    return statement;
  }
  statement.kind = Kind::kSetBlock;
  if (tokens_.SkipOperator("|")) {
    BATON_ASSIGN_OR_RETURN(statement.value, expressions_.ParseFilters(nullptr));
  }
  BATON_RETURN_IF_ERROR(ParseBodyTo("endset", &statement.body));
  return statement;
}

absl::Status Parser::ParseParameters(Statement* statement) {
  BATON_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
  while (!tokens_.SeesOperator(")")) {
    if (!statement->parameters.empty()) BATON_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
    Parameter parameter;
    BATON_ASSIGN_OR_RETURN(parameter.name, tokens_.ExpectAnyName());
    if (tokens_.SkipOperator("=")) {
      BATON_ASSIGN_OR_RETURN(parameter.otherwise, expressions_.ParseExpression());
    } else if (!statement->parameters.empty() &&
               statement->parameters.back().otherwise != nullptr) {
      return tokens_.Unexpected("a default, as the parameter before has one");
    }
    statement->parameters.push_back(std::move(parameter));
  }
  return tokens_.ExpectOperator(")");
}

absl::Status Parser::ParseMacroBody(std::string_view end, Statement* statement) {
  const int loops = std::exchange(loops_, 0);
  const auto outer = expressions_.ExchangeSpecialNames({});
  BATON_RETURN_IF_ERROR(ParseBodyTo(end, &statement->body));
  const auto names = expressions_.ExchangeSpecialNames(outer);
  statement->uses_caller = names.caller;
  statement->uses_varargs = names.varargs;
  statement->uses_kwargs = names.kwargs;
  loops_ = loops;
  return absl::OkStatus();
}

absl::StatusOr<Statement> Parser::ParseMacro(Statement statement) {
  statement.kind = Kind::kMacro;
  BATON_ASSIGN_OR_RETURN(statement.name, tokens_.ExpectAnyName());
  BATON_RETURN_IF_ERROR(ParseParameters(&statement));
  BATON_RETURN_IF_ERROR(ParseMacroBody("endmacro", &statement));
  return statement;
}

absl::StatusOr<Statement> Parser::ParseCallBlock(Statement statement) {
  statement.kind = Kind::kCallBlock;
  statement.name = "caller";
  if (tokens_.SeesOperator("(")) BATON_RETURN_IF_ERROR(ParseParameters(&statement));
  BATON_ASSIGN_OR_RETURN(statement.value, expressions_.ParseCall());
  BATON_RETURN_IF_ERROR(ParseMacroBody("endcall", &statement));
  return statement;
}

absl::StatusOr<Statement> Parser::ParseFilterBlock(Statement statement) {
  statement.kind = Kind::kFilterBlock;
  BATON_ASSIGN_OR_RETURN(statement.value, expressions_.ParseFilters(nullptr));
  BATON_RETURN_IF_ERROR(ParseMacroBody("endfilter", &statement));
  return statement;
}

absl::StatusOr<Statement> Parser::ParseWith(Statement statement) {
  statement.kind = Kind::kWith;
  while (tokens_.current().kind != Token::Kind::kBlockEnd) {
    if (!statement.assignments.empty()) BATON_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
    BATON_ASSIGN_OR_RETURN(ExpressionRef target,
                           expressions_.ParseTarget(/*with_attribute=*/false));
    BATON_RETURN_IF_ERROR(tokens_.ExpectOperator("="));
    BATON_ASSIGN_OR_RETURN(ExpressionRef value, expressions_.ParseExpression());
    statement.assignments.emplace_back(std::move(target), std::move(value));
  }
  BATON_RETURN_IF_ERROR(ParseBodyTo("endwith", &statement.body));
  return statement;
}

absl::StatusOr<Statement> Parser::ParseLoopControl(Statement statement, Kind kind) {
  if (loops_ == 0) return ErrorAt(statement.line, "'break' and 'continue' belong into a loop");
  statement.kind = kind;
  BATON_RETURN_IF_ERROR(EndTag());
  return statement;
}

}  // namespace

absl::StatusOr<std::vector<Statement>> Parse(std::string_view source) {
  BATON_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace baton::jinja
