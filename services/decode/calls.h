// The two gRPC calls of a request as objects. gRPC keeps each alive until it is done with it, the
// shell as long as it may still answer.
#ifndef SERVICES_DECODE_CALLS_H_
#define SERVICES_DECODE_CALLS_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <deque>
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

// The spans of one request's stream on the decode service: the stream and, within it, the wait for
// KV up to the first token, and the decoding after it. Null pointers if the request is not traced.

// One thread at a time: gRPC's until the stream is passed to the loop, then the loop's.
class StreamTrace {
 public:
  // `stream` is the RPC's span, which has just started.
  StreamTrace(tracing::Tracer* tracer, tracing::ActiveSpan stream, int64_t now_us)
      : tracer_(tracer), stream_(std::move(stream)) {
    if (stream_) receive_ = Child("kv receive", now_us);
  }

  // A token is sent; the first one comes with the KV's commit.
  void OnToken(int64_t now_us) {
    if (!stream_) return;
    if (++tokens_ == 1) {
      receive_.End(now_us);
      stream_.AddEvent("first_token", now_us);
      decode_ = Child("decode tokens", now_us);
    }
  }

  void End(const absl::Status& status, int64_t now_us) {
    if (!stream_) return;
    receive_.End(now_us, status);
    decode_.Set("gen_ai.usage.output_tokens", tokens_);
    decode_.End(now_us, status);
    stream_.Set("gen_ai.usage.output_tokens", tokens_);
    stream_.End(now_us, status);
  }

  bool recording() const { return static_cast<bool>(stream_); }

 private:
  tracing::ActiveSpan Child(const char* name, int64_t now_us) const {
    return {tracer_, name, tracing::SpanKind::kInternal, stream_.ContextOr({}), now_us};
  }

  tracing::Tracer* tracer_;
  tracing::ActiveSpan stream_;
  tracing::ActiveSpan receive_;
  tracing::ActiveSpan decode_;
  int tokens_ = 0;
};

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

// A Generate stream: a queue and one write at a time.
class TokenStream final : public grpc::ServerWriteReactor<v1::DecodeGenerateResponse> {
 public:
  // A reader with so long a queue is considered stuck.
  static constexpr size_t kMaxQueued = 4096;

  static std::shared_ptr<TokenStream> Create(grpc::CallbackServerContext* context,
                                             StreamTrace trace);

  // Used by the loop; it ends with the loop's last message.
  StreamTrace& trace() { return trace_; }

  // Any thread. False if the queue is full: abort the request and Fail the stream.
  [[nodiscard]] bool Push(v1::DecodeGenerateResponse response);
  // Ends the stream after what is queued.
  void Finish();
  // Ends the stream; what is queued and not being written is dropped.
  void Fail(const absl::Status& status);
  // Ends the stream even if the reader takes nothing more, so that no status can reach it.
  void Break() { context_->TryCancel(); }

  void SetCancelHandler(std::function<void()> on_cancel);

 private:
  TokenStream(grpc::CallbackServerContext* context, StreamTrace trace)
      : context_(context), trace_(std::move(trace)) {}
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { self_.reset(); }
  void End(const absl::Status& status, bool drop);
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::shared_ptr<TokenStream> self_;  // Until OnDone.
  grpc::CallbackServerContext* const context_;
  StreamTrace trace_;
  Mutex mutex_;
  std::deque<v1::DecodeGenerateResponse> queue_ ABSL_GUARDED_BY(mutex_);  // Front: being written.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_cancel_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_CALLS_H_
