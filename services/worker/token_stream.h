// The tokens of one request on their way from a worker to a router. gRPC or a relay keeps it alive
// until it is done with it, the shell as long as it may still answer.
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

class TokenStream {
 public:
  virtual ~TokenStream() = default;
  TokenStream(const TokenStream&) = delete;
  TokenStream& operator=(const TokenStream&) = delete;

  // What the request's other spans are below.
  tracing::TraceContext context() const { return trace_.context(); }

  // False if the reader is too slow: abort the request and Break the stream. Any thread.
  [[nodiscard]] virtual bool Push(v1::DecodeGenerateResponse response) = 0;
  // The same; its times go into the trace. The loop's thread.
  [[nodiscard]] bool PushToken(const SampledToken& token, bool logprobs);
  // Ends the stream: with a Finished after what is queued, or with the status. The trace ends, too.
  // The loop's thread.
  void Conclude(const absl::StatusOr<FinishReason>& outcome);
  // Ends it with the status, before the loop has it. Any thread.
  void Fail(const absl::Status& status) { End(status); }
  // Ends the stream even if the reader takes nothing more.
  virtual void Break() = 0;

  // `on_cancel` is called once if the reader goes away, at once if it has.
  void SetCancelHandler(std::function<void()> on_cancel);

 protected:
  explicit TokenStream(StreamTrace trace) : trace_(std::move(trace)) {}
  // The first one counts; nothing is sent after it.
  virtual void End(const absl::Status& status) = 0;
  // The reader has gone away.
  void TellCancelled();

 private:
  StreamTrace trace_;
  Mutex cancel_mutex_;
  bool cancelled_ ABSL_GUARDED_BY(cancel_mutex_) = false;
  std::function<void()> on_cancel_ ABSL_GUARDED_BY(cancel_mutex_);
};

// The answer of a call Generate: a queue and one write at a time.
class GenerateCall final : public TokenStream,
                           public grpc::ServerWriteReactor<v1::DecodeGenerateResponse> {
 public:
  // A reader with so long a queue is considered stuck.
  static constexpr size_t kMaxQueued = 4096;

  static std::shared_ptr<GenerateCall> Create(grpc::CallbackServerContext* context,
                                              StreamTrace trace);

  [[nodiscard]] bool Push(v1::DecodeGenerateResponse response) override;
  void Break() override { context_->TryCancel(); }

 private:
  GenerateCall(grpc::CallbackServerContext* context, StreamTrace trace)
      : TokenStream(std::move(trace)), context_(context) {}
  // After a failure, what is queued and not being written is dropped.
  void End(const absl::Status& status) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { self_.reset(); }
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::shared_ptr<GenerateCall> self_;  // Until OnDone.
  grpc::CallbackServerContext* const context_;
  Mutex mutex_;
  std::deque<v1::DecodeGenerateResponse> queue_ ABSL_GUARDED_BY(mutex_);  // Front: being written.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_TOKEN_STREAM_H_
