#include "common/engine/sampling/constraints.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"

namespace baton {

absl::StatusOr<grammar::Source> SourceOf(const v1::TextStructure& structure) {
  grammar::Source source;
  switch (structure.kind_case()) {
    case v1::TextStructure::kJsonSchema:
      source.kind = grammar::Source::Kind::kJsonSchema;
      source.text = structure.json_schema();
      break;
    case v1::TextStructure::kRegex:
      source.kind = grammar::Source::Kind::kRegex;
      source.text = structure.regex();
      break;
    case v1::TextStructure::kEbnf:
      source.kind = grammar::Source::Kind::kEbnf;
      source.text = structure.ebnf();
      break;
    case v1::TextStructure::kChoice:
      source.kind = grammar::Source::Kind::kChoice;
      source.choices.assign(structure.choice().texts().begin(), structure.choice().texts().end());
      break;
    case v1::TextStructure::KIND_NOT_SET:
      if (!structure.has_reasoning_budget()) {
        return absl::InvalidArgumentError("has neither a schema nor a grammar");
      }
      source.kind = grammar::Source::Kind::kAnything;
      break;
  }
  if (structure.reasoning_budget() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("reasoning_budget must not be negative, is ", structure.reasoning_budget()));
  }
  if (structure.has_reasoning_budget() && structure.reasoning_end().empty()) {
    return absl::InvalidArgumentError("reasoning_budget needs the marks of reasoning");
  }
  if (structure.reasoning_begin().empty() != structure.reasoning_end().empty()) {
    return absl::InvalidArgumentError("has one of the marks of reasoning, not both");
  }
  source.reasoning_begin = structure.reasoning_begin();
  source.reasoning_end = structure.reasoning_end();
  source.in_reasoning = structure.in_reasoning();
  return source;
}

bool PendingConstraint::ready() const {
  MutexLock lock(&mutex_);
  return is_set_;
}

PendingConstraint::Result PendingConstraint::Await() const {
  MutexLock lock(&mutex_);
  mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return is_set_; });
  return result_;
}

void PendingConstraint::Set(Result result) {
  MutexLock lock(&mutex_);
  result_ = std::move(result);
  is_set_ = true;
}

Constraints::Constraints(std::function<absl::StatusOr<Vocabulary>()> load)
    : load_(std::move(load)), thread_([this] { Run(); }) {}

Constraints::~Constraints() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
  for (const Job& job : jobs_) job.result->Set(absl::CancelledError("the process is stopping"));
}

absl::StatusOr<std::shared_ptr<const PendingConstraint>> Constraints::Find(
    const v1::TextStructure& structure) {
  BATON_ASSIGN_OR_RETURN(grammar::Source source, SourceOf(structure));
  v1::TextStructure shared = structure;
  if (structure.has_reasoning_budget()) shared.set_reasoning_budget(0);
  std::string key = shared.SerializeAsString();
  MutexLock lock(&mutex_);
  if (const auto it = by_key_.find(key); it != by_key_.end()) {
    kept_.splice(kept_.begin(), kept_, it->second);
    return it->second->constraint;
  }
  if (jobs_.size() >= kMaxWaiting) {
    return absl::ResourceExhaustedError("too many grammars wait to be compiled; try again later");
  }
  const auto pending = std::make_shared<PendingConstraint>();
  jobs_.push_back({std::move(source), structure.has_reasoning_budget(), pending});
  kept_.push_front({key, pending});
  by_key_[std::move(key)] = kept_.begin();
  DropUnused();
  return pending;
}

// Not what requests use: one whose structure is compiled would wait for it again.
void Constraints::DropUnused() {
  for (auto kept = kept_.end(); kept_.size() > kMaxKept && kept != kept_.begin();) {
    --kept;
    if (kept->constraint.use_count() > 1) continue;  // If 1: only this hands it out, with the lock.
    by_key_.erase(kept->key);
    kept = kept_.erase(kept);
  }
}

void Constraints::Run() {
  vocabulary_ = load_();
  while (true) {
    Job job;
    {
      MutexLock lock(&mutex_);
      mutex_.Await(
          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job.result->Set(Compile(job));
  }
}

PendingConstraint::Result Constraints::Compile(const Job& job) {
  if (!vocabulary_.ok()) return vocabulary_.status();
  BATON_RETURN_IF_ERROR(Failpoint("structure.compile"));
  auto rules = std::make_shared<TextRules>();
  rules->vocabulary = *vocabulary_;
  rules->source = job.source;
  if (job.source.kind != grammar::Source::Kind::kAnything) {
    BATON_ASSIGN_OR_RETURN(grammar::Automaton automaton, grammar::Compile(job.source));
    auto text = std::make_shared<grammar::Constraint>(std::move(automaton), *vocabulary_);
    text->Prepare();
    rules->text = std::move(text);
  }
  if (job.closes) {
    BATON_ASSIGN_OR_RETURN(grammar::Automaton automaton, grammar::CompileClosing(job.source));
    rules->closing = std::make_shared<grammar::Constraint>(std::move(automaton), *vocabulary_);
  }
  return rules;
}

}  // namespace baton
