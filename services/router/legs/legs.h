// The calls that services/router/core/leg_calls.h decides on, as gRPC: Reserve, Generate and Abort
// at decode services, Start and Abort at prefill chains. Carries them, and brings what comes of
// them back to the loop; what that means is the core's matter.
#ifndef SERVICES_ROUTER_LEGS_LEGS_H_
#define SERVICES_ROUTER_LEGS_LEGS_H_

#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/event_loop.h"
#include "common/rpc/call_tracker.h"
#include "common/rpc/cluster_security.h"
#include "common/tracing/trace_context.h"
#include "common/types/instance.h"
#include "proto/baton/v1/common.pb.h"
#include "proto/baton/v1/decode.grpc.pb.h"
#include "proto/baton/v1/prefill.grpc.pb.h"
#include "services/router/core/leg_calls.h"
#include "services/router/core/router_core.h"

namespace baton::router {

// One gRPC channel per incarnation of a worker. A restarted worker gets a new channel even at the
// same address: the old one may be in backoff, and its calls must not reach the new process.

// What calls to one worker need. Calls hold it, so it outlives its entry below.
struct WorkerStubs {
  // `security` may be null.
  WorkerStubs(InstanceRef ref, const std::string& address,
              std::shared_ptr<const rpc::ClusterSecurity> security);

  const InstanceRef instance;
  const std::string address;
  std::unique_ptr<v1::Decode::Stub> decode;
  std::unique_ptr<v1::Prefill::Stub> prefill;
};

// One thread.
class WorkerChannels {
 public:
  // `security` may be null.
  explicit WorkerChannels(std::shared_ptr<const rpc::ClusterSecurity> security)
      : security_(std::move(security)) {}

  std::shared_ptr<WorkerStubs> Get(const InstanceRef& instance, const std::string& address);

  // Lets go of all but these.
  void Keep(const std::vector<InstanceRef>& instances);

 private:
  const std::shared_ptr<const rpc::ClusterSecurity> security_;
  std::map<InstanceRef, std::shared_ptr<WorkerStubs>> stubs_;
};

// One Decode.Generate call. Reads one message at a time: the next one only after the loop has
// handled the last, so that a fast decode can't fill the loop's mailbox.
class DecodeStream : public grpc::ClientReadReactor<v1::DecodeGenerateResponse> {
 public:
  // Called on gRPC's threads, one at a time. After a message the reader must call Continue exactly
  // once; false from `on_message` means that it never will (the loop has stopped).
  struct Callbacks {
    std::function<bool(StreamMessage message)> on_message;
    // The call's end, the last callback.
    std::function<void(const absl::Status& status)> on_end;
  };

  // Starts the call; it keeps itself alive until its end.
  static std::shared_ptr<DecodeStream> Start(std::shared_ptr<WorkerStubs> worker,
                                             rpc::CallTracker& tracker,
                                             const v1::DecodeGenerateRequest& request,
                                             std::chrono::system_clock::time_point deadline,
                                             const tracing::TraceContext& trace,
                                             Callbacks callbacks);
  DecodeStream(std::shared_ptr<WorkerStubs> worker, rpc::CallTracker& tracker,
               v1::DecodeGenerateRequest request, Callbacks callbacks);

  void Continue() { StartRead(&message_); }
  void Cancel() { context_->TryCancel(); }

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  rpc::TrackedContext context_;
  const std::shared_ptr<WorkerStubs> worker_;
  const v1::DecodeGenerateRequest request_;
  Callbacks callbacks_;
  v1::DecodeGenerateResponse message_;
  std::shared_ptr<DecodeStream> self_;
};

// What both legs are told of a request. Copied into the calls.
struct LegRequest {
  const std::vector<int32_t>& prompt_ids;
  const v1::SamplingParams& sampling;  // Complete.
  const tracing::TraceContext& trace;
};

// All members on the loop's thread, but for the destructor.
class Legs {
 public:
  struct Contact {
    std::string address;            // gRPC's; "": it is not registered.
    uint32_t protocol_version = 0;  // The newest that it speaks.
  };
  // Called on the loop's thread.
  struct Callbacks {
    std::function<void(Event)> tell_router;
    // Called with the report in Start's answer, just before tell_router.
    std::function<void(uint64_t attempt_id, v1::PrefillReport)> on_report;
    std::function<Contact(const InstanceRef&)> contact_of;
  };
  // `loop` outlives this; `security` may be null.
  Legs(EventLoop& loop, int vocab_size, Callbacks callbacks,
       std::shared_ptr<const rpc::ClusterSecurity> security);
  // Cancels what is under way and waits for the last callback. The loop has stopped by then.
  ~Legs();

  void Reserve(const router::Reserve& action, const LegRequest& request);
  void OpenStream(const router::OpenStream& action, const tracing::TraceContext& trace);
  void StartPrefill(const router::StartPrefill& action, const LegRequest& request);
  template <typename AbortLeg>
  void Abort(const AbortLeg& action) {
    Change([&](std::vector<LegAction>& actions) { core_.Abort(action, actions); });
  }

  // The request is over, and the core has aborted what was open.
  void Forget(uint64_t call_id) { core_.Forget(call_id); }

  // Lets go of the channels of other workers.
  void KeepWorkers(const std::vector<InstanceRef>& workers) { channels_.Keep(workers); }

  // Waits, on another thread than the loop's, until no call is under way, aborts included.
  bool WaitIdle(int64_t timeout_ms);

 private:
  template <typename Request, typename Response>
  struct Unary;
  using CallId = std::pair<uint64_t, LegCall>;  // By attempt.

  // Changes the core and does what comes of it.
  void Change(const std::function<void(std::vector<LegAction>&)>& change);
  void Perform(const CancelCall& action);
  void Perform(const SendAbort& action);
  void Perform(TellRouter& action) { callbacks_.tell_router(std::move(action.event)); }
  // The call that follows from `action`, unless there is none.
  template <typename Action>
  std::optional<BeginCall> Begin(const Action& action, const InstanceRef& worker);
  template <typename Call>
  std::shared_ptr<Call> MakeCall(const BeginCall& begin, const tracing::TraceContext& trace);
  // Runs `task` on the loop when the call has ended.
  void PostEnd(uint64_t attempt_id, LegCall call, std::function<void()> task);

  EventLoop& loop_;
  const Callbacks callbacks_;
  LegCalls core_;
  rpc::CallTracker tracker_;
  WorkerChannels channels_;
  std::map<CallId, std::function<void()>> cancels_;  // One per running call.
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_LEGS_LEGS_H_
