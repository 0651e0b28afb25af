// A simulated router: the real RouterCore, its legs as calls to the other nodes, and the clients'
// side of every request, where the promises to users are checked (I2, right tokens, deadline).
#ifndef TESTS_SIM_ROUTER_PROCESS_H_
#define TESTS_SIM_ROUTER_PROCESS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "services/router/core/leg_calls.h"
#include "services/router/core/router_core.h"
#include "tests/sim/clients.h"
#include "tests/sim/router_witness.h"
#include "tests/sim/sim_alarm.h"
#include "tests/sim/topology.h"
#include "tests/sim/worker_membership.h"
#include "tests/sim/world.h"

namespace baton::sim {

class RouterProcess : public Process {
 public:
  RouterProcess(World& world, const Topology& topology, Clients& clients, int node,
                uint64_t incarnation);

  // What every worker of one topology says of itself.
  static router::WorkerInfo Describe(const Topology& topology, const InstanceRef& self);

  // Told to stop: exits when it is drained.
  void Drain(int64_t settle_us, int64_t timeout_us);
  // Cluster.Drain.
  void DrainWorker(const std::string& instance_id);
  // From clients.
  void Submit(uint64_t call_id);
  void Cancel(uint64_t call_id);
  void AbortRequest(const std::string& request_id);  // Inference.Abort.
  // Every chain with every decode service that fits is a pair that can take a request.
  void CheckServesAll();
  // From workers.
  void AskLease(const router::LeaseAsked& asked);
  void Heartbeat(const router::HeartbeatReceived& heartbeat) { Handle(heartbeat); }
  void Find(uint64_t call, int node, const InstanceRef& peer);
  void ReserveReply(uint64_t call, uint64_t attempt_id, const absl::StatusOr<Ticket>& ticket);
  void Token(uint64_t call, uint64_t attempt_id, const SampledToken& token);
  void DecodeFinished(uint64_t call, uint64_t attempt_id, FinishReason reason);
  // A colocated chain's, before the first token.
  void PromptTold(uint64_t call, uint64_t attempt_id,
                  const std::vector<SampledToken>& prompt_tokens);
  void StreamEnd(uint64_t call, uint64_t attempt_id, const absl::Status& status);
  void PrefillEnd(uint64_t call, uint64_t attempt_id, const absl::Status& status,
                  const std::vector<SampledToken>& prompt_tokens);

  const router::Membership& membership() const { return core_.membership(); }
  void CallBroken(uint64_t call) override;
  absl::Status CheckInvariants() const override {
    const absl::Status legs = legs_.CheckInvariants();
    return legs.ok() ? core_.CheckInvariants() : legs;
  }
  bool AtRest(std::string& why_not) const override;

 private:
  struct OpenCall {
    uint64_t attempt_id = 0;
    router::LegCall call = router::LegCall::kReserve;
    InstanceRef worker;
    bool answered = false;  // Decode has finished; the stream's end is on its way.
    bool tells_prompt = false;
  };

  void Handle(const router::Event& event);
  void Perform(const router::Action& action);
  // Sends `tell` to the membership of the worker on `node`.
  void Tell(uint64_t call, int node, const char* label,
            const std::function<void(WorkerMembership&)>& tell);
  // On a call that holds, or asks for, a lease.
  void TellLease(uint64_t call, const char* label,
                 const std::function<void(WorkerMembership&)>& tell);
  void EndLease(uint64_t call, const absl::Status& status);
  // In a cluster where nothing disturbs it every worker knows its changed members at once.
  void CheckMembersArrive();
  void TellsJoined(const router::AnswerLease& act);
  WorkerMembership* MembershipOf(const InstanceRef& instance) const;  // nullptr: it is gone.
  void PerformLeg(const router::Reserve& act);
  void PerformLeg(const router::OpenStream& act);
  void PerformLeg(const router::StartPrefill& act);
  void PerformLeg(const router::StartGeneration& act);
  // Changes the legs' core and does what comes of it.
  void ChangeLegs(const std::function<void(std::vector<router::LegAction>&)>& change);
  void PerformLeg(const router::TellRouter& act);
  void PerformLeg(const router::CancelCall& act);
  void PerformLeg(const router::SendAbort& act);
  template <typename Action>
  uint64_t OpenLeg(const Action& act, const InstanceRef& worker);
  std::string AddressOf(const InstanceRef& worker) const;
  bool EndCall(uint64_t call);
  // As the worker is to tell them of its prompt; empty if it is not asked to.
  std::vector<int32_t> ExpectedOf(uint64_t call, uint64_t attempt_id) const;
  void CallFailed(const OpenCall& open, const absl::Status& status);
  void CheckToldRightly(const absl::Status& status);
  bool StrikeWithNonsense(uint64_t attempt_id, const char* words);
  void CheckTimeAllowed(int64_t deadline_us, const router::BeginCall& call);
  std::optional<uint64_t> CallOf(uint64_t attempt_id) const;  // The client, if it is its latest.
  // Either leg's end ends the other at once; a lingering decode leg would hold unused pages.
  void CheckDecodeLegEnded(uint64_t call_id);
  // Nothing that comes later, prefill's failure included, takes back an answer that is complete.
  void CheckAnswerStands(const router::FinishCall& finish);
  // What full workers refuse comes back to them only within the budget, as told by their refusals.
  void HandleRefusable(uint64_t attempt_id, const absl::Status& status, const router::Event& event);
  void CheckRefusal(uint64_t call_id, const absl::Status& status);
  void LetIntrudersAsk(const router::WorkerInfo& like);  // intruders.cc
  void LetAnotherShapeAsk();
  void LetATwinAsk(const std::vector<router::Worker>& here);
  bool HasPlaces() const;  // For another worker.
  void ExpectMisfit(const router::WorkerInfo& intruder, const std::string& words);
  void ServedBy(const router::FinishCall& finish);

  World& world_;
  const Topology& topology_;
  Clients& clients_;
  const int node_;
  const uint64_t incarnation_;
  const router::RouterLimits limits_;
  router::RouterCore core_;
  RouterWitness witness_;
  std::deque<int64_t> begun_us_;  // Start times of requests.
  std::deque<int64_t> kept_us_;   // For requests that were refused, and go on.
  router::LegCalls legs_;
  std::map<uint64_t, OpenCall> calls_;      // The legs' calls, by the world's number.
  int64_t timeout_us_ = 0;                  // For the call being opened.
  std::map<uint64_t, int> leases_;          // Worker's call -> its node.
  uint64_t checked_version_ = 0;            // Whose arrival is being checked.
  std::map<InstanceRef, int64_t> told_us_;  // When it was told first that it is a member.
  std::map<uint64_t, uint64_t> attempts_;   // Call -> its latest attempt.
  std::set<uint64_t> answered_;             // Attempts of which decode has told everything.
  absl::Status intruder_told_;
  const char* nonsense_ = nullptr;  // By what words the one that is being told is to be called.
  SimAlarm alarm_{world_, node_, "router tick", [this] { Handle(router::Tick{}); }};
};

}  // namespace baton::sim

#endif  // TESTS_SIM_ROUTER_PROCESS_H_
