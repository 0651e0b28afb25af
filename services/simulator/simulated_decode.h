// A decode service in virtual time: the real planner, stage and book of tickets; steps take as long
// as the profile says. It counts a grant's commits instead of using the lease table, since nothing
// is lost here.
#ifndef SERVICES_SIMULATOR_SIMULATED_DECODE_H_
#define SERVICES_SIMULATOR_SIMULATED_DECODE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/timed/timed_profile.h"
#include "services/decode/core/ticket_book.h"
#include "services/prefill/core/chain_planner.h"
#include "services/prefill/core/stage.h"
#include "services/simulator/cluster_shape.h"
#include "services/simulator/run_record.h"
#include "services/simulator/virtual_time.h"

namespace baton::simulator {

class SimulatedDecode {
 public:
  // The calls to the router, at the time of the event. Tokens are those of one step.
  struct Ways {
    std::function<void(uint64_t attempt_id, const absl::StatusOr<Ticket>&)> replied;
    std::function<void(const std::vector<prefill::DeliverToken>&)> tokens;
    std::function<void(uint64_t attempt_id, const absl::StatusOr<FinishReason>&)> finished;
  };

  // `shape` and `time` outlive it.
  SimulatedDecode(const ClusterShape& shape, const InstanceRef& self, VirtualTime& time, Ways ways);

  // From the router.
  void Reserve(const prefill::StartRequested& request);
  void Open(uint64_t attempt_id, uint64_t generation);
  void Abort(uint64_t attempt_id, const absl::Status& reason);
  // A stage's commit, after all of its KV.
  void Commit(const Ticket& ticket, const std::optional<SampledToken>& first_token);

  Pipe& inbound() { return inbound_; }

  DecodeRecord TakeRecord() { return record_; }
  // For tests (testing/settle.cc): OK if its invariants hold and it holds nothing.
  absl::Status CheckAtRest() const;

 private:
  struct Grant {
    uint32_t slot = 0;
    size_t missing = 0;  // Commits of writers that have not arrived.
    SampledToken first_token;
  };

  void Wake();
  void HandlePlanner(const prefill::PlannerEvent& event);
  void Perform(const prefill::PlannerAction& action, std::vector<prefill::DeliverToken>& tokens);
  void HandleStage(const prefill::StageEvent& event);
  void Perform(const prefill::StageAction& action);
  void BeginCompute();
  void Measure();

  VirtualTime& time_;
  const Ways ways_;
  prefill::ChainPlanner planner_;
  prefill::Stage stage_;
  decode::TicketBook book_;
  TimedSteps steps_;
  std::deque<prefill::RunCompute> submitted_;  // The first one is running.
  Pipe inbound_;
  std::map<uint64_t, Grant> grants_;  // By generation, until complete or revoked.
  Alarm alarm_;
  DecodeRecord record_;
};

}  // namespace baton::simulator

#endif  // SERVICES_SIMULATOR_SIMULATED_DECODE_H_
