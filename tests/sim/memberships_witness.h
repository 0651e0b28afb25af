// What memberships.h promises, held against all that a worker's core hears of routers, names and
// endpoints: which RPC is due where and what it says, who is a member, whom to look up where, and
// to whom endpoints are opened. A second account that shares no code with the core; what the core
// does must be exactly what this one expects.
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
  enum class State { kJoining, kMember, kAlias };
  struct Router {
    std::string address;
    State state = State::kJoining;
    uint64_t incarnation = 0;
    uint64_t lease = 0;               // Its call; 0: none is open.
    bool granted = false;             // By that call.
    int64_t answer_by_us = kNeverUs;  // kNeverUs: no answer is awaited.
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
    std::vector<worker::PeerWorker> listed;
    bool told_of_drain = false;
    int needed = 0;

    bool answers() const { return lease != 0 && granted; }
    bool awaits() const { return answer_by_us != kNeverUs; }
    int64_t next_us() const { return left ? kNeverUs : awaits() ? answer_by_us : due_us; }
  };
  // An endpoint that is wanted, stands, or can't be had before a time.
  struct Wish {
    uint64_t endpoint = 0;  // 0: none stands.
    uint64_t asked = 0;     // The router that is; 0: none, or it is being opened.
    int64_t retry_us = 0;   // > 0: refused before.
    int64_t opened_us = 0;  // When it stood first.
    int64_t again_us = 0;   // > 0: wanted again, from then on.
  };

  void Hear(const worker::RouterNameResolved& event);
  void Hear(const worker::RouterAnnounced& event);
  void Hear(const worker::LeaseGranted& event);
  void Hear(const worker::HeartbeatAnswered& event);
  void Hear(const worker::HeartbeatWanted& event);
  void Hear(const worker::LeaseEnded& event);
  void Hear(const worker::StatusChanged& event);
  void Hear(const worker::Leaves& event);
  void Hear(const worker::StopAsked& event);
  void Hear(const worker::PeersWanted& event);
  void Hear(const worker::PeerLookedUp& event);
  void Hear(const worker::PeersConnected& event);
  void Hear(const worker::PeerFailed& event);
  template <typename Other>
  void Hear(const Other&) {}

  Router* ByLease(uint64_t lease);
  void Answered(Router& router);
  static void Hang(Router& router);  // Its call is over.
  void Close(Router& router);        // By the worker, if there is one.
  void Joined(Router& router, const worker::LeaseGranted& event);
  void BecomeAlias(Router& router);
  void Refused(Router& router);
  void Failed(Router& router);
  void AskAliases();
  void News(Router& router);
  int64_t AnswerByUs() const;

  // What is due, in the order in which the core goes about it.
  bool Named(const Router& router) const;
  void ForgetRouters();
  void ForgetRouter(std::map<uint64_t, Router>::iterator router);
  bool MakeRoom();
  void FindRouters();
  void KeepMembers();
  void Resolve();
  void Ask();

  bool Needs(const worker::PeerWorker& peer) const;
  std::vector<worker::PeerWorker> Members() const;
  // Whether the peer may be gone for now; else it is wanted from now on, unless it was.
  enum class Wished { kNew, kWanted, kStands, kRefused };
  Wished WishFor(const InstanceRef& peer);
  void LookUp(const InstanceRef& peer, uint64_t behind);
  void Connect(const worker::PeerWorker& peer);
  void GiveUp(const InstanceRef& peer);
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
  uint64_t last_lease_ = 0;
  std::map<InstanceRef, Wish> wishes_;
  std::vector<worker::PeerWorker> connecting_;  // During this event.
  bool relisted_ = false;                       // A router's list has changed with this event.
  std::map<InstanceRef, uint64_t> order_;       // Of who is listed.
  uint64_t arrivals_ = 0;
  std::vector<worker::PeerWorker> told_;
  bool leaves_ = false;
  bool stop_asked_ = false;
  std::multiset<std::string> expected_;  // Actions of this event.
};

}  // namespace baton::sim

#endif  // TESTS_SIM_MEMBERSHIPS_WITNESS_H_
