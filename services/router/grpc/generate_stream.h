// One Inference.Generate or Chat call: a sink that writes the answer to the client, one message
// at a time. What the client is too slow for waits in a queue, which max_tokens bounds.
#ifndef SERVICES_ROUTER_GRPC_GENERATE_STREAM_H_
#define SERVICES_ROUTER_GRPC_GENERATE_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "proto/baton/v1/inference.pb.h"
#include "services/router/gateway.h"
#include "services/router/grpc/running_call.h"

namespace baton::router {

class GenerateStream : public grpc::ServerWriteReactor<v1::GenerateResponse>, public ResponseSink {
 public:
  // Submits `call`, or ends with its error. The stream owns itself until gRPC is done with it.
  static GenerateStream* Start(Gateway& gateway, absl::StatusOr<GenerateCall> call);
  explicit GenerateStream(Gateway& gateway) : running_(gateway) {}

  void OnPromptTokens(std::vector<TokenPiece> tokens) override;
  void OnTokens(TextPiece piece) override;
  void OnFinished(Outcome outcome) override;
  void OnError(absl::Status status) override;

 private:
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void Enqueue(v1::GenerateResponse message);
  void End(grpc::Status status);
  // Starts the next write or, once all is written, finishes. At most one write is outstanding.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  RunningCall running_;
  bool want_logprobs_ = false;

  Mutex mutex_;
  std::deque<v1::GenerateResponse> queue_ ABSL_GUARDED_BY(mutex_);  // The front is being written.
  std::string request_id_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<GenerateStream> self_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_GRPC_GENERATE_STREAM_H_
