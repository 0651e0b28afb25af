// A cluster in virtual time, for sizing: the real cores of routers, chains and decode services,
// joined by messages that take a given time. All workers are there from the beginning, and nothing
// fails. Several routers take requests in turn, as behind a balancer that knows nothing of them.
// tests/sim runs the same cores with failures.
#ifndef SERVICES_SIMULATOR_SIMULATED_CLUSTER_H_
#define SERVICES_SIMULATOR_SIMULATED_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/router/core/router_core.h"
#include "services/simulator/cluster_shape.h"
#include "services/simulator/run_record.h"
#include "services/simulator/simulated_chain.h"
#include "services/simulator/simulated_decode.h"
#include "services/simulator/virtual_time.h"
#include "services/simulator/workload.h"
#include "services/worker/core/router_membership.h"
#include "services/worker/core/taken_prompts.h"

namespace baton::simulator {

class SimulatedCluster {
 public:
  using Witness =
      std::function<void(const prefill::PlannerEvent&, const std::vector<prefill::PlannerAction>&)>;

  // `shape` and `workload` outlive it. `witness` hears of every chain (SimulatedChain::Ways).
  SimulatedCluster(const ClusterShape& shape, const Workload& workload,
                   const TimelineWindow& timeline, Witness witness = {});

  int64_t now_us() const { return time_.now_us(); }

  // Runs until every request has ended. Call it once. The same shape and workload give the same
  // record. UNAVAILABLE if real stages would give a plan up, RESOURCE_EXHAUSTED after kEventsMax
  // events.
  absl::StatusOr<RunRecord> Run();

  // For tests (testing/settle.cc), after Run: lets messages under way arrive, then checks that
  // nothing is held.
  absl::Status Settle();

  static constexpr uint64_t kEventsMax = uint64_t{1} << 32;

 private:
  struct Router {
    Router(const router::RouterLimits& limits, VirtualTime& time, std::function<void()> ring)
        : incarnation(limits.incarnation), core(limits), alarm(time, std::move(ring)) {}
    const uint64_t incarnation;
    router::RouterCore core;
    Alarm alarm;
  };
  // What stage 0 of a chain or decode service says of itself to the routers.
  struct Speaker {
    Speaker(VirtualTime& time, std::function<void()> beat) : due(time, std::move(beat)) {}
    Alarm due;
    int64_t beat_us = 0;  // The last one.
    router::HeartbeatReceived heartbeat;
    std::function<prefill::PlannerLoad()> load;
    int pages = 0;
    worker::TakenPrompts taken;  // Chains only.
  };

  void AddSpeaker(const InstanceRef& self, int pages, std::function<prefill::PlannerLoad()> load);
  void Join(Router& router);
  void Beat(Speaker& speaker);
  void AddChain(int chain);
  void AddDecode(int decode);
  void Fail(const absl::Status& status) {
    if (failure_.ok()) failure_ = status;
  }
  void Submit(int request);
  void SubmitNext();
  void Handle(Router& router, const router::Event& event);
  // From another process, of an attempt.
  void Hear(uint64_t attempt_id, router::Event event);
  void HearTokens(const std::vector<prefill::DeliverToken>& tokens);
  template <typename Action>
  prefill::StartRequested StartOf(const Action& action) const;
  void Perform(const router::AnswerLease& action);
  void Perform(const router::Reserve& action);
  void Perform(const router::OpenStream& action);
  void Perform(const router::StartPrefill& action);
  void Perform(const router::StartGeneration& action);
  void Perform(const router::AbortPrefill& action);
  void Perform(const router::AbortDecode& action);
  void Perform(const router::DeliverToken& action);
  void Perform(const router::FinishCall& action);
  template <typename Other>
  void Perform(const Other& /*action*/) {}  // Membership does not change.
  SimulatedChain& ChainOf(const InstanceRef& stage0) { return *chains_.at(chain_of_.at(stage0)); }
  SimulatedDecode& DecodeOf(const InstanceRef& decode) {
    return *decode_services_.at(decode_of_.at(decode));
  }
  RequestRecord& RecordOf(uint64_t call_id) { return record_.requests[call_id - 1]; }
  Router& RouterOf(uint64_t call_id) { return *routers_[(call_id - 1) % routers_.size()]; }
  std::vector<uint64_t> PrefixOf(uint64_t call_id) const;
  void Take(const InstanceRef& stage0, uint64_t call_id, const prefill::StartRequested& start);
  bool Keeps(int64_t begin_us, int chunks);
  RunRecord TakeRecord();

  const ClusterShape& shape_;
  const Workload& workload_;
  const TimelineWindow timeline_;
  const Witness witness_;
  VirtualTime time_;
  std::vector<std::unique_ptr<Router>> routers_;
  std::map<InstanceRef, std::unique_ptr<Speaker>> speakers_;
  std::vector<std::unique_ptr<SimulatedChain>> chains_;
  std::vector<std::unique_ptr<SimulatedDecode>> decode_services_;
  std::map<InstanceRef, size_t> chain_of_;  // By stage 0.
  std::map<InstanceRef, size_t> decode_of_;
  std::map<uint64_t, uint64_t> call_of_attempt_;
  RunRecord record_;
  int waiting_ = 0;  // Requests, in all routers.
  size_t submitted_ = 0;
  size_t ended_ = 0;
  int kept_ = 0;  // Chunks in the timeline.
  absl::Status failure_;
};

}  // namespace baton::simulator

#endif  // SERVICES_SIMULATOR_SIMULATED_CLUSTER_H_
