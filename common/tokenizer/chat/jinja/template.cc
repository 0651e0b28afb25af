#include "common/tokenizer/chat/jinja/template.h"

#include <functional>

#include "common/base/status.h"
#include "common/tokenizer/chat/jinja/evaluator.h"
#include "common/tokenizer/chat/jinja/parser.h"

namespace baton::jinja {
namespace {

using Visit = std::function<bool(const Expression&)>;

bool AnyOf(const ExpressionRef& node, const Visit& wanted) {
  if (node == nullptr) return false;
  if (wanted(*node)) return true;
  const auto any = [&](const ExpressionRef& part) { return AnyOf(part, wanted); };
  for (const ExpressionRef& part : node->parts) {
    if (any(part)) return true;
  }
  for (const ExpressionRef& part : node->arguments.positional) {
    if (any(part)) return true;
  }
  for (const auto& [name, part] : node->arguments.named) {
    if (any(part)) return true;
  }
  return any(node->arguments.list) || any(node->arguments.dict);
}

bool AnyStatement(const std::vector<Statement>& body,
                  const std::function<bool(const Statement&)>& wanted) {
  for (const Statement& statement : body) {
    if (wanted(statement) || AnyStatement(statement.body, wanted) ||
        AnyStatement(statement.otherwise, wanted)) {
      return true;
    }
  }
  return false;
}

bool AnyExpression(const std::vector<Statement>& body, const Visit& wanted) {
  return AnyStatement(body, [&](const Statement& statement) {
    for (const auto& [target, value] : statement.assignments) {
      if (AnyOf(value, wanted)) return true;
    }
    return AnyOf(statement.value, wanted) || AnyOf(statement.condition, wanted);
  });
}

// message.content, message['content'], or a variable of that name.
bool IsContent(const Expression& node) {
  if (node.kind == Expression::Kind::kAttribute || node.kind == Expression::Kind::kName) {
    return node.name == "content";
  }
  return node.kind == Expression::Kind::kSubscript && node.parts[1]->literal.IsString() &&
         node.parts[1]->literal.str() == "content";
}

}  // namespace

absl::StatusOr<Template> Template::Parse(std::string_view source) {
  BATON_ASSIGN_OR_RETURN(std::vector<Statement> body, jinja::Parse(source));
  return Template(std::move(body));
}

absl::StatusOr<Text> Template::Render(const Dict& variables, const std::tm& now,
                                      const RenderLimits& limits) const {
  return Evaluator(variables, now, limits).Run(body_);
}

bool Template::VisitsContent() const {
  return AnyStatement(body_, [](const Statement& statement) {
    if (statement.kind != Statement::Kind::kFor) return false;
    const Expression* source = statement.value.get();
    while (source->kind == Expression::Kind::kFilter) source = source->parts[0].get();
    return IsContent(*source);
  });
}

bool Template::AsksForString() const {
  return AnyExpression(body_, [](const Expression& node) {
    return node.kind == Expression::Kind::kTest && node.name == "string";
  });
}

}  // namespace baton::jinja
