// The calls that services/router/core/leg_calls.h decides on, as gRPC: Reserve, Generate and Abort
// at decode services, Start, Generate and Abort at prefill chains. Carries them, and brings what
// comes of them back to the loop; what that means is the core's matter.
#ifndef SERVICES_ROUTER_LEGS_LEGS_H_
#define SERVICES_ROUTER_LEGS_LEGS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/event_loop.h"
#include "common/rpc/call_tracker.h"
#include "common/rpc/cluster_security.h"
#include "common/tracing/trace_context.h"
#include "common/types/instance.h"
#include "proto/baton/v1/common.pb.h"
#include "services/router/core/leg_calls.h"
#include "services/router/core/router_core.h"
#include "services/router/legs/leg_stream.h"
#include "services/router/legs/relay.h"
#include "services/router/legs/worker_channels.h"

namespace baton::router {

// What both legs are told of a request. Copied into the calls.
struct LegRequest {
  std::span<const int32_t> prompt_ids;  // The last `drawn_tokens` of them are of the text.
  int drawn_tokens = 0;
  const v1::SamplingParams& sampling;  // Complete, but for drawn_tokens.
  const std::string& cache_salt;
  std::span<const uint64_t> prefix;  // PrefixKeys of the prompt.
  int priority = 0;
  int64_t head_start_us = 0;
  const tracing::TraceContext& trace;
};

// All members on the loop's thread, but for the destructor.
class Legs {
 public:
  // Called on the loop's thread.
  struct Callbacks {
    std::function<void(Event)> tell_router;
    // Called with the report of a prompt, just before tell_router.
    std::function<void(uint64_t attempt_id, v1::PrefillReport)> on_report;
    // gRPC's; "": it is not registered.
    std::function<std::string(const InstanceRef&)> address_of;
  };
  // `loop` outlives this; `incarnation` is the router's; `security` may be null.
  Legs(EventLoop& loop, uint64_t incarnation, int vocab_size, Callbacks callbacks,
       std::shared_ptr<const rpc::ClusterSecurity> security);
  // Cancels what is under way and waits for the last callback. The loop has stopped by then.
  ~Legs();

  void Reserve(const router::Reserve& action, const LegRequest& request);
  void OpenStream(const router::OpenStream& action, const tracing::TraceContext& trace);
  void StartPrefill(const router::StartPrefill& action, const LegRequest& request);
  void StartGeneration(const router::StartGeneration& action, const LegRequest& request);
  template <typename AbortLeg>
  void Abort(const AbortLeg& action) {
    Change([&](std::vector<LegAction>& actions) { core_.Abort(action, actions); });
  }

  // Asks these to flush their caches; `done` as Gateway::FlushCache's, on gRPC's threads or at
  // once.
  void FlushCaches(const std::vector<std::pair<Role, InstanceRef>>& workers,
                   const std::function<void(absl::StatusOr<int>)>& done);

  // The request is over, and the core has aborted what was open.
  void Forget(uint64_t call_id) { core_.Forget(call_id); }

  // Lets go of the channels of other workers.
  void KeepWorkers(const std::vector<InstanceRef>& workers);

  // Waits, on another thread than the loop's, until no call is under way, aborts included.
  bool WaitIdle(int64_t timeout_ms);

 private:
  template <typename Request, typename Response>
  struct Unary;
  using CallId = std::pair<uint64_t, LegCall>;  // By attempt.

  // Changes the core by `apply(actions)` and does what comes of it, which may change it again.
  template <typename Apply>
  void Change(const Apply& apply) {
    std::vector<LegAction> actions = std::exchange(spare_actions_, {});
    apply(actions);
    for (LegAction& action : actions) {
      std::visit([this](auto& a) { Perform(a); }, action);
    }
    actions.clear();
    spare_actions_ = std::move(actions);
  }
  void Perform(const CancelCall& action);
  void Perform(const SendAbort& action);
  void Perform(TellRouter& action) { callbacks_.tell_router(std::move(action.event)); }
  // The call that follows from `action`, unless there is none.
  template <typename Action>
  std::optional<BeginCall> Begin(const Action& action, const InstanceRef& worker);
  template <typename Call>
  std::shared_ptr<Call> MakeCall(const BeginCall& begin, const tracing::TraceContext& trace);
  void Stream(const BeginCall& begin, LegStream::Request request,
              const tracing::TraceContext& trace, std::optional<std::vector<int32_t>> expected);
  // Posts to the loop, from any thread. A task that is dropped for want of room would make a stream
  // that has ended well look as if its worker had never finished it.
  std::function<bool(std::function<void()> task)> ToLoop();
  // The relay from the worker of this call; null if it has none (yet).
  std::shared_ptr<Relay> RelayOf(const BeginCall& begin);
  v1::StartRequest StartRequestOf(const BeginCall& begin, const LegRequest& request) const;
  // Runs `task` on the loop when the call has ended.
  void PostEnd(uint64_t attempt_id, LegCall call, std::function<void()> task);

  EventLoop& loop_;
  const uint64_t incarnation_;
  const Callbacks callbacks_;
  LegCalls core_;
  rpc::CallTracker tracker_;
  rpc::CallTracker relay_tracker_;  // Relays last: calls that end are waited for without them.
  WorkerChannels channels_;
  std::map<CallId, std::function<void()>> cancels_;  // One per running call.
  std::map<InstanceRef, std::shared_ptr<Relay>> relays_;
  std::vector<LegAction> spare_actions_;  // Empty: its memory is for the next.
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_LEGS_LEGS_H_
