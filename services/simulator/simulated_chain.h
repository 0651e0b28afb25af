// A chain in virtual time, which may decode what it reads, or what others have read
// (simulated_decode.h): the real planner and stages. Computations take as long as the profile says;
// messages take latency and bandwidth. Nothing is lost and no process fails, so there is no linking
// and no lease. The hand-off is a number of bytes and a commit after them, for each stage of the
// decode service that has some of the layers.
#ifndef SERVICES_SIMULATOR_SIMULATED_CHAIN_H_
#define SERVICES_SIMULATOR_SIMULATED_CHAIN_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/engine/timed/timed_profile.h"
#include "common/types/ticket.h"
#include "services/prefill/core/chain_planner.h"
#include "services/prefill/core/stage.h"
#include "services/simulator/cluster_shape.h"
#include "services/simulator/run_record.h"
#include "services/simulator/virtual_time.h"

namespace baton::simulator {

class SimulatedChain {
 public:
  // The chain's outputs. All up to `failed` are called at stage 0, at the time of the event.
  struct Ways {
    std::function<void(const prefill::FinishRequest&)> finished;
    // A request that the chain decodes: its prompt is computed; and the tokens of a step.
    std::function<void(const prefill::PromptDone&)> prompt_done = {};
    std::function<void(const std::vector<prefill::DeliverToken>&)> tokens;
    std::function<void(const absl::Status&)> failed;  // Real stages would break the chain now.
    // Where KV is handed over: the connection into a stage of the decode service, which all chains
    // share.
    std::function<Pipe&(const InstanceRef& decode, int stage)> inbound = {};
    // A stage's commit arrives there, after all of its KV.
    std::function<void(const Ticket&, int stage, std::optional<SampledToken> first_token)>
        committed = {};
    // Where KV is granted to the chain: GrantKv, HandOutTicket and RevokeKv.
    std::function<void(const prefill::PlannerAction&)> granting = {};
    // The index of the attempt's request.
    std::function<int(uint64_t attempt_id)> request_of = {};
    // Whether the timeline has room for these chunks, whose computation starts now; may be empty.
    std::function<bool(int64_t begin_us, int chunks)> keeps = {};
    // What the planner has heard and does, for a witness; may be empty.
    std::function<void(const prefill::PlannerEvent&, const std::vector<prefill::PlannerAction>&)>
        witness = {};
  };

  // `shape` and `time` outlive the chain.
  SimulatedChain(const ClusterShape& shape, const ChainShape& chain, VirtualTime& time, Ways ways);

  // From the router, or of what is granted.
  void Handle(const prefill::PlannerEvent& event);

  prefill::PlannerLoad load() const { return planner_.load(); }

  // Accounts for the time up to now; the run is over.
  ChainRecord TakeRecord();
  // For tests (testing/settle.cc): OK if its invariants hold and it holds nothing.
  absl::Status CheckAtRest() const;

 private:
  struct Place {
    Place(const ClusterShape& shape, const ChainShape& chain, int stage);

    const LayerRange layers;
    prefill::Stage core;
    TimedSteps steps;
    Pipe activations;
    Pipe kv;
    std::deque<prefill::RunCompute> submitted;  // The first one is running.
    std::map<uint64_t, int64_t> kv_ends_us;     // By attempt: when its KV has been sent.
  };

  int stages() const { return static_cast<int>(places_.size()); }
  void Perform(const prefill::PlannerAction& action, std::vector<prefill::DeliverToken>& tokens);
  void HandleStage(int stage, const prefill::StageEvent& event);
  void Deliver(int stage, prefill::StageEvent event);  // To that stage, from another process.
  std::vector<std::pair<int, LayerRange>> ReceiversOf(int stage, const Ticket& ticket) const;
  void Perform(int stage, const prefill::RunCompute& run);
  void Perform(int stage, const prefill::SendActivations& send);
  void Perform(int stage, const prefill::ReturnCredit& credit);
  void Perform(int stage, const prefill::SendKv& send);
  void Perform(int stage, const prefill::SendCommit& commit);
  void Perform(int stage, const prefill::CancelKv& cancel);
  void Perform(int stage, const prefill::ReportPlanDone& report);
  void Perform(int stage, const prefill::ReportRequestClosed& report);
  void Perform(int stage, const prefill::EndEpoch& end);
  void Tell(int stage, prefill::PlannerEvent event);
  void BeginCompute(int stage);
  void Keep(int stage, const prefill::RunCompute& run, int64_t micros);
  void Measure();

  const ClusterShape& shape_;
  VirtualTime& time_;
  const Ways ways_;
  prefill::ChainPlanner planner_;
  std::vector<std::unique_ptr<Place>> places_;
  Alarm alarm_;
  int arriving_ = 0;  // Open requests whose KV is not all there.
  ChainRecord record_;
};

}  // namespace baton::simulator

#endif  // SERVICES_SIMULATOR_SIMULATED_CHAIN_H_
