// The shell around the wiring of a chain's stage 0, or of a decode service's rank 0: opens and
// closes the links that it decides on, and brings to it what comes over them. What members are sent
// as work, and report of it, is its owner's.
#ifndef SERVICES_LINKS_CHAIN_WIRING_H_
#define SERVICES_LINKS_CHAIN_WIRING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/base/event_loop.h"
#include "common/base/serial_events.h"
#include "common/rpc/call_tracker.h"
#include "common/rpc/channel.h"
#include "common/rpc/cluster_security.h"
#include "proto/baton/v1/prefill.pb.h"
#include "services/links/core/wiring.h"
#include "services/links/group_joiner.h"
#include "services/links/link_call.h"

namespace baton::links {

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
    const char* failpoint = "";     // Strikes what members say.
    std::shared_ptr<const rpc::ClusterSecurity> security;  // May be null.
  };
  struct Callbacks {
    // May stage 0 itself begin an epoch? Then begins it: UNAVAILABLE says why not yet.
    std::function<absl::Status(const Hello&)> begin_own;
    std::function<void(uint64_t epoch, int page_count)> on_up;
    std::function<void(const absl::Status&)> on_down;  // After on_up or begin_own.
    // A member of this epoch is ready; before on_up. What it says of itself may make no sense.
    std::function<absl::Status(int member, const v1::LinkReady&)> on_ready;
    // What a member reports of its work in this epoch. An error ends the epoch.
    std::function<absl::Status(const PassReport&, const v1::LinkResponse&)> on_report;

    // For a chain of several stages; may be null.
    std::function<uint64_t(int stage)> plans_done;       // Told with pings: how far a stage is.
    std::function<void(uint64_t epoch)> tell_own_stage;  // How far the next one is.
  };
  ChainWiring(Options options, Callbacks callbacks);
  ~ChainWiring();

  void OnMembers(const std::vector<worker::PeerWorker>& members) {
    events_.Raise(MembersSeen{members});
  }
  // Does what is due; returns when it is next.
  int64_t Wake(int64_t now_us);

  // Work, to member 1 and following. Nothing while the chain is not wired.
  void Send(int member, v1::LinkRequest request);
  void Break(const absl::Status& reason) { events_.Raise(ChainFailed{reason}); }
  // For what a rank of a later stage did not do.
  void BreakAt(int stage, int rank, const absl::Status& reason) {
    const int member = stage * options_.place.ranks() + rank;
    events_.Raise(StageLinkEnded{member, wiring_.epoch(), reason});
  }
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
  rpc::ChannelKeeper channels_;  // For links; a link whose epoch fails at once still connects.
  rpc::CallTracker calls_;
  std::vector<std::shared_ptr<LinkCall>> links_;  // In the current epoch; member i at i - 1.
  const v1::LinkResponse* arriving_ = nullptr;    // For the ReportHeard that is being handled.
};

}  // namespace baton::links

#endif  // SERVICES_LINKS_CHAIN_WIRING_H_
