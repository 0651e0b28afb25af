// A decode service in virtual time: a chain that is granted KV, with the real book of tickets. It
// counts a grant's commits at each stage instead of using lease tables, since nothing is lost here.
#ifndef SERVICES_SIMULATOR_SIMULATED_DECODE_H_
#define SERVICES_SIMULATOR_SIMULATED_DECODE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/decode/core/ticket_book.h"
#include "services/prefill/core/chain_planner.h"
#include "services/simulator/cluster_shape.h"
#include "services/simulator/run_record.h"
#include "services/simulator/simulated_chain.h"
#include "services/simulator/virtual_time.h"

namespace baton::simulator {

class SimulatedDecode {
 public:
  // The calls to the router, at the time of the event. Tokens are those of one step.
  struct Ways {
    std::function<void(uint64_t attempt_id, const absl::StatusOr<Ticket>&)> replied;
    std::function<void(const std::vector<prefill::DeliverToken>&)> tokens;
    std::function<void(uint64_t attempt_id, const absl::StatusOr<FinishReason>&)> finished;
    std::function<void(const absl::Status&)> failed;  // As a chain's.
  };

  // `shape` and `time` outlive it.
  SimulatedDecode(const ClusterShape& shape, int decode, VirtualTime& time, Ways ways);

  // From the router.
  void Reserve(const prefill::StartRequested& request);
  void Open(uint64_t attempt_id, uint64_t generation);
  void Abort(uint64_t attempt_id, const absl::Status& reason);
  // A prefill stage's commit, after all of its KV for this stage.
  void Commit(const Ticket& ticket, int stage, const std::optional<SampledToken>& first_token);

  Pipe& inbound(int stage) { return members_[static_cast<size_t>(stage)].inbound; }

  prefill::PlannerLoad load() const { return chain_.load(); }
  ChainRecord TakeRecord() { return chain_.TakeRecord(); }
  // For tests (testing/settle.cc): OK if its invariants hold and it holds nothing.
  absl::Status CheckAtRest() const;

 private:
  struct Grant {
    uint32_t slot = 0;
    size_t missing = 0;  // Commits of writers that have not arrived.
    std::optional<SampledToken> first_token;
  };
  struct Member {  // A stage.
    Pipe inbound;
    std::map<uint64_t, Grant> grants;  // By generation, until complete or revoked.
  };

  SimulatedChain::Ways ChainWays();
  void WakeBook();
  void HearTokens(std::vector<prefill::DeliverToken> tokens);
  void HearFinish(const prefill::FinishRequest& finish);
  void PerformGranting(const prefill::PlannerAction& action);
  // Runs it there: stage 0 is the planner's own process.
  void AtStage(int stage, std::function<void()> run);
  void Tell(int stage, prefill::PlannerEvent event);

  VirtualTime& time_;
  const Ways ways_;
  decode::TicketBook book_;
  Alarm book_alarm_;
  std::vector<Member> members_;
  SimulatedChain chain_;
};

}  // namespace baton::simulator

#endif  // SERVICES_SIMULATOR_SIMULATED_DECODE_H_
