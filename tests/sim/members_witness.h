// What membership.h promises, held against all that a router hears of its workers: who is a member
// and for how long, who is told of it, and which pairs are ready. An account from outside that
// shares no code with the router.
#ifndef TESTS_SIM_MEMBERS_WITNESS_H_
#define TESTS_SIM_MEMBERS_WITNESS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/router/core/router_core.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

// Names the registration of a worker that cannot join (intruders.cc).
inline constexpr uint64_t kOfIntruder = 0;

class MembersWitness {
 public:
  struct Member {
    router::WorkerInfo info;
    router::WorkerLoad load;
    bool ready = false;
    bool draining = false;
    bool drain_asked = false;
    bool suspect = false;
    bool excused = false;
    int failures = 0;
    int64_t probation_until_us = 0;  // 0: none.
    int64_t lease_until_us = 0;
    int64_t changed_us = 0;
    std::set<uint64_t> linked;

    bool Serves() const { return ready && !draining && !suspect && probation_until_us == 0; }
  };
  // Whom an event has cost their place, and why.
  struct Lost {
    Member member;
    bool left = false;
  };

  MembersWitness(World& world, const Topology& topology, const router::RouterLimits& limits,
                 std::string name)
      : world_(world), topology_(topology), limits_(limits), name_(std::move(name)) {}

  // Before every event: true if it shows that the router stood still.
  bool NoticePause();
  // Every event of the cluster, with what the core did about it. Others are ignored.
  std::vector<Lost> Take(const router::Event& event, const std::vector<router::Action>& actions,
                         const router::Membership& membership);
  // What requests have shown of a worker.
  void Failed(const InstanceRef& instance);
  void Served(const InstanceRef& instance);
  void CouldNotConnect(const router::Pair& pair);
  // After an event and all that requests have shown in it.
  void Check(const router::Event& event, const std::vector<router::Action>& actions,
             const router::RouterCore& core);

  const Member* Find(const InstanceRef& instance) const;
  // The member whose lease call it is.
  std::optional<InstanceRef> WorkerOf(uint64_t rpc_id) const;
  // A member's usable pages: each rank of a decode service uses as many as its smallest present
  // one.
  int UsablePages(const router::WorkerInfo& info) const;
  // Recomputed when something has changed.
  const std::vector<router::Pair>& Pairs();
  // Until when a pair may come; 0: none may.
  int64_t PairExpectedUntilUs() const;
  // When a lease or a probation ends next, or a pair that could not connect is one again.
  int64_t NextUs() const;
  int64_t leases_expired_total() const { return leases_expired_total_; }
  int64_t pauses_total() const { return pauses_total_; }

 private:
  using Members = std::map<std::string, Member>;  // By instance id.
  struct Absent {
    router::WorkerInfo info;
    int64_t lost_us = 0;
  };
  struct Refusal {
    absl::Status status;
    int64_t at_us = 0;
    bool known = false;  // To the router, among the applicants.
  };

  void HearAsk(const router::LeaseAsked& event, const std::vector<router::Action>& actions,
               const router::Membership& membership, std::vector<Lost>& lost);
  void Hear(const router::LeaseAsked& event, const router::AnswerLease& reply,
            const router::Membership& membership, std::vector<Lost>& lost);
  void HearHeartbeat(const router::HeartbeatReceived& event,
                     const std::vector<router::Action>& actions, std::vector<Lost>& lost);
  void Hear(const router::HeartbeatReceived& event, const InstanceRef& sender);
  void HearDrain(const router::DrainRequested& event, const std::vector<router::Action>& actions);
  void HearTick(std::vector<Lost>& lost);
  void Suspect(const InstanceRef& instance);
  void Remember(const router::WorkerInfo& info);
  void Lose(Members::iterator member, bool left, std::vector<Lost>& lost);
  // `asks`: it is its own registration that makes it a member.
  void Join(const router::Worker& worker, bool asks);
  bool TwinLives(const InstanceRef& instance) const;
  void HearIntruder(const InstanceRef& instance, const router::Membership& membership);
  void CheckRefusal(const router::LeaseAsked& event, const router::AnswerLease& reply,
                    const router::Membership& membership);
  void CheckAnswer(const router::AnswerHeartbeat& answer, const InstanceRef& sender);
  void CheckMembers(const router::Membership& membership);
  void CheckCalls(const std::vector<router::Action>& actions, uint64_t version);
  // The member has no call any more: it is to be ended.
  void EndCallOf(const InstanceRef& instance);
  // The chain or decode service that it is of.
  static std::string GroupOf(const router::WorkerInfo& info);
  bool TellsAll() const {
    return static_cast<int>(members_.size()) <= limits_.membership.told_of_all;
  }
  // The members of its chain or decode service, by place; or all.
  std::vector<router::WorkerInfo> ListFor(const router::WorkerInfo& info) const;
  // Its list is another one now; those of it that have a call must be asked for a heartbeat.
  void Relisted(const router::WorkerInfo& info);
  using Ranks = std::map<std::pair<int, int>, const Member*>;  // By stage and rank.
  static bool CanServe(const Ranks& ranks);
  void AddPair(const router::Chain& chain, const std::vector<KvWriter>& writers,
               const Ranks& ranks);
  void CheckPairs(const router::Membership& membership);
  // With as many workers as the router takes.
  bool IsFull() const {
    return static_cast<int>(members_.size()) >= limits_.membership.max_workers;
  }
  void Complain(const std::string& what);
  Member* Of(const InstanceRef& instance);

  World& world_;
  const Topology& topology_;
  const router::RouterLimits& limits_;
  const std::string name_;
  Members members_;
  std::map<std::string, Absent> absent_;      // By instance id, until it is back.
  std::map<InstanceRef, Refusal> refused_;    // Until a worker of the name joins.
  std::map<InstanceRef, int64_t> intruders_;  // Applicants, and when they have asked.
  struct Call {
    InstanceRef worker;
    uint64_t number = 0;   // As the worker counts its calls.
    bool heard = false;    // It has brought a heartbeat.
    bool list_due = true;  // It has not told of the members as they are.
  };
  std::map<uint64_t, Call> calls_;  // That hold leases.
  std::set<uint64_t> asks_due_;     // Calls that this event must have asked for a heartbeat,
  std::set<uint64_t> ends_due_;     // and ended.
  std::set<std::string> relisted_;  // Groups of which this event has changed a member.
  bool told_of_all_ = true;         // As of the last list.
  // Until when; by the incarnations of stage 0 and of decode's rank 0.
  std::map<std::pair<uint64_t, uint64_t>, int64_t> unconnected_until_us_;
  std::vector<router::Pair> pairs_;
  bool pairs_valid_ = false;
  uint64_t version_ = 1;  // Of all lists, when last seen.
  int64_t last_tick_us_ = kNeverUs;
  int64_t leases_expired_total_ = 0;
  int64_t pauses_total_ = 0;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_MEMBERS_WITNESS_H_
