// The shell around stage 0's wiring, or a decode service's rank 0: opens and closes the links that
// it decides on, and brings to it what comes over them.
#ifndef SERVICES_PREFILL_CHAIN_CHAIN_WIRING_H_
#define SERVICES_PREFILL_CHAIN_CHAIN_WIRING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/base/event_loop.h"
#include "common/base/serial_events.h"
#include "common/rpc/call_tracker.h"
#include "proto/baton/v1/prefill.pb.h"
#include "services/prefill/chain/link_call.h"
#include "services/prefill/chain/messages.h"
#include "services/prefill/core/wiring.h"
#include "services/prefill/stage/group_joiner.h"

namespace baton::prefill {

// Loop thread, but for the destructor and EndCalls.
class ChainWiring {
 public:
  struct Options {
    ChainPlace place;  // Stage 0's.
    int page_count = 0;
    int max_plan_tokens = 0;
    int activation_credits = 0;
    std::shared_ptr<EventLoop> loop;
    GroupJoiner* joiner = nullptr;  // With more ranks a stage than one. Not owned.
  };
  struct Callbacks {  // The first four are everybody's.
    // May stage 0 itself begin an epoch? Then begins it: UNAVAILABLE says why not yet.
    std::function<absl::Status(const Hello&)> begin_own;
    std::function<void(uint64_t epoch, int page_count)> on_up;
    std::function<void(const absl::Status&)> on_down;  // After on_up or begin_own.
    // A member of this epoch is ready; before on_up. What it says of itself may make no sense.
    std::function<absl::Status(int member, const v1::LinkReady&)> on_ready;

    // Of a decode service: what a follower reports of this epoch. An error ends the epoch.
    std::function<absl::Status(int rank, const v1::DecodeReport&)> on_report;

    // Of a chain.
    std::function<uint64_t(int stage)> plans_done;  // See ChainPlanner.
    std::function<void(int stage, int rank, uint64_t epoch, const PlanDone&)> on_plan_done;
    std::function<void(uint64_t epoch)> tell_own_stage;  // How far the next one is.
    std::function<void(int stage, int rank, uint64_t epoch, const RequestClosed&)>
        on_request_closed;
  };
  ChainWiring(Options options, Callbacks callbacks);
  ~ChainWiring();

  void OnView(const std::vector<worker::PeerWorker>& workers) { events_.Raise(ViewSeen{workers}); }
  // Does what is due; returns when it is next.
  int64_t Wake(int64_t now_us);

  // To every other member.
  void Send(const PlanWithContexts& plan);
  // To one follower of a decode service; only while it is up.
  void Send(int rank, v1::DecodeOrder order);
  void Break(const absl::Status& reason) { events_.Raise(ChainFailed{reason}); }
  // For what a rank of a later stage did not do.
  void BreakAt(int stage, int rank, const absl::Status& reason) {
    const int member = stage * options_.place.ranks() + rank;
    events_.Raise(StageLinkEnded{member, wiring_.epoch(), reason});
  }
  bool up() const { return wiring_.up(); }
  // Breaks, and wires no more.
  void Stop() { events_.Raise(WiringStopped{}); }
  // Any thread, while the loop runs a Stop: waits, for a while, until gRPC has let go of the links.
  void EndCalls();

 private:
  void Handle(const WiringEvent& event);
  void Perform(const TryOwnEpoch& action);
  void Perform(const OpenLinks& action);
  void Perform(const FormOwnGroup& action);
  void Perform(const TellGroup& action);
  void Perform(const PingStages& action);
  void Perform(const CloseLinks& action);
  void Perform(const ReportChainUp& action);
  void Perform(const ReportChainDown& action);
  void Perform(const PassPlanDone& action) {
    callbacks_.on_plan_done(action.stage, action.rank, action.epoch, action.done);
  }
  void Perform(const PassRequestClosed& action) {
    callbacks_.on_request_closed(action.stage, action.rank, action.epoch, action.closed);
  }
  void Perform(const PassReport& action);
  void Perform(const TellOwnStage& action) { callbacks_.tell_own_stage(action.epoch); }

  std::shared_ptr<LinkCall> OpenLink(const worker::PeerWorker& worker, int member);
  std::string Name() const;
  absl::StatusOr<WiringEvent> EventOf(int member, uint64_t epoch, const v1::LinkResponse& response);
  void OnResponse(int member, uint64_t epoch, const v1::LinkResponse& response);

  const Options options_;
  const Callbacks callbacks_;
  Wiring wiring_;
  SerialEvents<WiringEvent> events_{[this](const WiringEvent& event) { Handle(event); }};
  rpc::CallTracker calls_;
  std::vector<std::shared_ptr<LinkCall>> links_;  // Of the current epoch; member i at i - 1.
  const v1::DecodeReport* arriving_ = nullptr;    // Of the ReportHeard that is being handled.
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CHAIN_CHAIN_WIRING_H_
