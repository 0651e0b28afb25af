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
  const absl::Status status = grammar::Compile(source).status();
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StripPrefix(status.message(), Concat(grammar::NameOf(source.kind), ": ")));
}

}  // namespace

absl::Status StructureCheck::Check(const v1::TextStructure& structure, const std::string& field) {
  const auto named = [&](const absl::Status& status) {
    return status.ok() ? status : InvalidField(field, std::string(status.message()));
  };
  std::string key = structure.SerializeAsString();
  MutexLock lock(&mutex_);
  if (const auto it = by_key_.find(key); it != by_key_.end()) {
    kept_.splice(kept_.begin(), kept_, it->second);
    return named(it->second->second);
  }
  const absl::Status status = Compiled(structure);
  if (!status.ok()) return named(status);  // Hostile ones are large, and need not be kept.
  kept_.emplace_front(key, status);
  by_key_[std::move(key)] = kept_.begin();
  if (kept_.size() > kMaxKept) {
    by_key_.erase(kept_.back().first);
    kept_.pop_back();
  }
  return status;
}

}  // namespace baton::router
