// A simulated decode service: the real DecodeCore and LeaseTable, each on its own time line as on
// the loop and data threads, and a kernel that computes on the pages it is told to (I3). Witnesses
// hold both cores to what their headers promise.
#ifndef TESTS_SIM_DECODE_PROCESS_H_
#define TESTS_SIM_DECODE_PROCESS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/kv/lease_table.h"
#include "services/decode/core/decode_core.h"
#include "tests/sim/decode_account.h"
#include "tests/sim/decode_witness.h"
#include "tests/sim/lease_witness.h"
#include "tests/sim/oracle.h"
#include "tests/sim/sim_memory.h"
#include "tests/sim/topology.h"
#include "tests/sim/worker_drain.h"
#include "tests/sim/worker_membership.h"
#include "tests/sim/world.h"

namespace baton::sim {

struct SimReserve {
  uint64_t attempt_id = 0;
  uint64_t prompt_id = 0;  // Stands for the prompt's tokens.
  int prompt_tokens = 0;
  int max_tokens = 0;
  std::vector<KvWriter> writers;
  int64_t timeout_us = 0;
};

// The bytes of a tensor message: slots, one after the other.
using SimPayload = std::shared_ptr<const std::vector<uint64_t>>;

class DecodeProcess : public Process {
 public:
  DecodeProcess(World& world, const Topology& topology, Oracle& oracle, int node,
                uint64_t incarnation);

  // Told to stop: exits when it is drained.
  void Drain(int64_t drain_us) { drain_->Begin(drain_us); }
  // Control plane.
  void Reserve(uint64_t call, const SimReserve& request);
  void Generate(uint64_t call, uint64_t attempt_id, uint64_t generation);
  void Abort(uint64_t attempt_id);
  // Data plane.
  // `again`: the message has come before, or was for a former life.
  void ReceiveKv(const KvDataHeader& header, const SimPayload& payload, bool corrupt, bool again);
  void ReceiveCommit(const KvCommit& commit, bool again);
  void ReceiveHeartbeat(const InstanceRef& writer);

  // The writer of `layers` has delivered them, or nobody waits for them any more.
  bool HasKv(const Ticket& ticket, const InstanceRef& writer) const;

  WorkerMembership& membership() { return *membership_; }
  void CallBroken(uint64_t call) override;
  void PeerClosed(const InstanceRef& peer, int64_t opened_us) override {
    membership_->PeerClosed(peer, opened_us);
  }
  absl::Status CheckInvariants() const override;
  bool AtRest(std::string& why_not) const override;

 private:
  // From Reserve to the request's terminal action, as the shell's.
  struct Session {
    uint64_t reserve_call = 0;
    uint64_t stream_call = 0;
  };
  // What a step's kernel does for one sequence.
  struct Row {
    uint64_t attempt_id = 0;
    const Oracle::Sequence* sequence = nullptr;
    std::vector<int> pages;
    int position = 0;
    int draw = 0;
    uint64_t out = 0;     // Of the last layer.
    uint64_t digest = 0;  // Of everything up to its position.
  };

  void HandleCore(const decode::Event& event);
  void HandleOne(const decode::Event& event);
  void Perform(const decode::ReplyReserve& action);
  void Perform(const decode::GrantKv& action);
  void Perform(const decode::RevokeKv& action);
  void Perform(const decode::DeliverToken& action);
  void Perform(const decode::RefuseStream& action);
  void Perform(const decode::Finish& action);
  void Perform(const decode::RunStep& step);
  void Perform(const decode::PartRanks&) {}  // Services are one process here.
  void OpenStaleStream(uint64_t attempt_id, uint64_t generation);
  // What no router of ours asks for (decode_intruders.cc).
  void LetIntrudersReserve(const decode::ReserveRequested& like);
  void ExpectRefused(const decode::ReserveRequested& request, absl::StatusCode code,
                     const char* words);
  Row RunRow(const decode::RunStep::Sequence& sequence);
  decode::StepFinished EndStep(uint64_t step, const std::vector<Row>& rows);
  // Layer `source` of a message's part of a page goes to the bits of the slots of `layer`.
  struct Landing {
    int source = 0;
    int layer = 0;
    uint64_t bits = 0;
  };
  std::vector<Landing> LandingsOf(const KvPlacement& placement) const;
  void Place(const KvPlacement& placement, const std::vector<uint64_t>& payload, size_t first,
             size_t count);
  // Once a grant is committed: whether its pages hold what prefill should have sent.
  void CheckHandedOver(const KvCommitted& committed);
  void ToCore(const std::vector<LeaseEvent>& events);
  void ToLeaseTable(const char* label, std::function<void(std::vector<LeaseEvent>&)> run);
  void ScheduleTick();
  void LeaseTick();

  World& world_;
  const Topology& topology_;
  const int node_;
  const InstanceRef self_;
  decode::DecodeCore core_;
  LeaseTable leases_;
  DecodeWitness witness_;
  DecodeAccount account_;
  LeaseWitness lease_witness_;
  SimMemory memory_;
  FreedPages freed_;
  std::unique_ptr<WorkerMembership> membership_;
  std::unique_ptr<WorkerDrain> drain_;
  std::map<uint64_t, Session> sessions_;          // By attempt.
  uint64_t opening_call_ = 0;                     // Of the StreamOpened being handled.
  std::map<uint64_t, std::vector<int>> granted_;  // Generation -> pages of the prompt.
  int64_t core_inbox_us_ = 0;                     // Keeps each direction in order.
  int64_t lease_inbox_us_ = 0;
  int64_t tick_us_ = kNeverUs;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_DECODE_PROCESS_H_
