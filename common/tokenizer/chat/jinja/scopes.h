// How the evaluator enters and leaves scopes and depth.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_SCOPES_H_
#define COMMON_TOKENIZER_CHAT_JINJA_SCOPES_H_

#include <memory>
#include <utility>

#include "common/tokenizer/chat/jinja/evaluator.h"

namespace baton::jinja {

class Evaluator::InScope {
 public:
  explicit InScope(Evaluator* evaluator) : InScope(evaluator, evaluator->scope_) {}
  // Variables that are not in the new scope are looked for in `parent`.
  InScope(Evaluator* evaluator, Scope* parent)
      : evaluator_(evaluator),
        before_(evaluator->scope_),
        scope_(std::make_unique<Scope>(Scope{parent, false, {}})) {
    evaluator_->scope_ = scope_.get();
  }
  ~InScope() {
    evaluator_->scope_ = before_;
    if (scope_->kept) evaluator_->kept_scopes_.push_back(std::move(scope_));
  }
  InScope(const InScope&) = delete;
  InScope& operator=(const InScope&) = delete;

 private:
  Evaluator* const evaluator_;
  Scope* const before_;
  std::unique_ptr<Scope> scope_;
};

class Evaluator::Deeper {
 public:
  explicit Deeper(int* depth) : depth_(depth) { ++*depth_; }
  ~Deeper() { --*depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  int* const depth_;
};

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_SCOPES_H_
