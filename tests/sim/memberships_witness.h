// What memberships.h promises, held against all that a worker's core hears of routers, names and
// endpoints: which RPC is due where and what it says, which views are applied, to whom endpoints
// are opened, and who counts as a peer. A second account that shares no code with the core; what
// the core does must be exactly what this one expects.
#ifndef TESTS_SIM_MEMBERSHIPS_WITNESS_H_
#define TESTS_SIM_MEMBERSHIPS_WITNESS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/worker/core/memberships.h"
#include "tests/sim/world.h"

namespace baton::sim {

class MembershipsWitness {
 public:
  // For a worker that knows its routers by one name, by addresses, or by announcements.
  MembershipsWitness(World& world, worker::MembershipOptions options)
      : world_(world), options_(std::move(options)), name_due_us_(0) {}

  // After every Handle.
  void Saw(const worker::MembershipEvent& event,
           const std::vector<worker::MembershipAction>& actions, const worker::Memberships& core);

 private:
  using View = std::map<InstanceRef, worker::PeerWorker>;
  enum class State { kJoining, kMember, kAlias };
  struct Router {
    std::string address;
    State state = State::kJoining;
    uint64_t incarnation = 0;
    bool asked = false;  // An RPC is under way.
    bool says_farewell = false;
    bool left = false;
    int failures = 0;  // In a row.
    bool refused = false;
    int64_t refused_us = 0;  // Since when.
    int64_t backoff_us = 0;
    int64_t refused_backoff_us = 0;
    int64_t interval_us = 0;  // Between heartbeats.
    int64_t due_us = 0;
    int64_t began_us = 0;  // The last heartbeat.
    bool news = false;     // Since then.
    int64_t heard_us = 0;
    bool gave_up = false;  // This worker, since it joined.
    int64_t took_us = 0;   // When the last RPC began that it took.
    int64_t joined_us = 0;
    bool watching = false;
    int64_t watched_us = -1;  // -1: the next may be opened at once.
    View listed;
    std::map<InstanceRef, int64_t> since_us;  // Since when each is listed without a gap.
    View kept;
    int64_t keep_until_us = 0;
    uint64_t version = 0;
    int64_t viewed_us = 0;  // When it was asked last that had this version still.
    uint64_t applied = 0;
    uint64_t said = 0;  // The last heartbeat's value, as applied.
    bool told_of_drain = false;
    int needed = 0;

    bool answers() const { return state == State::kMember && failures == 0; }
  };
  struct Peer {
    worker::PeerWorker worker;
    uint64_t order = 0;
    uint64_t endpoint = 0;   // 0: none stands.
    bool too_early = false;  // The one that is being opened.
    bool tried = false;
    bool told = false;        // It may be.
    int64_t retry_us = 0;     // While it is listed and lacks an endpoint; kNeverUs: one is opened.
    bool was_listed = false;  // At the last event.
  };

  void Hear(const worker::RouterNameResolved& event);
  void Hear(const worker::RouterAnnounced& event);
  void Hear(const worker::RegisterAnswered& event);
  void Hear(const worker::HeartbeatAnswered& event);
  void Hear(const worker::WatchNoticed& event);
  void Hear(const worker::WatchEnded& event);
  void Hear(const worker::StatusChanged& event);
  void Hear(const worker::Leaves& event);
  void Hear(const worker::StopAsked& event);
  void Hear(const worker::PeersConnected& event);
  void Hear(const worker::PeerFailed& event);
  template <typename Other>
  void Hear(const Other&) {}

  void NotOpened(const InstanceRef& peer);
  void OpeningAnswered();
  void Answered(Router& router);
  void Joined(Router& router, const worker::RegisterAnswered& event);
  void LetGoOfPeers(const Router& router, uint64_t incarnation);
  void Failed(Router& router);
  void DropView(Router& router);
  void HearOfRejoined(Router& router, const View& listed, uint64_t own_version);
  void DropReplaced(Router& router, const View& listed);
  void News(Router& router);
  void NewsOf(const InstanceRef& peer);
  bool AnotherIsSettled(const Router& router) const;

  // What is due, in the order in which the core goes about it.
  bool Named(const Router& router) const;
  void ForgetRouters();
  void ForgetRouter(std::map<uint64_t, Router>::iterator router);
  bool MakeRoom();
  void FindRouters();
  void DropTheSilent();
  void UpdatePeers();
  void RenewRejoined();
  void Connect();
  void TellPeers();
  void ApplyViews();
  void Resolve();
  void Ask();

  bool Needs(const worker::PeerWorker& peer) const;
  bool Lists(const InstanceRef& peer) const;
  std::vector<worker::PeerWorker> Known() const;
  // What an action says, so that two can be compared.
  static std::string Text(const worker::MembershipAction& action);
  void Expect(const worker::MembershipAction& action) { expected_.insert(Text(action)); }
  void CheckState(const worker::Memberships& core);
  bool SaysWhyItHasNotJoined(const worker::Unregistered& says) const;
  int64_t NextUs() const;
  void Complain(const std::string& what);

  World& world_;
  const worker::MembershipOptions options_;
  bool resolving_ = false;
  int64_t resolved_us_ = 0;  // When it was asked for last.
  int64_t name_due_us_;
  std::set<std::string> addresses_;
  std::map<std::string, int64_t> announced_;  // Until when each counts.
  std::set<std::string> left_out_;            // Addresses for which there is no room.
  std::map<uint64_t, Router> routers_;
  uint64_t last_router_ = 0;
  std::map<InstanceRef, Peer> peers_;
  uint64_t arrivals_ = 0;
  std::vector<worker::PeerWorker> told_;
  bool leaves_ = false;
  bool stop_asked_ = false;
  int64_t let_go_us_ = -1;         // When all endpoints were last let go; -1: never.
  int64_t held_us_ = -1;           // When the last RPC was sent that a router took; -1: none yet.
  int opening_ = 0;                // Endpoints; answers are due.
  std::set<uint64_t> died_early_;  // Endpoints that have died while they are.
  struct Rejoined {
    const Router* router = nullptr;
    InstanceRef peer;
    int64_t held_us = 0;  // By the router, so long at least, since it had joined before.
  };
  std::vector<Rejoined> rejoined_;       // During this event.
  std::multiset<std::string> expected_;  // Actions of this event.
};

}  // namespace baton::sim

#endif  // TESTS_SIM_MEMBERSHIPS_WITNESS_H_
