// The spans of one request's stream on the decode service: the stream and, within it, the wait for
// KV up to the first token, and the decoding after it. Null pointers if the request is not traced.
#ifndef SERVICES_DECODE_STREAM_TRACE_H_
#define SERVICES_DECODE_STREAM_TRACE_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "common/tracing/tracer.h"

namespace baton::decode {

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

}  // namespace baton::decode

#endif  // SERVICES_DECODE_STREAM_TRACE_H_
