// The calls that the core's actions ask for: Reserve, Generate and Abort at decode services, Start
// and Abort at prefill chains. Every call's end comes back as exactly one LegEvents call on the
// loop, also when it could not be made at all; ends of calls that were aborted come too, late, and
// mean nothing to the core.
#ifndef SERVICES_ROUTER_LEGS_LEGS_H_
#define SERVICES_ROUTER_LEGS_LEGS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/event_loop.h"
#include "common/rpc/call_tracker.h"
#include "common/tracing/trace_context.h"
#include "common/types/finish_reason.h"
#include "proto/baton/v1/common.pb.h"
#include "services/router/core/router_core.h"
#include "services/router/legs/decode_stream.h"
#include "services/router/legs/worker_channels.h"

namespace baton::router {

// What both legs are told of a request. Copied into the calls.
struct LegRequest {
  const std::vector<int32_t>& prompt_ids;
  const v1::SamplingParams& sampling;  // Complete.
  const tracing::TraceContext& trace;
};

// Called on the loop's thread.
class LegEvents {
 public:
  virtual ~LegEvents() = default;
  virtual void OnReserveReplied(uint64_t attempt_id, absl::StatusOr<Ticket> ticket) = 0;
  virtual void OnToken(uint64_t attempt_id, SampledToken token) = 0;
  virtual void OnDecodeEnded(uint64_t attempt_id, absl::StatusOr<FinishReason> outcome) = 0;
  virtual void OnPrefillEnded(uint64_t attempt_id, absl::Status status, v1::PrefillReport report,
                              std::vector<SampledToken> prompt_tokens) = 0;
};

// All members on the loop's thread, but for the destructor.
class Legs {
 public:
  // `address_of` gives the gRPC address of a registered worker, or "". Both outlive this.
  Legs(EventLoop& loop, LegEvents& events,
       std::function<std::string(const InstanceRef&)> address_of);
  // Cancels what is under way and waits for the last callback. The loop has stopped by then.
  ~Legs();

  void Reserve(const router::Reserve& action, const LegRequest& request);
  void OpenStream(const router::OpenStream& action, const tracing::TraceContext& trace);
  void StartPrefill(const router::StartPrefill& action, const LegRequest& request);
  void Abort(const AbortDecode& action);
  void Abort(const AbortPrefill& action);

  // The attempt is over and the core has aborted what was open: its calls need no handle any more.
  void Forget(uint64_t attempt_id) { calls_.erase(attempt_id); }

  // Lets go of the channels of other workers.
  void KeepWorkers(const std::vector<InstanceRef>& workers) { channels_.Keep(workers); }

  // Waits, on another thread than the loop's, until no call is under way, aborts included.
  bool WaitIdle(int64_t timeout_ms);

 private:
  template <typename Request, typename Response>
  struct Unary;
  // Of one attempt, for as long as they may have to be cancelled.
  struct Calls {
    std::shared_ptr<WorkerStubs> decode;
    std::shared_ptr<WorkerStubs> stage0;
    std::shared_ptr<rpc::TrackedContext> reserve;
    std::shared_ptr<DecodeStream> stream;
    std::shared_ptr<rpc::TrackedContext> start;
  };

  // UNAVAILABLE with leg and instance if the worker has left.
  absl::StatusOr<std::shared_ptr<WorkerStubs>> Worker(const InstanceRef& instance,
                                                      const std::string& leg);
  void Post(std::function<void()> task);

  EventLoop& loop_;
  LegEvents& events_;
  const std::function<std::string(const InstanceRef&)> address_of_;
  rpc::CallTracker tracker_;
  WorkerChannels channels_;
  std::unordered_map<uint64_t, Calls> calls_;  // By attempt.
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_LEGS_LEGS_H_
