// What must be true of a chain's wiring after every event, for tests.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/links/core/wiring_state.h"

namespace baton::links {

absl::Status Wiring::CheckInvariants() const {
  const State& state = *state_;
  const auto others = static_cast<size_t>(state.options.place.members() - 1);
  if (state.links.size() != (state.wired() ? others : 0)) {
    return absl::InternalError(
        absl::StrCat("a chain of ", others, " other members has ", state.links.size(), " links"));
  }
  const bool all_ready =
      state.own_ready && std::all_of(state.links.begin(), state.links.end(),
                                     [](const wiring_internal::Link& link) { return link.ready; });
  if (state.wired() && all_ready != (state.phase == wiring_internal::Phase::kUp)) {
    return absl::InternalError("a chain is up without every stage, or down with all");
  }
  return absl::OkStatus();
}

}  // namespace baton::links
