// A simulated prefill stage, or a rank of one: the real Stage, on the chain's member 0 the real
// ChainPlanner too, and the wiring of the chain, with pages and activations whose content is
// checked at every use.
#ifndef TESTS_SIM_PREFILL_PROCESS_H_
#define TESTS_SIM_PREFILL_PROCESS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "services/links/core/hello.h"
#include "services/prefill/core/chain_planner.h"
#include "services/prefill/core/kv_outbox.h"
#include "services/prefill/core/neighbours.h"
#include "services/prefill/core/stage.h"
#include "tests/sim/chain_profile.h"
#include "tests/sim/chunk_witness.h"
#include "tests/sim/oracle.h"
#include "tests/sim/planner_account.h"
#include "tests/sim/planner_witness.h"
#include "tests/sim/sim_alarm.h"
#include "tests/sim/sim_group.h"
#include "tests/sim/sim_link.h"
#include "tests/sim/sim_memory.h"
#include "tests/sim/sim_wiring.h"
#include "tests/sim/stage_groups.h"
#include "tests/sim/stage_witness.h"
#include "tests/sim/stale_events.h"
#include "tests/sim/topology.h"
#include "tests/sim/worker_drain.h"
#include "tests/sim/worker_membership.h"
#include "tests/sim/world.h"

namespace baton::sim {

class DecodeRank;

struct SimStart {
  uint64_t attempt_id = 0;
  uint64_t prompt_id = 0;
  int prompt_tokens = 0;
  Ticket ticket;
  int64_t timeout_us = 0;
  bool prompt_logprobs = false;
};

// What stage 0's other ranks are told of a prompt beside its plans: they embed its tokens, too.
struct SimOpened {
  uint64_t attempt_id = 0;
  uint64_t prompt_id = 0;
  int prompt_tokens = 0;
};

// What a stage passes on: for every item of a plan whose prompt it is, how many layers ran, and
// what they have made of every token; of several ranks, each its slice of that.
struct SimActivations {
  uint64_t epoch = 0;
  uint64_t number = 0;
  struct Row {
    uint64_t attempt_id = 0;
    uint64_t prompt_id = 0;
    int prompt_tokens = 0;
    int token_begin = 0;
    int token_count = 0;
    int layers_done = 0;
    std::vector<uint64_t> x;  // By token.
  };
  std::vector<Row> rows;
};
using SimActivationsPtr = std::shared_ptr<const SimActivations>;

links::ChainPlace PlaceOf(const Topology& topology, int node, const InstanceRef& self);

class PrefillProcess : public Process {
 public:
  PrefillProcess(World& world, const Topology& topology, Oracle& oracle, StageGroups& groups,
                 int node, uint64_t incarnation);

  // Told to stop: exits when it is drained.
  void Drain(int64_t drain_us) { drain_->Begin(drain_us); }
  // From the router.
  void Start(uint64_t call, const SimStart& request);
  void Abort(uint64_t attempt_id);
  // From stage 0, on a link.
  void ReceivePlan(uint64_t call, const prefill::Plan& plan, const std::vector<SimOpened>& opened);
  // From neighbours, over the data plane.
  void ReceiveActivations(const SimActivationsPtr& activations, bool corrupt);
  void ReceiveSum(uint64_t epoch, uint64_t number);
  void ReceiveCredit(uint64_t epoch, uint64_t number);
  // From decode services.
  void ReceiveReceipt(const KvReceipt& receipt);
  void ReceiveGreeting(const InstanceRef& decode);

  WorkerMembership* worker() override { return membership_.get(); }
  SimGroup* ranks() override { return &group_; }
  SimWiring* wiring() override { return wiring_ ? &*wiring_ : nullptr; }
  SimLink* link() override { return link_ ? &*link_ : nullptr; }
  void CallBroken(uint64_t call) override;
  absl::Status CheckInvariants() const override;
  bool AtRest(std::string& why_not) const override;

 private:
  bool plans() const { return member_ == 0; }
  bool first() const { return stage_index_ == 0; }
  bool last() const { return stage_index_ == topology_.stages - 1; }
  bool draws() const { return last() && rank_.rank == 0; }
  int NodeOfMember(int member) const { return topology_.MemberNode(chain_, member); }
  StageGroups::Key KeyOf(uint64_t epoch) const {
    return StageGroups::KeyOf(topology_, node_, epoch);
  }

  void MakeLinks();
  void OnMembers();
  void OnUp(uint64_t epoch, int page_count);
  void OnDown(const absl::Status& status);
  absl::Status Begin(const links::Hello& hello);
  void EndEpoch(const absl::Status& why);
  // Member 0 breaks its chain, the others their link.
  void FailEpoch(const absl::Status& status);

  void HandlePlanner(const prefill::PlannerEvent& event);
  void HandleStage(const prefill::StageEvent& event);
  void Perform(const prefill::PlannerAction& action);
  void Witness(const prefill::StageAction& action);
  void Perform(const prefill::StageAction& action);
  // Messages of an epoch that come again in a later one, where they must have no effect.
  void KeepForLater(const prefill::PlannerEvent& event);
  void KeepForLater(const prefill::StageEvent& event);
  void DeliverStale(const prefill::PlannerEvent& event);
  void DeliverStale(const prefill::StageEvent& event);
  template <typename Message>
  Message OfAnother(Message message);
  void DeliverAgain(const InstanceRef& decode, double chance, const char* label,
                    const std::function<void(DecodeRank&)>& deliver);
  void Issue(const prefill::Plan& plan);
  // What no peer of ours says (prefill_intruders.cc). True: it was said, and the epoch is over.
  void LetIntrudersStart(const prefill::StartRequested& like);
  void ExpectRefused(const prefill::StartRequested& start, absl::StatusCode code,
                     const char* words);
  bool StrikeWithNonsense(const prefill::Plan& plan);
  bool StrikeWithActivations(uint64_t next);
  bool StrikeWithCredit();
  bool StrikeWithReady(const links::WiringEvent& event);
  void ExpectEndOfEpoch(const prefill::StageEvent& event, const char* words);
  // A plan with the executor, which runs them one by one; and all of the memory that it reads or
  // writes, from its submission on.
  struct Submitted {
    prefill::RunCompute compute;
    SimActivationsPtr input;        // Later stages.
    std::vector<uint64_t> digests;  // By item: of all its tokens so far; once computed.
    int64_t begun_us = 0;
  };
  void Submit(const prefill::RunCompute& compute);
  void BeginCompute();
  bool CheckItem(const prefill::RunCompute::Item& item, const SimActivations::Row& row);
  bool ComputeItem(const prefill::RunCompute::Item& item, SimActivations::Row& row);
  bool RightAfter(int layer, const SimActivations::Row& row);
  bool ComplainOf(const prefill::PlanItem& item, const char* what);
  bool TakeInput(const prefill::RunCompute& compute, SimActivations& rows);
  bool InputStands(const Submitted& plan) const;
  prefill::ComputeFinished ResultOf(const prefill::RunCompute& compute,
                                    const SimActivations& output);
  int64_t DrawCost(const prefill::RunCompute& compute);
  absl::Status DrawFailure();
  int64_t DrawStall();
  void EndCompute(const prefill::ComputeFinished& done);
  void TellComputed();
  // The same with the stage's other ranks (prefill_ranks.cc).
  void BeginTogether();
  void StepBegins(const absl::StatusOr<std::vector<uint64_t>>& taken_for);
  const StageGroups::Step* ComputeTogether(const prefill::RunCompute& compute);
  std::vector<PrefillProcess*> RanksAt(const prefill::RunCompute& compute);
  void StepEnds(prefill::ComputeFinished done);
  void EndTogether(prefill::ComputeFinished done, const absl::Status& status);
  prefill::ComputeFinished::Prompt TellPrompt(const SimActivations::Row& row);
  // What the planner has freed is free on every stage.
  void FreePages();
  void FreePage(uint64_t epoch, int page);
  void SendActivations(const prefill::SendActivations& send);
  void SendSum(const prefill::SendActivations& send, uint64_t endpoint,
               const SimActivationsPtr& output);
  void Check(uint64_t number);
  void ClearTail(const prefill::SendKv& send);
  // Changes the outbox and does what comes of it.
  void Change(const std::function<void(std::vector<prefill::KvOutboxAction>&)>& change);
  std::vector<uint64_t> ReadPages(const prefill::SendKvMessage& message) const;
  void Perform(const prefill::ExportKv& action);
  void Perform(const prefill::SendKvMessage& message);
  void Perform(const prefill::SendCommitMessage& message);
  void NotConnected(uint64_t message_id, const InstanceRef& decode);
  void Perform(const prefill::KvSent& sent);
  void MessageEnded(uint64_t message_id, const absl::Status& status);
  // To the planner, of an epoch.
  void Report(uint64_t epoch, const char* label, const prefill::PlannerEvent& report);
  void CheckHandedOver(const prefill::RequestClosed& closed, const Ticket& ticket);
  void HeartbeatDecodes();
  bool Connected(const InstanceRef& decode) const;
  // Fails the epoch if a neighbour's endpoint has gone.
  void CheckNeighbours();
  // An epoch ends when its endpoint to a neighbour dies, however the core learns of it.
  void CheckEndpoints();

  World& world_;
  const Topology& topology_;
  const int node_;
  const InstanceRef self_;
  const int chain_;
  const int member_;
  const int stage_index_;
  const TensorRank rank_;
  const LayerRange layers_;
  std::optional<prefill::ChainPlanner> planner_;
  prefill::Stage stage_;
  prefill::KvOutbox outbox_;
  std::unique_ptr<WorkerMembership> membership_;
  std::unique_ptr<WorkerDrain> drain_;

  std::optional<SimWiring> wiring_;   // On member 0.
  std::optional<SimLink> link_;       // On the others.
  uint64_t epoch_ = 0;                // That has begun here; 0: none.
  std::vector<InstanceRef> members_;  // The epoch's members.
  prefill::Neighbours neighbours_;
  uint64_t last_plan_ = 0;   // That the stage was given in the epoch.
  uint64_t last_input_ = 0;  // Whose activations it was given.
  StageGroups& groups_;
  SimGroup group_;

  struct Prompt {
    uint64_t prompt_id = 0;
    int tokens = 0;
    uint64_t start_call = 0;
    std::optional<Ticket> ticket;  // The ticket in its commit.
  };
  std::map<uint64_t, Prompt> prompts_;  // By attempt; later stages learn it from activations.
  Oracle& oracle_;
  StageWitness witness_;
  std::optional<PlannerWitness> planner_witness_;
  std::optional<ChunkWitness> chunk_witness_;
  std::optional<ChainProfile> profile_;
  std::optional<PlannerAccount> planner_account_;
  StaleEvents<prefill::PlannerEvent> stale_planner_{world_, node_};
  StaleEvents<prefill::StageEvent> stale_stage_{world_, node_};
  SimMemory memory_;  // Holds this stage's layers and this rank's heads.
  FreedPages freed_;
  std::vector<SimActivationsPtr> inputs_;  // By buffer: number % credits.
  // An input's checksum, which follows it and may be lost.
  struct Sum {
    uint64_t number = 0;
    bool came = false;
    bool damaged = false;  // The input, of which it would be told.
  };
  std::vector<Sum> sums_;  // By input buffer.
  // What was computed, in order; the first one's input is not checked yet.
  std::deque<prefill::ComputeFinished> unchecked_;
  std::vector<SimActivationsPtr> outputs_;  // By buffer: number % OutputBuffers.
  std::deque<Submitted> submitted_;         // The first is being computed.
  SimAlarm planner_alarm_{world_, node_, "planner tick",
                          [this] { HandlePlanner(prefill::Tick{}); }};
  SimAlarm receipt_alarm_{world_, node_, "receipt tick", [this] {
                            Change([&](auto& actions) { outbox_.Tick(world_.now_us(), actions); });
                          }};
};

}  // namespace baton::sim

#endif  // TESTS_SIM_PREFILL_PROCESS_H_
