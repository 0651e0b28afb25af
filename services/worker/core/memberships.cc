#include "services/worker/core/memberships.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/coverage.h"

namespace baton::worker {
namespace {

// How long to await other routers' answers when one refuses this worker.
constexpr int64_t kVerdictUs = 2'000'000;

bool IsForGood(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsOutOfRange(status);
}

bool IsRefusal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsResourceExhausted(status) ||
         IsForGood(status);
}

}  // namespace

Memberships::Memberships(MembershipOptions options, int64_t now_us)
    : options_(std::move(options)),
      sources_(options_.router_names, options_.router_addresses, options_.resolve_us),
      began_us_(now_us),
      now_us_(now_us) {}

void Memberships::Handle(const MembershipEvent& event, int64_t now_us,
                         std::vector<MembershipAction>& actions) {
  if (rejected_) return;
  now_us_ = now_us;
  actions_ = &actions;
  endpoints_.Expire(now_us_);
  for (const InstanceRef& peer : endpoints_.TakeDue(now_us_)) LookUp(peer);
  std::visit([this](const auto& e) { On(e); }, event);
  FollowSources();
  KeepMembers();
  Judge();
  if (!rejected_) SendWhatIsDue();
  actions_ = nullptr;
}

// ---- Routers ----

void Memberships::On(const RouterNameResolved& event) {
  sources_.Resolved(event.name, event.addresses, now_us_);
}

void Memberships::On(const RouterAnnounced& event) {
  sources_.Announced(event.address, now_us_ + options_.announced_us);
}

RouterMembership* Memberships::Of(uint64_t lease) {
  for (auto& [id, router] : routers_) {
    if (lease != 0 && router.lease() == lease) return &router;
  }
  return nullptr;
}

const RouterMembership* Memberships::Find(uint64_t router) const {
  const auto found = routers_.find(router);
  return found == routers_.end() ? nullptr : &found->second;
}

void Memberships::On(const LeaseGranted& event) {
  RouterMembership* router = Of(event.lease);
  if (router == nullptr || router->answers()) return;
  // Two addresses of one router, asked before either had answered: the later call holds.
  for (auto& [id, other] : routers_) {
    if (&other == router || other.state() != RouterMembership::State::kMember ||
        other.incarnation() != event.router_incarnation) {
      continue;
    }
    RouterMembership& earlier = other.lease() < event.lease ? other : *router;
    CloseLeaseOf(earlier);
    earlier.IsAlias(now_us_);
    if (&earlier == router) return;
  }
  router->Registered(event.router_incarnation, event.heartbeat_interval_us, now_us_);
}

void Memberships::On(const LeaseEnded& event) {
  RouterMembership* router = Of(event.lease);
  if (router == nullptr) return;
  if (absl::IsAlreadyExists(event.status)) return router->IsAlias(now_us_);
  if (absl::IsNotFound(event.status)) {
    // The lease ends with the last heartbeat, also if the answer is lost.
    return router->leaves() ? router->Left() : router->Unknown(now_us_);
  }
  if (!router->answers() && IsRefusal(event.status)) {
    return router->Refused(event.status, IsForGood(event.status), now_us_);
  }
  Failed(*router);
}

void Memberships::Failed(RouterMembership& router) {
  router.Failed(now_us_);
  if (router.failures() == 1) sources_.ResolveSoon(now_us_);
  AskAliases();
}

// Other addresses of a router know nothing of it for as long as one is its member's.
void Memberships::AskAliases() {
  for (auto& [id, router] : routers_) {
    if (router.state() == RouterMembership::State::kAlias) router.AskNow(now_us_);
  }
}

void Memberships::CloseLeaseOf(const RouterMembership& router) {
  if (router.lease() != 0) Emit(CloseLease{router.lease()});
}

void Memberships::On(const HeartbeatAnswered& event) {
  RouterMembership* router = Of(event.lease);
  if (router == nullptr || !router->answers()) return;
  std::optional<std::vector<PeerWorker>> others;
  if (!event.members.empty()) {
    others = event.members;
    std::erase_if(*others, [&](const PeerWorker& worker) {
      return worker.instance.id == options_.self.instance.id;
    });
  }
  router->DrainHeard(event.draining, event.needed_requests);
  if (event.drain) Emit(BeginDrain{});
  router->HeartbeatTaken(std::move(others), now_us_);
}

void Memberships::On(const HeartbeatWanted& event) {
  if (RouterMembership* router = Of(event.lease)) router->News(now_us_);
}

void Memberships::On(const StatusChanged&) {
  for (auto& [id, router] : routers_) router.News(now_us_);
}

// A router alone counts what it has put here, and needs no reports of it.
void Memberships::On(const LoadChanged&) {
  if (routers_joined() < 2) return;
  for (auto& [id, router] : routers_) router.News(now_us_, kLoadGapUs);
}

void Memberships::On(const Leaves&) {
  leaves_ = true;
  for (auto& [id, router] : routers_) router.News(now_us_);
}

DrainNews Memberships::drain_news() const {
  DrainNews news;
  for (const auto& [id, router] : routers_) {
    if (!router.counts_for_drain()) continue;
    news.untold_routers += router.told_of_drain() ? 0 : 1;
    news.needed_requests += router.told_of_drain() ? router.needed_requests() : 0;
  }
  return news;
}

bool Memberships::left() const {
  return leaves_ && std::all_of(routers_.begin(), routers_.end(), [](const auto& entry) {
           return entry.second.left() || !entry.second.answers();
         });
}

void Memberships::FollowSources() {
  sources_.Expire(now_us_);
  std::set<std::string> missing = sources_.Addresses();
  for (auto& [id, router] : routers_) router.wanted = missing.erase(router.address()) > 0;
  for (auto router = routers_.begin(); router != routers_.end();) {
    const auto next = std::next(router);
    const RouterMembership& known = router->second;
    const bool silent = now_us_ - known.heard_us() >= options_.times.grace_us;
    const bool alias = known.state() == RouterMembership::State::kAlias;
    if (!known.wanted && (alias || silent)) Forget(router);
    router = next;
  }
  // In order of addresses, so that all workers leave out the same ones.
  for (const std::string& address : missing) {
    if (static_cast<int>(routers_.size()) >= kMaxRouters && !MakeRoom()) {
      Covered<"worker: there is no room for a router">();
      if (left_out_.insert(address).second) Emit(TooManyRouters{address});
      continue;
    }
    routers_.try_emplace(++last_router_, address, options_.times, now_us_);
  }
  std::erase_if(left_out_, [&](const std::string& address) { return !missing.contains(address); });
}

// Frees the place of a router that no source names, the longest silent first.
bool Memberships::MakeRoom() {
  auto oldest = routers_.end();
  for (auto router = routers_.begin(); router != routers_.end(); ++router) {
    if (router->second.wanted || router->second.answers()) continue;
    if (oldest == routers_.end() || router->second.heard_us() < oldest->second.heard_us()) {
      oldest = router;
    }
  }
  if (oldest == routers_.end()) return false;
  Covered<"worker: room is made for a router">();
  Forget(oldest);
  return true;
}

void Memberships::Forget(Routers::iterator router) {
  Covered<"worker: a router is forgotten">();
  CloseLeaseOf(router->second);
  Emit(ForgetRouter{router->first, router->second.address()});
  if (router->second.state() == RouterMembership::State::kMember) AskAliases();
  const uint64_t forgotten = router->first;
  routers_.erase(router);
  for (const InstanceRef& peer : endpoints_.WaitingFor(forgotten)) LookUp(peer);
}

void Memberships::Judge() {
  const RouterMembership* refusing = nullptr;
  for (const auto& [id, router] : routers_) {
    if (router.state() == RouterMembership::State::kMember) return;
    const bool refuses = !router.refusal().ok();
    if (refuses && !router.refused_for_good()) return;
    if (refuses && refusing == nullptr) refusing = &router;
    if (!refuses && now_us_ - router.asking_since_us() < kVerdictUs) return;
  }
  if (refusing == nullptr) return;
  rejected_ = true;
  Emit(RejectWorker{refusing->refusal()});
}

// ---- Leases ----

void Memberships::SendWhatIsDue() {
  for (const std::string& name : sources_.BeginResolving(now_us_)) Emit(ResolveRouterName{name});
  for (auto& [id, router] : routers_) {
    // A router without this worker need not be told that it leaves.
    if (leaves_ && router.state() != RouterMembership::State::kMember) {
      CloseLeaseOf(router);
      router.Left();
    }
    if (router.due(now_us_) == RouterMembership::Due::kGiveUp) {
      Emit(CloseLease{router.lease(), /*left_to_router=*/router.answers()});
      Failed(router);
    }
    const auto due = router.due(now_us_);
    if (due == RouterMembership::Due::kAsk) Ask(id, router);
    if (due == RouterMembership::Due::kHeartbeat) {
      router.Beat(now_us_, leaves_);
      Emit(SendHeartbeat{router.lease(), leaves_});
    }
  }
}

void Memberships::Ask(uint64_t id, RouterMembership& router) {
  OpenLease open{id, router.address(), ++last_lease_, {}};
  for (const auto& [other_id, other] : routers_) {
    if (other.answers()) open.held_by.push_back(other.incarnation());
  }
  router.Ask(open.lease, now_us_);
  Emit(std::move(open));
}

int64_t Memberships::NextDeadlineUs(int64_t now_us) const {
  if (rejected_) return kNeverUs;
  int64_t next_us = std::min(sources_.NextDeadlineUs(), endpoints_.NextDeadlineUs());
  const auto later = [&](int64_t at_us) {
    if (at_us > now_us) next_us = std::min(next_us, at_us);
  };
  for (const auto& [id, router] : routers_) {
    next_us = std::min(next_us, router.next_us());
    later(router.asking_since_us() + kVerdictUs);
    later(router.heard_us() + options_.times.grace_us);
  }
  return next_us;
}

int Memberships::routers_joined() const {
  return static_cast<int>(std::count_if(routers_.begin(), routers_.end(),
                                        [](const auto& entry) { return entry.second.answers(); }));
}

int Memberships::routers_refusing() const {
  return static_cast<int>(std::count_if(routers_.begin(), routers_.end(), [](const auto& entry) {
    return entry.second.failures() == 0 && !entry.second.refusal().ok();
  }));
}

std::optional<Unregistered> Memberships::unregistered() const {
  if (registered()) return std::nullopt;
  if (routers_.empty()) return Unregistered{"no router is known", began_us_};
  int64_t silent_since_us = kNeverUs;
  for (const auto& [id, router] : routers_) {
    silent_since_us = std::min(silent_since_us, router.heard_us());
    if (router.failures() > 0 || router.refusal().ok()) continue;
    return Unregistered{absl::StrCat("the router at ", router.address(),
                                     " refuses this worker: ", router.refusal().message()),
                        router.refused_since_us()};
  }
  return Unregistered{absl::StrCat("no answer from ", routers_.begin()->second.address(),
                                   routers_.size() == 1 ? "" : " and other routers"),
                      silent_since_us};
}

}  // namespace baton::worker
