// One rank's part in the group of its stage or decode service, in virtual time: its way into it, as
// services/links/group_joiner has it, and its sums, by the real core of communicators over
// connections that are late and break (common/collective/collective_core.h).
//
// A step of the toy model is two collectives: at its begin, when the ranks' partial sums meet, and
// at its end. Each carries what its ranks take the step for.
#ifndef TESTS_SIM_SIM_GROUP_H_
#define TESTS_SIM_SIM_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/collective/communicator.h"
#include "common/collective/rendezvous.h"
#include "services/links/core/hello.h"
#include "tests/sim/stage_groups.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

class SimGroup {
 public:
  // As GroupJoiner's: what the group's members are to be told, and how the attempt ends.
  struct Callbacks {
    std::function<void(const Rendezvous::Entry&)> say;
    std::function<void()> connected;
    std::function<void(const absl::Status&)> formed;
  };
  SimGroup(World& world, const Topology& topology, StageGroups& witness, int node);  // Whose rank.
  ~SimGroup();

  void Join(const GroupDescription& group, Callbacks callbacks);
  void OnMessage(const Rendezvous::Message& message);
  void Leave(const absl::Status& why);
  // With the name of the rank that the status blames, if it does.
  absl::Status Blame(const absl::Status& status) const;

  // A collective: `done` gets every rank's number, by rank. Never before Gather returns.
  using Gathered = std::function<void(const absl::StatusOr<std::vector<uint64_t>>&)>;
  void Gather(uint64_t own, const Gathered& done);
  // The same at the begin of a step, to which this rank may come late.
  void BeginStep(uint64_t own, const Gathered& done);
  // This rank's step has failed: the group ends for all.
  void Fail(const absl::Status& why);

  // From the other ranks.
  void TakeCall(uint64_t call, uint64_t epoch, int rank);
  void TakeFrame(uint64_t call, std::vector<std::byte> frame);
  void CallBroken(uint64_t call);

 private:
  struct Attempt;
  using AttemptPtr = std::shared_ptr<Attempt>;

  StageGroups::Key KeyOf(const Attempt& attempt) const;
  int NodeOfRank(int rank) const;
  void Say(const AttemptPtr& attempt);
  void OpenCalls(const AttemptPtr& attempt);
  void BeginIfConnected(const AttemptPtr& attempt);
  void Offer(Attempt& attempt, int rank, std::vector<std::byte> frame);
  // Reads, sends and completes until nothing moves.
  void Pump(const AttemptPtr& attempt);
  bool SendSome(Attempt& attempt);
  void WatchDeadline(const AttemptPtr& attempt);
  void End(const AttemptPtr& attempt, const absl::Status& status);

  World& world_;
  const Topology& topology_;
  StageGroups& witness_;
  const int node_;
  AttemptPtr attempt_;                // Null: none, and no group.
  std::vector<std::string> members_;  // The last group's members, by rank.
};

}  // namespace baton::sim

#endif  // TESTS_SIM_SIM_GROUP_H_
