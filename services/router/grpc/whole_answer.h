// One Inference.GenerateOnce or ChatOnce call: a sink that collects the answer into the
// response. max_tokens bounds it.
#ifndef SERVICES_ROUTER_GRPC_WHOLE_ANSWER_H_
#define SERVICES_ROUTER_GRPC_WHOLE_ANSWER_H_

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "proto/baton/v1/inference.pb.h"
#include "services/router/gateway.h"
#include "services/router/grpc/running_call.h"

namespace baton::router {

class WholeAnswerCall : public grpc::ServerUnaryReactor, public ResponseSink {
 public:
  // Submits `call`, or ends with its error. The object owns itself until gRPC is done with it, and
  // `response` lives as long.
  static WholeAnswerCall* Start(Gateway& gateway, absl::StatusOr<GenerateCall> call,
                                v1::WholeAnswer* response);
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
  v1::WholeAnswer* response_ ABSL_GUARDED_BY(mutex_);  // Null: the call has ended.
  std::shared_ptr<WholeAnswerCall> self_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_GRPC_WHOLE_ANSWER_H_
