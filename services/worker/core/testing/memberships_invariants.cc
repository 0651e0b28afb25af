// What must be true of a worker's memberships after every event, and what else tests ask of them.
#include <cstdint>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "services/worker/core/memberships.h"

namespace baton::worker {

absl::Status Memberships::CheckInvariants() const {
  if (static_cast<int>(routers_.size()) > kMaxRouters) {
    return absl::InternalError(absl::StrCat(routers_.size(), " routers are followed"));
  }
  std::set<uint64_t> lives;
  for (const auto& [id, router] : routers_) {
    if (router.state() != RouterMembership::State::kMember) continue;
    if (!lives.insert(router.incarnation()).second) {
      return absl::InternalError(absl::StrCat("two memberships at one router, ", router.address()));
    }
  }
  return absl::OkStatus();
}

std::map<InstanceRef, PeerEndpoint> Endpoints::Standing() const {
  std::map<InstanceRef, PeerEndpoint> standing;
  for (const auto& [peer, entry] : entries_) {
    if (entry.state == Entry::State::kStanding) standing.emplace(peer, entry.endpoint);
  }
  return standing;
}

}  // namespace baton::worker
