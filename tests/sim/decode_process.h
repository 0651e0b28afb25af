// A simulated decode service: the real DecodeCore and LeaseTable, each on its own time line as on
// the loop and data threads, with pages whose content is checked before every step (I3).
#ifndef TESTS_SIM_DECODE_PROCESS_H_
#define TESTS_SIM_DECODE_PROCESS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/kv/lease_table.h"
#include "services/decode/core/decode_core.h"
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

class DecodeProcess : public Process {
 public:
  DecodeProcess(World& world, const Topology& topology, int node, uint64_t incarnation);

  // Told to stop: exits when it is drained.
  void Drain(int64_t drain_us) { drain_->Begin(drain_us); }
  // Control plane.
  void Reserve(uint64_t call, const SimReserve& request);
  void Generate(uint64_t call, uint64_t attempt_id, uint64_t generation);
  void Abort(uint64_t attempt_id);
  // Data plane.
  void ReceiveKv(const KvDataHeader& header, const std::vector<uint64_t>& content, bool corrupt);
  void ReceiveCommit(const KvCommit& commit);
  void ReceiveHeartbeat(const InstanceRef& writer);

  // The writer of `layers` has delivered them, or nobody waits for them any more.
  bool HasKv(const Ticket& ticket, LayerRange layers) const;

  WorkerMembership& membership() { return *membership_; }
  void CallBroken(uint64_t call) override;
  absl::Status CheckInvariants() const override;
  bool AtRest(std::string& why_not) const override;

 private:
  void HandleCore(const decode::Event& event);
  void Perform(const decode::Action& action);
  void RunStep(const decode::RunStep& step);
  void CheckContext(const decode::RunStep::Sequence& sequence);
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
  std::unique_ptr<WorkerMembership> membership_;
  std::unique_ptr<WorkerDrain> drain_;
  struct Prompt {
    uint64_t prompt_id = 0;
    int tokens = 0;
    uint64_t reserve_call = 0;
    uint64_t stream_call = 0;
  };
  std::map<uint64_t, Prompt> prompts_;        // By attempt.
  std::vector<std::vector<uint64_t>> pages_;  // [page][layer]: content.
  std::map<uint32_t, uint64_t> granted_;      // Slot -> generation that may be written to (I4).
  int64_t core_inbox_us_ = 0;                 // Keeps each direction in order.
  int64_t lease_inbox_us_ = 0;
  int64_t tick_us_ = kNeverUs;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_DECODE_PROCESS_H_
