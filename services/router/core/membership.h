// Which workers there are, whether they fit together, and which pairs can serve: a chain with a
// decode service, or a colocated chain, which decodes what it has read, with itself.
// Leases are renewed by heartbeats; a silent worker is lost after `lease_us`. Deterministic; the
// router core owns it.
#ifndef SERVICES_ROUTER_CORE_MEMBERSHIP_H_
#define SERVICES_ROUTER_CORE_MEMBERSHIP_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/types/instance.h"
#include "services/router/core/pair.h"
#include "services/router/core/roster.h"
#include "services/router/core/worker_info.h"

namespace baton::router {

struct Worker {
  WorkerInfo info;
  WorkerLoad load;
  bool ready = false;
  bool draining = false;           // Takes nothing new and will leave.
  bool drain_asked = false;        // A drain was requested here: pass it on to the worker.
  bool suspect = false;            // Does not answer, as far as is known; until it is heard from.
  int failures = 0;                // Requests that failed on it since it last served one, about.
  int64_t probation_us = 0;        // How long the last one is; 0: none since it last served.
  int64_t probation_until_us = 0;  // In no pair before; 0: it is over, or there was no failure.
  int64_t changed_us = 0;        // When it joined, or was seen to change who can be paired with it.
  std::vector<uint64_t> linked;  // HeartbeatRequest.linked, in order.
  std::string why_not_ready;     // In its own words; may be empty.
  int64_t lease_until_us = 0;
  bool displaced = false;  // Lost to workers that it does not fit.
  bool excused = false;    // Since its last heartbeat: ExcuseSilence has prolonged its lease.
};

// Asks to join, and does not fit those that are here.
struct Applicant {
  WorkerInfo info;
  absl::Status refusal;
  int64_t since_us = 0;  // This incarnation has asked in vain.
  int64_t until_us = 0;  // It is gone by then, unless it asks again.
};

class Group;

struct MembershipOptions {
  int64_t lease_us = 2'000'000;
  int max_workers = 4096;
  // How long after a sign of change a pair is still expected: see PairExpectedUntilUs.
  int64_t pair_grace_us = 0;
  // With as many workers each one is told of all, and connects to those that it may have to do with
  // while nothing runs; beyond, when it has to. A process that dies in the milliseconds of a first
  // connection can end its peer (common/transport/README.md).
  int told_of_all = 64;
  // How long a pair that could not connect is left alone.
  int64_t unconnected_us = 1'000'000;
  // From the first registration: how long the members may change for a larger group. After a
  // router's restart workers are all heard within it.
  int64_t settle_us = 5'000'000;
  // See FailedToServe.
  int64_t first_probation_us = 100'000;
  int64_t longest_probation_us = 5'000'000;
};

class Membership {
 public:
  explicit Membership(MembershipOptions options);

  // Joins or replaces another incarnation (which is then lost and returned in `lost`) that does not
  // live any more, as far as is known: it is suspect. Repeated with the same words it only renews
  // the lease. INVALID_ARGUMENT for malformed fields, OUT_OF_RANGE for a protocol that this router
  // does not speak: these are for good.
  //
  // While another incarnation of its name lives, a worker is refused with FAILED_PRECONDITION and
  // waits until that one has left, is suspect, or has lost its lease. Were the younger let in, the
  // elder would register again, and the two would take turns for as long as both live, each time
  // with all their endpoints.
  //
  // Refused for now with FAILED_PRECONDITION, naming the property, the worker and both values, when
  // it doesn't fit those that are here: model config, weights of a shared layer, dtype, page size
  // and shape, protocol versions, geometry of its chain or decode service (pp_size, tp_size, what
  // ranks agree on, place taken by a live other instance, layers that overlap or leave a gap to a
  // neighbour). It is to ask again, and is remembered as an applicant for a lease's time.
  //
  // Members that are in the way give way at once and are `lost`, if the worker, the applicants and
  // the members that fit one another rank above the members and the applicants that fit these:
  // first who can form a pair, then who are more. The applicants join with it, with the lease of
  // their last attempt, and hear of it at their next one. Who has given way is refused, and an
  // applicant, once it asks: most likely it is dead, and would drive its own successor out in its
  // turn. But once `settle_us` have passed since the first registration, members that can form a
  // pair never do, workers counted that were lost no longer ago than `pair_grace_us` and didn't
  // leave. Draining ones don't count, and workers need not fit their model.
  absl::Status Register(const WorkerInfo& worker, int64_t now_us, std::vector<Worker>& lost);

  // A member's. `linked`, `why_not_ready`: see HeartbeatRequest.
  void Heartbeat(const InstanceRef& instance, bool ready, const WorkerLoad& load, int64_t now_us,
                 std::vector<uint64_t> linked = {}, std::string why_not_ready = {});

  // The worker is to drain: in no ready pair from now on. NOT_FOUND for an unknown instance.
  absl::StatusOr<InstanceRef> Drain(const std::string& instance_id);
  // The worker says so itself; there is no way back but another incarnation.
  void SaysDraining(const InstanceRef& instance);

  // The worker's call to the router broke as those of a dead process do: it is in no ready pair
  // until its next heartbeat, or until its lease is over. False: that is known already, or it is
  // not here.
  bool Suspect(const InstanceRef& instance, int64_t now_us);

  // A request failed on the worker as on one that is dead or out of reach. It is suspect, and that
  // it sends heartbeats does not prove that it serves: it is in no ready pair for a probation
  // either, of `first_probation_us`, doubled with every failure after a probation up to
  // `longest_probation_us`, until a request has been served. Failures during one are of requests
  // that had begun before, and count once. False: as for Suspect.
  bool FailedToServe(const InstanceRef& instance, int64_t now_us);
  // The pair's processes could not connect: it is none for `unconnected_us`, and is expected again.
  void CouldNotConnect(const Pair& pair, int64_t now_us);
  // A request had its first token by way of the worker: no failure counts any more.
  void Served(const InstanceRef& instance);

  // By instance id.
  const std::map<std::string, Applicant>& applicants() const { return applicants_; }

  // This router stood still: no lease ends before `until_us`, for workers may have been heard from
  // without being listened to. For a worker only once between two heartbeats.
  void ExcuseSilence(int64_t until_us);
  // Removes the workers whose lease is over, forgets applicants that ask no more, and ends the
  // probations that are over and the times of pairs that could not connect.
  std::vector<Worker> Expire(int64_t now_us);
  // Removes one incarnation, which leaves; false if it is not here.
  bool Remove(const InstanceRef& instance, int64_t now_us, std::vector<Worker>& lost);
  // When Expire is due next. May be early: heartbeats don't move it, so that they stay cheap.
  int64_t NextDeadlineUs() const;

  // Grows with every join and loss.
  uint64_t version() const { return version_; }
  std::vector<Worker> Workers() const;  // By instance id.
  // What a member is told of: the members of its chain or decode service; everybody in a small
  // cluster. In order of place, or of instance id.
  std::vector<WorkerInfo> ListFor(const Worker& worker) const;
  // The members for whom that has changed since the last call.
  std::vector<InstanceRef> TakeRelisted();
  const Worker* Find(const InstanceRef& instance) const;
  // A member's usable pages. In a decode service of several ranks: the smallest rank's.
  int UsablePages(const WorkerInfo& member) const;

  // Pairs that can take a request now: every process of the chain and of the decode service ready,
  // none draining, suspect or on probation, and who speaks for a side (stage 0, rank 0) links just
  // these lives of its members.
  std::vector<Pair> ReadyPairs() const;  // For tests; defined in testing/.
  bool HasReadyPair() const;
  size_t CountReadyPairs() const;
  // The sides of these pairs, up to date; valid until the next call of a member that is not const.
  Roster& roster() {
    Refresh();
    return roster_;
  }

  // Pairs with every process present and none draining, whether ready or not.
  std::vector<Pair> WholePairs() const;

  // Prompt and output of a request such that whatever leaves one token for the output fits into
  // some ready pair; 0: none is ready.
  int64_t LargestContext() const;

  // Until when a pair may be expected while none is ready; 0: none is. One is expected while the
  // places of some chain and some decode service, or of some colocated chain, are all held by
  // workers that are here or that were lost no longer ago than `pair_grace_us`, and no longer than
  // that after the last of them joined, was lost, changed its readiness or its links, or could not
  // connect. So a worker that dies is waited for (it may be started again), and so is a way that
  // is barred for a moment. One that drains most likely makes room for its successor: it counts as
  // changed as long as it is here. A role that never was here is not expected: this router can't
  // know of it.
  int64_t PairExpectedUntilUs(int64_t now_us) const;

  // Why no pair is ready, for the client and the operator.
  std::string WhatIsMissing() const;
  // What a request needs one of, in words: this cluster may have colocated chains alone.
  const char* WhatServes() const;

  // Members that don't drain fit one another, whatever happens. For tests; defined in testing/.
  absl::Status CheckInvariants() const;

 private:
  using WorkerMap = std::map<std::string, Worker>;  // By instance id.
  using Places = std::vector<const Worker*>;        // By place; nullptr where one is missing.
  // What is remembered of a worker that was lost, until it is back or the grace is over.
  struct Absent {
    GridPlace place;
    int64_t lost_us = 0;
    bool left = false;  // Drained, and on its own.
  };

  void Join(const WorkerInfo& worker, int64_t lease_until_us, int64_t now_us,
            std::vector<Worker>& lost);
  void Lose(WorkerMap::iterator worker, std::vector<Worker>& lost);
  // Who is lost may be back, or another one in its place: of as many as may be members, those that
  // were lost last.
  void Remember(const WorkerInfo& worker, bool left, int64_t now_us);
  void Sweep(int64_t now_us, std::vector<Worker>& lost);
  absl::Status CheckNameIsFree(const InstanceRef& instance) const;
  // applicants.cc
  static absl::Status CheckFitsMember(const WorkerInfo& worker, const Worker& member);
  absl::Status CheckFitsMembers(const WorkerInfo& worker) const;
  void Refuse(const WorkerInfo& worker, const absl::Status& misfit, int64_t now_us);
  void AddIfItFits(const WorkerInfo& worker, Group& group) const;
  void AddApplicants(Group& group, int64_t now_us) const;
  Group Incumbents(int64_t now_us) const;
  Group Challengers(const WorkerInfo& worker, int64_t now_us) const;
  bool GiveWayTo(const WorkerInfo& worker, int64_t now_us, std::vector<Worker>& lost);
  void Relist(const GridName& grid);
  bool AllHearOfAll() const;
  static bool CanServe(const Places& places);
  void Changed(const Worker& worker);
  void ForgetPairs();
  // Brings the roster up to date with the grids that have changed.
  void Refresh() const;
  Worker* FindToChange(const InstanceRef& instance);
  void EndProbation(Worker& worker, int64_t now_us);
  std::string WhyNotReady(const Worker& worker) const;
  // Pairs that could not connect.
  std::string WhoIsNotConnected() const;
  bool OnlyColocated() const;

  MembershipOptions options_;
  uint64_t version_ = 1;
  int64_t sweep_us_ = kNeverUs;  // No lease ends before, no probation, no pair's time apart.
  int64_t began_us_ = kNeverUs;  // The first registration.
  WorkerMap workers_;
  std::map<std::string, Absent> absent_;         // By instance id.
  std::map<std::string, Applicant> applicants_;  // By instance id.
  // The members' places; a grid of none is gone.
  std::map<GridName, Places> grids_;
  std::set<GridName> relisted_;  // Since TakeRelisted.
  bool told_of_all_ = true;      // As of then: AllHearOfAll.
  // Until when pairs are in Roster::unconnected.
  std::map<std::pair<uint64_t, uint64_t>, int64_t> unconnected_until_us_;
  // What follows from the members is found when it is asked for; nullopt: to be found again.
  mutable std::optional<size_t> pair_count_;  // That are ready.
  mutable std::optional<bool> has_pair_;
  mutable Roster roster_;
  mutable std::set<GridName> changed_;  // Since the roster was brought up to date.
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_MEMBERSHIP_H_
