// A stream of tokens from a worker to a router, as Decode.Generate and Prefill.Generate answer
// with. gRPC keeps it alive until it is done with it, the shell as long as it may still answer.
#ifndef SERVICES_WORKER_TOKEN_STREAM_H_
#define SERVICES_WORKER_TOKEN_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "common/tracing/tracer.h"
#include "common/types/sampled_token.h"
#include "proto/baton/v1/decode.pb.h"
#include "services/worker/token_relay.h"

namespace baton::worker {

// The spans of one request's stream: the stream and, within it, what comes before the first token,
// and the decoding after it. Null pointers if the request is not traced.

// One thread at a time: gRPC's until the stream is passed to the loop, then the loop's.
class StreamTrace {
 public:
  // `stream` is the RPC's span, which has just started; `first` names what the first token waits
  // for.
  StreamTrace(tracing::Tracer* tracer, tracing::ActiveSpan stream, const char* first,
              int64_t now_us)
      : tracer_(tracer), stream_(std::move(stream)) {
    if (stream_) first_ = Child(first, now_us);
  }

  // What is a child of the stream.
  tracing::TraceContext context() const { return stream_.ContextOr({}); }

  // A token is sent.
  void OnToken(int64_t now_us) {
    if (!stream_) return;
    if (++tokens_ == 1) {
      first_.End(now_us);
      stream_.AddEvent("first_token", now_us);
      decode_ = Child("decode tokens", now_us);
    }
  }

  void End(const absl::Status& status, int64_t now_us) {
    if (!stream_) return;
    first_.End(now_us, status);
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
  tracing::ActiveSpan first_;
  tracing::ActiveSpan decode_;
  int tokens_ = 0;
};

// A queue and one write at a time.
class TokenStream final : public grpc::ServerWriteReactor<v1::DecodeGenerateResponse> {
 public:
  // A reader with so long a queue is considered stuck.
  static constexpr size_t kMaxQueued = 4096;

  // With a relay, what is said of `attempt_id` goes there, and only the end comes from the stream.
  static std::shared_ptr<TokenStream> Create(grpc::CallbackServerContext* context,
                                             StreamTrace trace, uint64_t attempt_id,
                                             std::shared_ptr<TokenRelay> relay);

  // What the request's other spans are below.
  tracing::TraceContext context() const { return trace_.context(); }

  // False if the queue is full, or the relay is: abort the request and Break the stream. Any
  // thread.
  [[nodiscard]] bool Push(v1::DecodeGenerateResponse response);
  // The same; its times go into the trace. The loop's thread.
  [[nodiscard]] bool PushToken(const SampledToken& token, bool logprobs);
  // Ends the stream: with a Finished after what is queued, or with the status, when what is queued
  // and not being written is dropped. The trace ends, too. The loop's thread.
  void Conclude(const absl::StatusOr<FinishReason>& outcome);
  // Ends it with the status, before the loop has it. Any thread.
  void Fail(const absl::Status& status);
  // Ends the stream even if the reader takes nothing more, so that no status can reach it.
  void Break() { context_->TryCancel(); }

  void SetCancelHandler(std::function<void()> on_cancel);

 private:
  TokenStream(grpc::CallbackServerContext* context, StreamTrace trace, uint64_t attempt_id,
              std::shared_ptr<TokenRelay> relay)
      : context_(context),
        trace_(std::move(trace)),
        attempt_id_(attempt_id),
        relay_(std::move(relay)) {}
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { self_.reset(); }
  void End(const absl::Status& status, bool drop);
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::shared_ptr<TokenStream> self_;  // Until OnDone.
  grpc::CallbackServerContext* const context_;
  StreamTrace trace_;
  const uint64_t attempt_id_;
  const std::shared_ptr<TokenRelay> relay_;  // May be null.
  Mutex mutex_;
  std::deque<v1::DecodeGenerateResponse> queue_ ABSL_GUARDED_BY(mutex_);  // Front: being written.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_cancel_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_TOKEN_STREAM_H_
