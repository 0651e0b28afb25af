// A Reserve call as an object. gRPC keeps it alive until it is done with it, the shell as long as
// it may still answer.
#ifndef SERVICES_DECODE_RESERVE_CALL_H_
#define SERVICES_DECODE_RESERVE_CALL_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "common/tracing/tracer.h"
#include "common/types/ticket.h"
#include "proto/baton/v1/decode.pb.h"

namespace baton::decode {

// A Reserve call that waits for its ticket.
class ReserveCall final : public grpc::ServerUnaryReactor {
 public:
  // `span` ends with the answer.
  static std::shared_ptr<ReserveCall> Create(v1::ReserveResponse* response,
                                             tracing::ActiveSpan span);

  // Any thread; the first call counts.
  void Reply(const Ticket& ticket);
  void Refuse(const absl::Status& status);

  // `on_cancel` is called once, on a gRPC thread; at once if the client is already gone.
  void SetCancelHandler(std::function<void()> on_cancel);

 private:
  ReserveCall(v1::ReserveResponse* response, tracing::ActiveSpan span)
      : response_(response), span_(std::move(span)) {}
  void OnCancel() override;
  void OnDone() override { self_.reset(); }
  bool Claim();

  std::shared_ptr<ReserveCall> self_;  // Until OnDone.
  Mutex mutex_;
  v1::ReserveResponse* const response_;
  tracing::ActiveSpan span_;  // Used by the thread that claims the answer, like `response_`.
  bool answered_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> on_cancel_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_RESERVE_CALL_H_
