#include "services/router/request_trace.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

using tracing::ActiveSpan;
using tracing::SpanKind;
using tracing::TraceContext;

// OpenTelemetry's name for what was asked for.
const char* OperationName(Endpoint endpoint) {
  return IsChat(endpoint) ? "chat" : "text_completion";
}

void SetSampling(const v1::SamplingParams& sampling, ActiveSpan& span) {
  span.Set("gen_ai.request.max_tokens", sampling.max_tokens());
  span.Set("gen_ai.request.seed", static_cast<int64_t>(sampling.seed()));
  if (sampling.has_temperature()) {
    span.Set("gen_ai.request.temperature", double{sampling.temperature()});
  }
  if (sampling.has_top_p()) span.Set("gen_ai.request.top_p", double{sampling.top_p()});
  if (sampling.has_top_k()) span.Set("gen_ai.request.top_k", sampling.top_k());
  if (sampling.has_frequency_penalty()) {
    span.Set("gen_ai.request.frequency_penalty", double{sampling.frequency_penalty()});
  }
  if (sampling.has_presence_penalty()) {
    span.Set("gen_ai.request.presence_penalty", double{sampling.presence_penalty()});
  }
}

}  // namespace

RequestTrace::RequestTrace(tracing::Tracer* tracer, const TraceContext& caller, Endpoint endpoint,
                           const std::string& model, int64_t now_us)
    : tracer_(tracer), context_(caller), arrival_us_(now_us) {
  if (tracer_ == nullptr) {
    trace_ = context_.trace;
    return;
  }
  if (!context_.valid()) context_ = tracer_->NewTrace();
  trace_ = context_.trace;
  const char* operation = OperationName(endpoint);
  // A request that is one of several behind an HTTP answer has its parent here.
  const bool local_parent = context_.span != 0 && !context_.remote;
  request_ = Child("", local_parent ? SpanKind::kInternal : SpanKind::kServer, context_, now_us);
  if (!request_) {
    if (context_.span == 0) context_ = {};  // Not sampled: don't propagate it.
    return;
  }
  request_.SetName(absl::StrCat(operation, " ", model));
  context_ = request_.ContextOr(context_);
  request_.Set("gen_ai.operation.name", operation);
  request_.Set("gen_ai.provider.name", "baton");
  request_.Set("gen_ai.request.model", model);
  request_.Set("gen_ai.response.model", model);
  request_.Set("baton.endpoint", EndpointName(endpoint));
}

std::string RequestTrace::trace_id() const { return trace_.valid() ? tracing::Hex(trace_) : ""; }

void RequestTrace::Accept(const std::string& request_id, const v1::SamplingParams& sampling,
                          int prompt_tokens, int64_t now_us) {
  if (!request_) return;
  request_.Set("gen_ai.response.id", request_id);
  request_.Set("gen_ai.usage.input_tokens", prompt_tokens);
  SetSampling(sampling, request_);
  Child("tokenize", SpanKind::kInternal, context_, arrival_us_).End(now_us);
  queue_ = Child("queue", SpanKind::kInternal, context_, now_us);
}

ActiveSpan RequestTrace::Call(const char* name, const char* service, const char* method,
                              int64_t now_us) const {
  ActiveSpan span = Child(name, SpanKind::kClient, attempt_.ContextOr(context_), now_us);
  span.Set("rpc.system", "grpc");
  span.Set("rpc.service", service);
  span.Set("rpc.method", method);
  return span;
}

void RequestTrace::BeginAttempt(const InstanceRef& decode, const std::vector<KvWriter>& stages,
                                int64_t now_us) {
  if (attempt_) {
    request_.AddEvent("retry", now_us,
                      {{"baton.attempt", int64_t{attempts_ + 1}},
                       {"baton.retry.reason", std::string(failure_.message())}});
    const int64_t failed_us = failed_us_ == 0 ? now_us : failed_us_;
    EndAttempt(failure_, failed_us);
    queue_ = Child("queue", SpanKind::kInternal, context_, failed_us);
  }
  queue_.End(now_us);
  attempt_ = Child("attempt", SpanKind::kInternal, context_, now_us);
  attempt_.Set("baton.attempt", ++attempts_);
  attempt_.Set("baton.decode.instance_id", decode.id);
  std::vector<std::string> ids;
  ids.reserve(stages.size());
  for (const KvWriter& stage : stages) ids.push_back(stage.instance.id);
  attempt_.Set("baton.prefill.instance_ids", std::move(ids));
}

const TraceContext& RequestTrace::BeginGeneration(const StartGeneration& action, int64_t now_us) {
  if (!request_) return context_;
  BeginAttempt(action.stage0, action.stages, now_us);
  colocated_ = true;
  stream_ = Call("generate", "baton.v1.Prefill", "Generate", now_us);
  return stream_.ContextOr(context_);
}

const TraceContext& RequestTrace::BeginReserve(const Reserve& action, int64_t now_us) {
  if (!request_) return context_;
  BeginAttempt(action.decode, action.writers, now_us);
  colocated_ = false;
  reserve_ = Call("reserve", "baton.v1.Decode", "Reserve", now_us);
  return reserve_.ContextOr(context_);
}

const TraceContext& RequestTrace::BeginStream(int64_t now_us) {
  if (request_) stream_ = Call("decode", "baton.v1.Decode", "Generate", now_us);
  return stream_.ContextOr(context_);
}

const TraceContext& RequestTrace::BeginPrefill(int64_t now_us) {
  if (request_) prefill_ = Call("prefill", "baton.v1.Prefill", "Start", now_us);
  return prefill_.ContextOr(context_);
}

void RequestTrace::EndReserve(const absl::Status& status, int64_t now_us) {
  reserve_.End(now_us, status);
  NoteFailure(status, now_us);
}

void RequestTrace::EndStream(const absl::Status& status, int64_t now_us) {
  stream_.End(now_us, status);
  NoteFailure(status, now_us);
}

void RequestTrace::EndPrefill(const absl::Status& status, const v1::PrefillReport& report,
                              int64_t now_us) {
  if (colocated_) {  // A stream that goes on.
    stream_.Set("baton.prefill.chunks", report.chunks_size());
    stream_.AddEvent("prompt", now_us);
    return;
  }
  if (prefill_ && status.ok()) {
    prefill_.Set("baton.prefill.chunks", report.chunks_size());
    prefill_.Set("baton.kv.bytes", report.kv_bytes());
  }
  prefill_.End(now_us, status);
  NoteFailure(status, now_us);
}

void RequestTrace::AbortDecode(const std::string& reason, int64_t now_us) {
  for (ActiveSpan* span : {&reserve_, &stream_}) {
    span->Set("baton.abort.reason", reason);
    span->End(now_us);
  }
  NoteFailure(absl::CancelledError(reason), now_us);
}

void RequestTrace::AbortPrefill(const std::string& reason, int64_t now_us) {
  ActiveSpan& call = colocated_ ? stream_ : prefill_;
  call.Set("baton.abort.reason", reason);
  call.End(now_us);
  NoteFailure(absl::CancelledError(reason), now_us);
}

// The first of an attempt is the cause; what comes after follows from it.
void RequestTrace::NoteFailure(const absl::Status& status, int64_t now_us) {
  if (!request_ || status.ok() || !failure_.ok()) return;
  failure_ = status;
  failed_us_ = now_us;
}

void RequestTrace::EndAttempt(const absl::Status& status, int64_t now_us) {
  reserve_.End(now_us, status);
  stream_.End(now_us, status);
  prefill_.End(now_us, status);
  attempt_.End(now_us, status);
  failure_ = absl::OkStatus();
  failed_us_ = 0;
}

void RequestTrace::Finish(const RequestEnd& end, int64_t now_us) {
  if (!request_) return;
  queue_.End(now_us, end.status);
  EndAttempt(end.status, now_us);
  request_.Set("gen_ai.response.finish_reasons", std::vector<std::string>{FinishName(end)});
  request_.Set("gen_ai.usage.output_tokens", end.completion_tokens);
  if (end.completion_tokens > 0) {
    request_.Set("gen_ai.response.time_to_first_chunk", static_cast<double>(end.ttft_us) * 1e-6);
  }
  request_.Set("baton.attempts", end.attempts);
  if (!end.chain_id.empty()) request_.Set("baton.chain.id", end.chain_id);
  if (!end.decode_instance.empty()) request_.Set("baton.decode.instance_id", end.decode_instance);
  request_.End(now_us, end.status);
}

}  // namespace baton::router
