#include "services/router/structure_check.h"

#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/engine/sampling/constraints.h"
#include "common/grammar/compile.h"

namespace baton::router {
namespace {

// Without the name of its kind: the field says it.
absl::Status Compiled(const v1::TextStructure& structure) {
  BATON_ASSIGN_OR_RETURN(const grammar::Source source, SourceOf(structure));
  // A bound of reasoning alone says nothing of the text behind it.
  const bool bound_alone = source.kind == grammar::Source::Kind::kAnything;
  const absl::Status status =
      (bound_alone ? grammar::CompileClosing(source) : grammar::Compile(source)).status();
  if (status.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StripPrefix(status.message(), Concat(grammar::NameOf(source.kind), ": ")));
}

}  // namespace

bool StructureCheck::Knows(const std::string& key) {
  MutexLock lock(&mutex_);
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return false;
  kept_.splice(kept_.begin(), kept_, it->second);
  return true;
}

void StructureCheck::Keep(std::string key) {
  MutexLock lock(&mutex_);
  kept_.push_front(key);
  by_key_[std::move(key)] = kept_.begin();
  if (kept_.size() <= kMaxKept) return;
  by_key_.erase(kept_.back());
  kept_.pop_back();
}

absl::Status StructureCheck::Check(const v1::TextStructure& structure, const std::string& field) {
  std::string key = structure.SerializeAsString();
  if (Knows(key)) return absl::OkStatus();
  MutexLock lock(&compiling_);
  if (Knows(key)) return absl::OkStatus();  // It was compiled meanwhile.
  if (absl::Status status = Compiled(structure); !status.ok()) {
    return InvalidField(field, std::string(status.message()));
  }
  Keep(std::move(key));
  return absl::OkStatus();
}

}  // namespace baton::router
