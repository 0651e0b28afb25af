// What must be true of a chain's wiring after every event, for tests.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/links/core/wiring.h"

namespace baton::links {

absl::Status Wiring::CheckInvariants() const {
  const auto others = static_cast<size_t>(options_.place.members() - 1);
  if (links_.size() != (wired() ? others : 0)) {
    return absl::InternalError(
        absl::StrCat("a chain of ", others, " other members has ", links_.size(), " links"));
  }
  const bool all_ready = own_ready_ && std::all_of(links_.begin(), links_.end(),
                                                   [](const Link& link) { return link.ready; });
  if (wired() && all_ready != (phase_ == Phase::kUp)) {
    return absl::InternalError("a chain is up without every stage, or down with all");
  }
  return absl::OkStatus();
}

}  // namespace baton::links
