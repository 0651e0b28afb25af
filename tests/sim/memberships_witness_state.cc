// What a worker says of its memberships, and until when it sleeps (memberships_witness.h).
#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/memberships_witness.h"

namespace baton::sim {

void MembershipsWitness::CheckState(const worker::Memberships& core) {
  int joined = 0;
  int refusing = 0;
  worker::DrainNews news;
  bool left = leaves_;
  for (const auto& [id, router] : routers_) {
    joined += router.answers() ? 1 : 0;
    refusing += router.failures == 0 && router.refused ? 1 : 0;
    left = left && (router.left || !router.answers());
    if (router.state != State::kMember || router.failures > 1) continue;
    news.untold_routers += router.told_of_drain ? 0 : 1;
    news.needed_requests += router.told_of_drain ? router.needed : 0;
  }
  const worker::DrainNews told = core.drain_news();
  if (core.routers_joined() != joined || core.routers_refusing() != refusing ||
      core.left() != left || core.unregistered().has_value() != (joined == 0) ||
      told.untold_routers != news.untold_routers || told.needed_requests != news.needed_requests) {
    Complain("says of itself what is not so");
  }
  const std::optional<worker::Unregistered> says = core.unregistered();
  if (says.has_value() && !routers_.empty() && !SaysWhyItHasNotJoined(*says)) {
    Complain("says wrongly why it has not joined: " + says->why);
  }
  if (core.NextDeadlineUs(world_.now_us()) > NextUs()) Complain("sleeps beyond what is due");
  const auto standing = core.endpoints().Standing();
  for (const auto& [peer, wish] : wishes_) {
    const auto found = standing.find(peer);
    const uint64_t endpoint = found == standing.end() ? 0 : found->second.endpoint;
    if (endpoint != wish.endpoint) Complain("has another endpoint than it was told of");
  }
}

// Names a router that refuses it, if any; else none has answered since the longest silence began.
bool MembershipsWitness::SaysWhyItHasNotJoined(const worker::Unregistered& says) const {
  int64_t silent_us = kNeverUs;
  bool refused = false;
  for (const auto& [id, router] : routers_) {
    silent_us = std::min(silent_us, router.heard_us);
    if (router.failures > 0 || !router.refused) continue;
    refused = true;
    if (absl::StrContains(says.why, router.address) && absl::StrContains(says.why, "refuses") &&
        says.since_us == router.refused_us) {
      return true;
    }
  }
  return !refused && absl::StrContains(says.why, "no answer") && says.since_us == silent_us;
}

int64_t MembershipsWitness::NextUs() const {
  int64_t next_us = resolving_ ? kNeverUs : name_due_us_;
  for (const auto& [address, until_us] : announced_) next_us = std::min(next_us, until_us);
  for (const auto& [id, router] : routers_) {
    next_us = std::min(next_us, router.next_us());
  }
  for (const auto& [peer, wish] : wishes_) {
    if (wish.retry_us > 0) next_us = std::min(next_us, wish.retry_us);
    if (wish.again_us > 0) next_us = std::min(next_us, wish.again_us);
  }
  return next_us;
}

}  // namespace baton::sim
