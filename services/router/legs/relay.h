// The call Relay to one worker: brings what the worker says of all its requests of this router. One
// read and one task of the loop serve a whole step of many texts.
#ifndef SERVICES_ROUTER_LEGS_RELAY_H_
#define SERVICES_ROUTER_LEGS_RELAY_H_

#include <grpcpp/support/client_callback.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/rpc/call_tracker.h"
#include "common/types/instance.h"
#include "proto/baton/v1/decode.pb.h"
#include "services/router/legs/leg_stream.h"
#include "services/router/legs/read_ahead.h"
#include "services/router/legs/worker_channels.h"

namespace baton::router {

class Relay : public grpc::ClientReadReactor<v1::RelayResponse> {
 public:
  // Runs a task on the loop, in order; false: it has stopped. Called on gRPC's threads.
  using Post = std::function<bool(std::function<void()> task)>;

  // Starts the call; it keeps itself alive until its end.
  static std::shared_ptr<Relay> Start(std::shared_ptr<WorkerStubs> worker, Role role,
                                      rpc::CallTracker& tracker, uint64_t relay_id, Post post);
  Relay(std::shared_ptr<WorkerStubs> worker, rpc::CallTracker& tracker, uint64_t relay_id,
        Post post);

  // ---- On the loop ----

  uint64_t id() const { return request_.relay_id(); }
  // The worker has it: requests may name it.
  bool open() const { return open_; }
  // It has ended, and another one may fare better.
  bool RetryDue(int64_t now_us) const;
  // `stream` hears what comes of its attempt, until Remove or the relay's end.
  void Add(uint64_t attempt_id, std::shared_ptr<LegStream> stream);
  void Remove(uint64_t attempt_id) { streams_.erase(attempt_id); }
  void Cancel() { context_->TryCancel(); }

 private:
  struct Event {
    uint64_t attempt_id = 0;
    Heard heard;
  };
  using Events = std::vector<Event>;  // One message's.

  void HearUnheard();  // On the loop, both.
  void HearEnd(const absl::Status& status);
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  rpc::TrackedContext context_;
  const std::shared_ptr<WorkerStubs> worker_;
  v1::RelayRequest request_;
  const Post post_;
  v1::RelayResponse message_;  // The reader's.
  ReadAhead<Events> unheard_;
  std::shared_ptr<Relay> self_;
  // The loop's:
  std::vector<Events> hearing_;                             // Taken from `unheard_`.
  std::map<uint64_t, std::shared_ptr<LegStream>> streams_;  // By attempt.
  bool open_ = false;
  std::optional<absl::Status> end_;
  int64_t ended_us_ = 0;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_LEGS_RELAY_H_
