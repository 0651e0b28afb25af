// By what names routers are known, and which of them are followed (memberships_witness.h).
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/memberships_witness.h"

namespace baton::sim {
namespace {

constexpr int64_t kResolveAgainUs = 1'000'000;
constexpr size_t kMostRouters = 16;
constexpr size_t kMostAnnounced = 64;

}  // namespace

void MembershipsWitness::Hear(const worker::RouterNameResolved& event) {
  resolving_ = false;
  name_due_us_ = world_.now_us() + (event.addresses.ok() ? options_.resolve_us : kResolveAgainUs);
  if (event.addresses.ok()) addresses_ = {event.addresses->begin(), event.addresses->end()};
}

void MembershipsWitness::Hear(const worker::RouterAnnounced& event) {
  if (announced_.contains(event.address) || announced_.size() < kMostAnnounced) {
    announced_[event.address] = world_.now_us() + options_.announced_us;
  }
}

void MembershipsWitness::Resolve() {
  if (resolving_ || world_.now_us() < name_due_us_) return;
  resolving_ = true;
  resolved_us_ = world_.now_us();
  Expect(worker::ResolveRouterName{options_.router_names.front()});
}

bool MembershipsWitness::Named(const Router& router) const {
  const std::vector<std::string>& numeric = options_.router_addresses;
  return addresses_.contains(router.address) || announced_.contains(router.address) ||
         std::find(numeric.begin(), numeric.end(), router.address) != numeric.end();
}

// Forgets what no source names: other names at once, routers when they are silent and not needed.
void MembershipsWitness::ForgetRouters() {
  std::erase_if(announced_, [&](const auto& entry) { return entry.second <= world_.now_us(); });
  for (auto router = routers_.begin(); router != routers_.end();) {
    const auto next = std::next(router);
    const Router& known = router->second;
    const bool silent = world_.now_us() - known.heard_us >= options_.times.grace_us;
    if (!Named(known) && (known.state == State::kAlias || silent)) ForgetRouter(router);
    router = next;
  }
}

void MembershipsWitness::ForgetRouter(std::map<uint64_t, Router>::iterator router) {
  Router& known = router->second;
  Close(known);
  Expect(worker::ForgetRouter{router->first, known.address});
  // Its other name is asked instead.
  if (known.state == State::kMember) AskAliases();
  const uint64_t forgotten = router->first;
  routers_.erase(router);
  for (const auto& [peer, wish] : wishes_) {
    if (wish.asked == forgotten) LookUp(peer, forgotten);
  }
}

// Removes the longest silent router among those that no source names and that don't answer.
bool MembershipsWitness::MakeRoom() {
  auto longest = routers_.end();
  for (auto router = routers_.begin(); router != routers_.end(); ++router) {
    if (Named(router->second) || router->second.answers()) continue;
    const bool longer =
        longest == routers_.end() || router->second.heard_us < longest->second.heard_us;
    if (longer) longest = router;
  }
  if (longest == routers_.end()) return false;
  ForgetRouter(longest);
  return true;
}

void MembershipsWitness::FindRouters() {
  std::set<std::string> unknown = addresses_;
  unknown.insert(options_.router_addresses.begin(), options_.router_addresses.end());
  for (const auto& [address, until_us] : announced_) unknown.insert(address);
  for (const auto& [id, router] : routers_) unknown.erase(router.address);
  std::set<std::string> left_out;
  for (const std::string& address : unknown) {
    if (routers_.size() >= kMostRouters && !MakeRoom()) {
      if (!left_out_.contains(address)) Expect(worker::TooManyRouters{address});
      left_out.insert(address);
      continue;
    }
    Router router;
    router.address = address;
    router.backoff_us = options_.times.first_backoff_us;
    router.due_us = router.heard_us = world_.now_us();
    routers_[++last_router_] = std::move(router);
  }
  left_out_ = std::move(left_out);
}

}  // namespace baton::sim
