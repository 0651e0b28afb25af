// What a worker says of all requests of one router, in one stream (Decode.Relay, Prefill.Relay). A
// step of many texts is one message and one write. Rejected: a message a text, whose cost in gRPC
// on both sides is several times that of all else that a token takes.
#ifndef SERVICES_WORKER_TOKEN_RELAY_H_
#define SERVICES_WORKER_TOKEN_RELAY_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "proto/baton/v1/decode.pb.h"

namespace baton::worker {

class TokenRelays;

// Thread-safe. gRPC keeps it alive until it is done with it, streams as long as they use it.
class TokenRelay final : public grpc::ServerWriteReactor<v1::RelayResponse> {
 public:
  // A router that leaves so many events unread does not keep up.
  static constexpr size_t kMaxQueuedEvents = 1 << 16;

  // Queues an event until Flush. False if the router does not keep up or is gone: what is said of
  // the attempt is lost from here on, so the request must end.
  [[nodiscard]] bool Push(uint64_t attempt_id, v1::DecodeGenerateResponse event);
  // Sends what is queued.
  void Flush();
  // Ends the stream after what is queued.
  void Close();

 private:
  friend class TokenRelays;
  TokenRelay(TokenRelays* owner, uint64_t relay_id);
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void End(const absl::Status& status, bool drop);
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  TokenRelays* const owner_;
  const uint64_t relay_id_;
  std::shared_ptr<TokenRelay> self_;  // Until OnDone.
  Mutex mutex_;
  std::deque<v1::RelayResponse> queue_ ABSL_GUARDED_BY(mutex_);  // Front: being written.
  size_t queued_events_ ABSL_GUARDED_BY(mutex_) = 0;
  bool last_is_large_ ABSL_GUARDED_BY(mutex_) = false;  // The queue's back takes no more.
  bool due_ ABSL_GUARDED_BY(mutex_) = false;  // All that is queued may go.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
};

// The open relays of one worker. Thread-safe; outlives the gRPC server.
class TokenRelays {
 public:
  static constexpr size_t kMaxRelays = 64;

  // Answers the call Relay.
  grpc::ServerWriteReactor<v1::RelayResponse>* Open(const v1::RelayRequest& request);
  // Null if no such relay is open.
  std::shared_ptr<TokenRelay> Find(uint64_t relay_id);
  // Sends what was pushed. The loop calls it after each batch of what it does.
  void Flush();
  // Ends all relays, and refuses others.
  void Close();

 private:
  friend class TokenRelay;
  absl::Status Add(const std::shared_ptr<TokenRelay>& relay, uint64_t relay_id);
  void Remove(uint64_t relay_id, const TokenRelay* relay);

  Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<TokenRelay>> relays_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_TOKEN_RELAY_H_
