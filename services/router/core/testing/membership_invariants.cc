// What must be true of the members after every event, and what else tests ask of them.
#include <string>
#include <vector>

#include "services/router/core/fit.h"
#include "services/router/core/membership.h"

namespace baton::router {

absl::Status Membership::CheckInvariants() const {
  for (const auto& [id, member] : workers_) {
    if (applicants_.contains(id) && applicants_.at(id).info.instance == member.info.instance) {
      return absl::InternalError(id + " is a member and refused");
    }
    for (const auto& [other_id, other] : workers_) {
      if (other_id <= id || member.draining || other.draining) continue;
      if (absl::Status misfit = CheckFit(member.info, other.info); !misfit.ok()) {
        return absl::InternalError("members don't fit: " + std::string(misfit.message()));
      }
    }
  }
  return absl::OkStatus();
}

std::vector<Pair> Membership::ReadyPairs() const {
  Refresh();
  return roster_.Pairs();
}

}  // namespace baton::router
