// Runs a parsed template.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_EVALUATOR_H_
#define COMMON_TOKENIZER_CHAT_JINJA_EVALUATOR_H_

#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/chat/jinja/ast.h"
#include "common/tokenizer/chat/jinja/budget.h"
#include "common/tokenizer/chat/jinja/value.h"

namespace baton::jinja {

// One rendering; not to be used again. Single-threaded.
class Evaluator {
 public:
  // `now`: what strftime_now shows. Both outlive it.
  Evaluator(const Dict& variables, const std::tm& now, const RenderLimits& limits)
      : variables_(variables), now_(now), budget_(limits) {}

  // InvalidArgument, with the line, for what the template can't do with these variables and for a
  // limit that is passed; without a line for what it says itself by raise_exception.
  absl::StatusOr<Text> Run(const std::vector<Statement>& body);

  // For filters, tests, methods and functions:
  Budget& budget() { return budget_; }
  const std::tm& now() const { return now_; }
  absl::StatusOr<Value> Call(const Value& callee, const Arguments& arguments);
  absl::StatusOr<Value> ApplyFilter(const std::string& name, const Value& input,
                                    const Arguments& arguments);
  absl::StatusOr<bool> ApplyTest(const std::string& name, const Value& input,
                                 const Arguments& arguments);
  // object.name and object[key]; what isn't there is undefined.
  absl::StatusOr<Value> Attribute(const Value& object, const std::string& name);
  absl::StatusOr<Value> Item(const Value& object, const Value& key);
  Namespace* NewNamespace();
  // raise_exception(message).
  absl::Status Raise(std::string_view message);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // The variables of a block. A macro refers to the scope that it was defined in, which is then
  // kept to the end of the rendering.
  struct Scope {
    Scope* parent = nullptr;
    bool kept = false;
    std::vector<std::pair<std::string, Value>> variables;
  };
  // Makes a scope the current one for a while.
  class InScope;
  class Deeper;

  absl::StatusOr<Flow> Execute(const std::vector<Statement>& body, Text* out);
  absl::StatusOr<Flow> ExecuteOne(const Statement& statement, Text* out);
  absl::StatusOr<Flow> ExecuteFor(const Statement& statement, Text* out);
  absl::StatusOr<std::shared_ptr<const List>> LoopItems(const Statement& statement);
  absl::StatusOr<Flow> ExecuteSetBlock(const Statement& statement);
  absl::StatusOr<Flow> ExecuteWith(const Statement& statement, Text* out);
  absl::StatusOr<Flow> ExecuteCallBlock(const Statement& statement, Text* out);
  absl::StatusOr<Flow> ExecuteFilterBlock(const Statement& statement, Text* out);
  absl::Status Output(const Value& value, Text* out);
  absl::Status CheckOutput(const Text& out) const;
  absl::Status Assign(const Expression& target, const Value& value);
  void SetVariable(const std::string& name, Value value);

  Value MakeMacro(const Statement& statement);
  absl::StatusOr<Value> CallMacro(const Statement& macro, Scope* scope, const Arguments& arguments);
  absl::Status BindParameters(const Statement& macro, const Arguments& arguments);

  absl::StatusOr<Value> Evaluate(const Expression& node);
  absl::StatusOr<Value> EvaluateNode(const Expression& node);
  absl::StatusOr<List> EvaluateAll(const std::vector<ExpressionRef>& nodes);
  absl::StatusOr<Value> EvaluateDict(const Expression& node);
  absl::StatusOr<Value> EvaluateSlice(const Expression& node);
  absl::StatusOr<Value> EvaluateCall(const Expression& node);
  absl::StatusOr<Value> EvaluateFilter(const Expression& node, const Value& input);
  absl::StatusOr<Value> EvaluateFilters(const Expression& node, const Value& input);
  absl::StatusOr<Value> EvaluateTest(const Expression& node);
  absl::StatusOr<Value> EvaluateCompare(const Expression& node);
  absl::StatusOr<Value> EvaluateConcat(const Expression& node);
  absl::StatusOr<Value> EvaluateConditional(const Expression& node);
  absl::StatusOr<Arguments> EvaluateArguments(const CallArguments& arguments);
  Value Variable(const std::string& name) const;

  const Dict& variables_;
  const std::tm& now_;
  Budget budget_;
  Scope root_;
  Scope* scope_ = &root_;
  std::vector<std::unique_ptr<Scope>> kept_scopes_;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  int depth_ = 0;
  int line_ = 0;
  bool raised_ = false;
};

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_EVALUATOR_H_
