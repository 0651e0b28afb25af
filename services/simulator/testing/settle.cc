// Whether a simulated cluster comes to rest, for tests.
#include <cstdint>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "services/simulator/simulated_cluster.h"

namespace baton::simulator {
namespace {

constexpr int64_t kSettlesUs = 60'000'000;

}  // namespace

absl::Status SimulatedChain::CheckAtRest() const {
  BATON_RETURN_IF_ERROR(planner_.CheckInvariants());
  bool at_rest = planner_.AtRest();
  for (const auto& place : places_) {
    BATON_RETURN_IF_ERROR(place->core.CheckInvariants());
    at_rest = at_rest && place->core.AtRest();
  }
  return at_rest ? absl::OkStatus() : absl::InternalError("a chain holds something");
}

absl::Status SimulatedDecode::CheckAtRest() const {
  BATON_RETURN_IF_ERROR(chain_.CheckAtRest());
  bool at_rest = book_.empty();
  for (const Member& member : members_) at_rest = at_rest && member.grants.empty();
  return at_rest ? absl::OkStatus() : absl::InternalError("a decode service holds something");
}

absl::Status SimulatedCluster::Settle() {
  const int64_t until_us = time_.now_us() + kSettlesUs;
  while (time_.now_us() < until_us && time_.queue.Step()) {
  }
  for (const auto& chain : chains_) BATON_RETURN_IF_ERROR(chain->CheckAtRest());
  for (const auto& decode : decode_services_) BATON_RETURN_IF_ERROR(decode->CheckAtRest());
  for (const auto& router : routers_) {
    BATON_RETURN_IF_ERROR(router->core.CheckInvariants());
    if (!router->core.AtRest()) return absl::InternalError("a router holds something");
  }
  return absl::OkStatus();
}

}  // namespace baton::simulator
