// The call Relay to one worker: takes requests there, and brings what the worker says of them. One
// read and one task of the loop serve a whole step of many texts, and a request is no call of its
// own.
#ifndef SERVICES_ROUTER_LEGS_RELAY_H_
#define SERVICES_ROUTER_LEGS_RELAY_H_

#include <grpcpp/support/client_callback.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "common/rpc/call_tracker.h"
#include "common/tracing/trace_context.h"
#include "proto/baton/v1/relay.pb.h"
#include "services/router/legs/leg_stream.h"
#include "services/router/legs/read_ahead.h"
#include "services/router/legs/worker_channels.h"

namespace baton::router {

class Relay : public grpc::ClientBidiReactor<v1::RelayRequest, v1::RelayResponse> {
 public:
  // Runs a task on the loop, in order; false: it has stopped. Called on gRPC's threads.
  using Post = std::function<bool(std::function<void()> task)>;

  // Starts the call; it keeps itself alive until its end.
  static std::shared_ptr<Relay> Start(std::shared_ptr<WorkerStubs> worker,
                                      rpc::CallTracker& tracker, Post post);
  Relay(std::shared_ptr<WorkerStubs> worker, rpc::CallTracker& tracker, Post post);

  // ---- On the loop ----

  // The worker has it: requests may go by it.
  bool open() const { return open_; }
  // It has ended, and another one may fare better.
  bool RetryDue(int64_t now_us) const;
  // Begins a stream. What comes of it is told to `listener`, not before this returns, and its end
  // also if the relay ends.
  void Begin(uint64_t attempt_id, LegStream::Request request, const tracing::TraceContext& trace,
             LegStream::Listener listener);
  // Cancels what Begin has begun; its listener hears of the end at once.
  void Cancel(uint64_t attempt_id);
  void Cancel() { context_->TryCancel(); }

 private:
  struct Event {
    uint64_t attempt_id = 0;
    Heard heard;
    absl::Status failure;  // If not OK, there is nothing else.
  };
  using Events = std::vector<Event>;  // One message's.
  using Streams = std::map<uint64_t, std::shared_ptr<LegStream::Listener>>;

  static Event EventOf(v1::RelayedEvent& event);
  void Send(v1::RelayedCall call);
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Hear(Event& event);  // On the loop, these three.
  void HearUnheard();
  void HearEnd(const absl::Status& status);
  void End(uint64_t attempt_id, const absl::Status& status);
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  rpc::TrackedContext context_;
  const std::shared_ptr<WorkerStubs> worker_;
  const Post post_;
  v1::RelayResponse message_;  // The reader's.
  ReadAhead<Events> unheard_;
  std::shared_ptr<Relay> self_;
  Mutex mutex_;
  std::deque<v1::RelayRequest> queue_ ABSL_GUARDED_BY(mutex_);  // Front: being written.
  size_t last_bytes_ ABSL_GUARDED_BY(mutex_) = 0;               // The back's.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // Nothing is written any more.
  // The loop's:
  std::vector<Events> hearing_;  // Taken from `unheard_`.
  Streams streams_;              // By attempt.
  bool open_ = false;
  std::optional<absl::Status> end_;
  int64_t ended_us_ = 0;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_LEGS_RELAY_H_
