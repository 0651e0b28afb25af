// A unary call that is answered once the loop knows what. gRPC keeps it alive until it is done with
// it, the shell as long as it may still answer.
#ifndef SERVICES_WORKER_UNARY_ANSWER_H_
#define SERVICES_WORKER_UNARY_ANSWER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/rpc/grpc_status.h"
#include "common/tracing/tracer.h"

namespace baton::worker {

template <typename Response>
class UnaryAnswer final : public grpc::ServerUnaryReactor,
                          public std::enable_shared_from_this<UnaryAnswer<Response>> {
 public:
  // Adds what the answer says to the call's span.
  using Describe = void (*)(const Response& response, tracing::ActiveSpan& span);
  using OnCancelled = std::function<void(const std::shared_ptr<UnaryAnswer>& call)>;

  // `span` ends with the answer. `on_cancelled` is called on gRPC's threads when the client is
  // gone, possibly after Reply, but not before the call's method has returned.
  static std::shared_ptr<UnaryAnswer> Open(Response* response, tracing::ActiveSpan span,
                                           Describe describe, OnCancelled on_cancelled) {
    std::shared_ptr<UnaryAnswer> call(
        new UnaryAnswer(response, std::move(span), describe, std::move(on_cancelled)));
    call->self_ = call;
    return call;
  }

  // Any thread; the first one counts.
  void Reply(const absl::Status& status, Response response = {}) {
    if (replied_.exchange(true)) return;
    if (span_) {
      describe_(response, span_);
      span_.End(NowUs(), status);
    }
    if (status.ok()) *response_ = std::move(response);
    Finish(rpc::ToGrpc(status));
  }

 private:
  UnaryAnswer(Response* response, tracing::ActiveSpan span, Describe describe,
              OnCancelled on_cancelled)
      : response_(response),
        describe_(describe),
        on_cancelled_(std::move(on_cancelled)),
        span_(std::move(span)) {}

  void OnCancel() override { on_cancelled_(this->shared_from_this()); }
  void OnDone() override { const std::shared_ptr<UnaryAnswer> last = std::move(self_); }

  Response* const response_;
  const Describe describe_;
  const OnCancelled on_cancelled_;
  std::atomic<bool> replied_{false};
  tracing::ActiveSpan span_;           // Used only by the thread that replies.
  std::shared_ptr<UnaryAnswer> self_;  // Until OnDone.
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_UNARY_ANSWER_H_
