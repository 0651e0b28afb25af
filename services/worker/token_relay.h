// What a worker and one router say of all their requests, in one stream (Relays.Relay). A step of
// many texts is one message and one write, and a request is no call of its own. Rejected: a message
// a text and a call a request, whose cost in gRPC on both sides is several times that of all else.
#ifndef SERVICES_WORKER_TOKEN_RELAY_H_
#define SERVICES_WORKER_TOKEN_RELAY_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "proto/baton/v1/relay.grpc.pb.h"
#include "services/worker/token_stream.h"

namespace baton::worker {

class RelayedStream;
class TokenRelays;

// Thread-safe. gRPC keeps it alive until it is done with it, streams as long as they use it.
class TokenRelay final : public grpc::ServerBidiReactor<v1::RelayRequest, v1::RelayResponse>,
                         public std::enable_shared_from_this<TokenRelay> {
 public:
  // A router that leaves so many events unread does not keep up.
  static constexpr size_t kMaxQueuedEvents = 1 << 16;

  // A stream whose events go by this relay; null if the relay carries one of `attempt_id` already,
  // or is over.
  std::shared_ptr<TokenStream> Open(uint64_t attempt_id, StreamTrace trace);

  // Queues an event until Flush. False if the router does not keep up or is gone: what is said of
  // the attempt is lost from here on, so the request must end.
  [[nodiscard]] bool Push(uint64_t attempt_id, v1::DecodeGenerateResponse event);
  // Sends what is queued.
  void Flush();
  // Ends the relay after what is queued.
  void Close();

 private:
  friend class RelayedStream;
  friend class TokenRelays;
  explicit TokenRelay(TokenRelays* owner);
  // Greets the router, or refuses it.
  void Begin(const absl::Status& status);
  // The stream has nothing more to say but its failure, which always finds room.
  void End(uint64_t attempt_id, const absl::Status& status);
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void End(const absl::Status& status, bool drop);
  v1::RelayedEvent& Add(uint64_t attempt_id, bool large) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<RelayedStream> Find(uint64_t attempt_id);

  TokenRelays* const owner_;
  v1::RelayRequest request_;          // The reader's.
  std::shared_ptr<TokenRelay> self_;  // Until OnDone.
  Mutex mutex_;
  std::deque<v1::RelayResponse> queue_ ABSL_GUARDED_BY(mutex_);  // Front: being written.
  size_t queued_events_ ABSL_GUARDED_BY(mutex_) = 0;
  bool last_is_large_ ABSL_GUARDED_BY(mutex_) = false;  // The queue's back takes no more.
  bool due_ ABSL_GUARDED_BY(mutex_) = false;            // All that is queued may go.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  // By attempt, those that have not ended. None once the relay is `ending_`.
  std::map<uint64_t, std::shared_ptr<RelayedStream>> streams_ ABSL_GUARDED_BY(mutex_);
};

// The relays of one worker. Thread-safe; outlives the gRPC server.
class TokenRelays final : public v1::Relays::CallbackService {
 public:
  static constexpr size_t kMaxRelays = 64;
  // Begins what a call that is no cancellation asks for; its stream is of `relay`. On gRPC's
  // threads.
  using Begin = std::function<void(const v1::RelayedCall& call, TokenRelay& relay)>;

  // Before the server starts.
  void SetBegin(Begin begin) { begin_ = std::move(begin); }

  grpc::ServerBidiReactor<v1::RelayRequest, v1::RelayResponse>* Relay(
      grpc::CallbackServerContext* context) override;
  // Sends what was pushed. The loop calls it after each batch of what it does.
  void Flush();
  // Ends all relays, and refuses others.
  void Close();

 private:
  friend class TokenRelay;
  absl::Status Add(const std::shared_ptr<TokenRelay>& relay);
  void Remove(const std::shared_ptr<TokenRelay>& relay);

  Begin begin_;
  Mutex mutex_;
  std::set<std::shared_ptr<TokenRelay>> relays_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_TOKEN_RELAY_H_
