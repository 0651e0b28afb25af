// One Inference.Generate or Chat call: a sink that writes the answer to the client, one message
// at a time. What the client is too slow for waits in a queue, which max_tokens bounds. The request
// is read after the call has begun, on another thread, and gRPC keeps it until the call's end: so
// none ends before Begin.
#ifndef SERVICES_ROUTER_GRPC_GENERATE_ANSWERS_H_
#define SERVICES_ROUTER_GRPC_GENERATE_ANSWERS_H_

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "proto/baton/v1/inference.pb.h"
#include "services/router/gateway.h"

namespace baton::router {

// A call of the gateway that its client may cancel at any time, before Submit has returned, too.
// Thread-safe. The gateway outlives it.
class RunningCall {
 public:
  explicit RunningCall(Gateway& gateway) : gateway_(gateway) {}

  // Once. An error means that `sink` will never be called.
  absl::Status Submit(GenerateCall call, std::shared_ptr<ResponseSink> sink);
  // The gateway lets the sink go without a terminal call, now or when Submit returns.
  void Cancel();

 private:
  Gateway& gateway_;
  Mutex mutex_;
  uint64_t call_id_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: Submit has not returned.
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

class GenerateStream : public grpc::ServerWriteReactor<v1::GenerateResponse>, public ResponseSink {
 public:
  // The stream owns itself until gRPC is done with it.
  static std::shared_ptr<GenerateStream> Open(Gateway& gateway);
  // Once, on any thread. Submits `call`, or ends with its error.
  void Begin(absl::StatusOr<GenerateCall> call);
  explicit GenerateStream(Gateway& gateway) : running_(gateway) {}

  void OnPromptTokens(std::vector<TokenPiece> tokens) override;
  void OnTokens(TextPiece piece) override;
  void OnFinished(Outcome outcome) override;
  void OnError(absl::Status status) override;

 private:
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // The message at the end of the queue whose tokens others may join: gRPC does not have it yet.
  v1::TokenChunk& OpenChunk() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Enqueue(v1::GenerateResponse message);
  void End(grpc::Status status);
  // Starts the next write or, once all is written, finishes. At most one write is outstanding. gRPC
  // is called without the lock: it writes to the socket meanwhile.
  void Advance() ABSL_LOCKS_EXCLUDED(mutex_);

  RunningCall running_;
  bool want_logprobs_ = false;

  Mutex mutex_;
  std::deque<v1::GenerateResponse> queue_ ABSL_GUARDED_BY(mutex_);  // The front is being written.
  v1::GenerateResponse spare_ ABSL_GUARDED_BY(mutex_);  // One that is written, for the next tokens.
  std::string request_id_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<GenerateStream> self_;
};

// Converts what sinks receive into clients' messages.
void SetLogprobs(const TokenPiece& token, v1::TokenLogprobs& logprobs);

// Appends a run of the prompt's tokens.
void AddPromptTokens(const std::vector<TokenPiece>& tokens, v1::PromptLogprobs& prompt);

v1::Finished FinishedToProto(Outcome outcome);

// One Inference.GenerateOnce or ChatOnce call: a sink that collects the answer into the
// response. max_tokens bounds it.
class WholeAnswerCall : public grpc::ServerUnaryReactor, public ResponseSink {
 public:
  // The object owns itself until gRPC is done with it, and `response` lives as long.
  static std::shared_ptr<WholeAnswerCall> Open(Gateway& gateway, v1::WholeAnswer* response);
  // Once, on any thread. Submits `call`, or ends with its error.
  void Begin(absl::StatusOr<GenerateCall> call);
  WholeAnswerCall(Gateway& gateway, v1::WholeAnswer* response)
      : running_(gateway), response_(response) {}

  void OnPromptTokens(std::vector<TokenPiece> tokens) override;
  void OnTokens(TextPiece piece) override;
  void OnFinished(Outcome outcome) override;
  void OnError(absl::Status status) override;

 private:
  void OnCancel() override;
  void OnDone() override { self_.reset(); }

  // At the first call; nothing is written into the response afterwards.
  void End(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  RunningCall running_;
  bool want_logprobs_ = false;
  Mutex mutex_;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  v1::WholeAnswer* response_ ABSL_GUARDED_BY(mutex_);  // Null: the call has ended.
  std::shared_ptr<WholeAnswerCall> self_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_GRPC_GENERATE_ANSWERS_H_
