// One Prefill.Start call: a long unary RPC that is answered from the loop's thread.
#ifndef SERVICES_PREFILL_CHAIN_START_CALL_H_
#define SERVICES_PREFILL_CHAIN_START_CALL_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/rpc/grpc_status.h"
#include "common/tracing/tracer.h"
#include "proto/baton/v1/prefill.pb.h"

namespace baton::prefill {

// Keeps itself alive until gRPC is done with it.
class StartCall final : public grpc::ServerUnaryReactor,
                        public std::enable_shared_from_this<StartCall> {
 public:
  // `on_cancel` is called on gRPC's threads when the client is gone, possibly after Reply.
  // `span` ends with the reply.
  static std::shared_ptr<StartCall> Open(
      v1::StartResponse* response, tracing::ActiveSpan span,
      std::function<void(const std::shared_ptr<StartCall>&)> on_cancel) {
    std::shared_ptr<StartCall> call(new StartCall(response, std::move(span), std::move(on_cancel)));
    call->self_ = call;
    return call;
  }

  // Any thread; the first one counts.
  void Reply(const absl::Status& status, v1::StartResponse response = {}) {
    if (replied_.exchange(true)) return;
    if (span_) EndSpan(status, response.report());
    if (status.ok()) *response_ = std::move(response);
    Finish(rpc::ToGrpc(status));
  }

 private:
  StartCall(v1::StartResponse* response, tracing::ActiveSpan span,
            std::function<void(const std::shared_ptr<StartCall>&)> on_cancel)
      : response_(response), on_cancel_(std::move(on_cancel)), span_(std::move(span)) {}

  void EndSpan(const absl::Status& status, const v1::PrefillReport& report) {
    span_.Set("baton.prefill.chunks", report.chunks_size());
    span_.Set("baton.kv.bytes", report.kv_bytes());
    span_.Set("baton.kv.exposed_seconds", static_cast<double>(report.kv_exposed_us()) * 1e-6);
    span_.End(NowUs(), status);
  }

  void OnCancel() override { on_cancel_(shared_from_this()); }
  void OnDone() override { const std::shared_ptr<StartCall> last = std::move(self_); }

  v1::StartResponse* const response_;
  const std::function<void(const std::shared_ptr<StartCall>&)> on_cancel_;
  std::atomic<bool> replied_{false};
  tracing::ActiveSpan span_;         // Used only by the thread that replies.
  std::shared_ptr<StartCall> self_;  // Until OnDone.
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CHAIN_START_CALL_H_
