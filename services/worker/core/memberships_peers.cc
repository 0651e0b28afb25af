// What all views make together: whom to connect to, when anew, and what the worker is told
// (memberships.h).
#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/coverage.h"
#include "services/worker/core/memberships.h"

namespace baton::worker {

void Memberships::On(const PeersConnected& event) {
  const int64_t retry_at_us = now_us_ + options_.times.heartbeat_us;
  bool changed = false;
  for (const auto& [peer, endpoint] : event.standing) {
    if (peers_.Opened(peer, endpoint, retry_at_us)) {
      changed = true;
      TellRoutersOf(peer);
    } else {
      Emit(CloseEndpoint{endpoint});
    }
  }
  for (const InstanceRef& peer : event.failed) peers_.NotOpened(peer, retry_at_us);
  if (!changed) return;
  peers_changed_ = true;
  Emit(EndpointsChanged{});
}

void Memberships::On(const PeerFailed& event) {
  const auto peer = peers_.Died(event.endpoint, now_us_ + options_.times.heartbeat_us);
  if (!peer.has_value()) return;
  Covered<"worker: an endpoint dies">();
  Emit(EndpointsChanged{.lost = true});
  TellRoutersOf(*peer);
}

// They pair over it, or do no longer, from the next heartbeat on.
void Memberships::TellRoutersOf(const InstanceRef& peer) {
  for (auto& [id, router] : routers_) {
    if (router.listed().contains(peer) && router.applied_version() == router.view_version()) {
      router.News(now_us_);
    }
  }
}

void Memberships::KeepPeers() {
  for (auto& [id, router] : routers_) {
    if (router.TakeChange()) peers_changed_ = true;
  }
  const bool changed = std::exchange(peers_changed_, false);
  if (changed) Close(peers_.Update(Views()));
  ConnectAnewToTheRejoined();
  Connect();
  if (changed) TellPeersIfNew();
  for (auto& [id, router] : routers_) {
    const bool new_view = router.view_version() != router.applied_version();
    if (new_view && peers_.Tried(router.listed())) router.Apply(now_us_);
  }
}

// The peer has let go of its endpoint to this worker, as it does of all when it was given up.
void Memberships::ConnectAnewToTheRejoined() {
  for (auto& [id, router] : routers_) {
    for (const RouterMembership::Rejoined& rejoined : router.TakeRejoined()) {
      if (AnotherListedIt(router, rejoined)) continue;
      const std::optional<uint64_t> closed = peers_.Renew(rejoined.peer);
      if (!closed.has_value()) continue;
      Close({*closed});
      TellRoutersOf(rejoined.peer);
    }
  }
}

// Since before `router` may have given the peer up. If that one has given it up meanwhile too, its
// next view says so.
bool Memberships::AnotherListedIt(const RouterMembership& router,
                                  const RouterMembership::Rejoined& rejoined) const {
  return AnotherRouter(router, [&](const RouterMembership& other) {
    return other.ListedSinceUs(rejoined.peer) <= rejoined.held_until_us;
  });
}

// A leaving worker opens no endpoint: most likely its peers have been told to stop too, and would
// refuse it with many log lines. Routers are told that these endpoints are not open.
void Memberships::Connect() {
  std::vector<PeerWorker> missing = peers_.BeginConnecting(now_us_);
  if (missing.empty()) return;
  if (!stop_asked_) return Emit(ConnectPeers{std::move(missing)});
  Covered<"worker: a worker that leaves connects to no peer">();
  for (const PeerWorker& peer : missing) {
    peers_.NotOpened(peer.instance, now_us_ + options_.times.heartbeat_us);
  }
}

std::vector<const RouterMembership*> Memberships::Views() const {
  std::vector<const RouterMembership*> views;
  for (const auto& [id, router] : routers_) views.push_back(&router);
  return views;
}

void Memberships::TellPeersIfNew() {
  std::vector<PeerWorker> known = peers_.Known();
  if (known == told_) return;
  told_ = std::move(known);
  Emit(TellPeers{told_});
}

// ---- Connecting anew ----

// Since before `router` was heard last, or since the endpoints were opened anew. If it has given
// the worker up meanwhile too, its next answer says so.
bool Memberships::AnotherHeldIt(const RouterMembership& router) const {
  return AnotherRouter(router, [&](const RouterMembership& other) {
    return other.joined_us() <= std::max(router.taken_us(), renewed_us_);
  });
}

void Memberships::ConnectAnew() {
  Covered<"worker: it was dead to its peers and connects anew">();
  Close(peers_.Renew());
  renewed_us_ = now_us_;
}

void Memberships::Close(const std::vector<uint64_t>& endpoints) {
  for (const uint64_t endpoint : endpoints) Emit(CloseEndpoint{endpoint});
  if (!endpoints.empty()) Emit(EndpointsChanged{.lost = true});
}

}  // namespace baton::worker
