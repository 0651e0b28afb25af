// What the first process of a simulated decode service tells the others, over its wiring.
#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/decode_process.h"
#include "tests/sim/follower_process.h"

namespace baton::sim {

void DecodeProcess::OnMembers() {
  CheckNeighbours();
  wiring_.OnMembers(membership_->peers());
}

void DecodeProcess::OnUp(uint64_t epoch, int page_count) {
  freed_.Reset();
  prefill::ChainUp up{epoch, topology_.decode_stages, page_count};
  for (int stage = 0; stage < topology_.decode_stages; ++stage) {
    up.stage_layers.push_back(topology_.DecodeLayers(stage).size());
  }
  up.ranks = topology_.decode_ranks;
  up.followers.assign(members_.begin() + 1, members_.end());
  up.newest_generation = wiring_.newest_generation();
  HandlePlanner(up);
  membership_->ReportSoon();
}

void DecodeProcess::OnDown(const absl::Status& status) {
  // One of a service that nobody connects to never comes up.
  if (topology_.first_router_stands && !topology_.IsLonely(node_)) {
    world_.Violate(
        absl::StrCat("a router's death parts the ranks of ", self_.id, ": ", status.message()));
  }
  world_.Trace(node_, absl::StrCat("CHAIN DOWN: ", status.message()));
  EndEpoch(status);
  HandlePlanner(prefill::ChainDown{status});
  membership_->ReportSoon();
}

// ---- Orders ----

// The same order with one thing wrong, mostly by the least there is.
namespace {

void Spoil(Random& random, const Topology& topology, int node, KvGrant& grant) {
  LayerRange& layers = grant.writers.back().layers;
  switch (random.Below(8)) {
    case 0:
      grant.slot = static_cast<uint32_t>(topology.max_running);
      return;
    case 1:
      grant.generation = 0;
      return;
    case 2:
      grant.pages.clear();
      return;
    case 3:
      grant.pages.back() = topology.PagesOf(node);
      return;
    case 4:
      grant.pages.push_back(grant.pages.front());
      return;
    case 5:
      layers.end = layers.begin;
      return;
    case 6:
      grant.first_page = static_cast<int>(grant.pages.size());
      return;
    default:
      layers.end = topology.layers + 1;
  }
}

void Spoil(Random& /*random*/, const Topology& /*topology*/, int /*node*/,
           prefill::RevokeKv& revoke) {
  ++revoke.generation;
}

void Spoil(Random& random, const Topology& /*topology*/, int /*node*/, prefill::Plan& plan) {
  if (plan.items.empty() || random.Chance(0.5)) {
    plan.number += random.Chance(0.5) ? 1 : -1;
  } else {
    ++plan.items.back().token_begin;
  }
}

}  // namespace

void DecodeProcess::SendAll(const SimOrder& order) {
  for (int member = 1; member < topology_.decode_members(); ++member) SendOrder(member, order);
}

void DecodeProcess::SendOrder(int member, SimOrder order) {
  if (!wiring_.up()) return;
  const uint64_t call = wiring_.links().at(member);
  const bool nonsense = world_.Strikes(&NetworkFaults::order_garbled);
  if (nonsense) {
    const int node = topology_.DecodeNode(topology_.DecodeOf(node_), member);
    std::visit([&](auto& o) { Spoil(world_.random(), topology_, node, o); }, order);
  }
  world_.SendOnCall<FollowerProcess>(
      call, node_, "order",
      [call, order, nonsense](FollowerProcess& peer) { peer.ReceiveOrder(call, order, nonsense); });
  if (nonsense || !world_.Strikes(&NetworkFaults::plan_repeat)) return;
  world_.SendOnCall<FollowerProcess>(
      call, node_, "order again",
      [call, order](FollowerProcess& peer) { peer.ReceiveOrder(call, order, /*nonsense=*/true); });
}

}  // namespace baton::sim
