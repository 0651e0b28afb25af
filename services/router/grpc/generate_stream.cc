#include "services/router/grpc/generate_stream.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/random.h"
#include "common/rpc/grpc_status.h"
#include "common/tracing/grpc_propagation.h"

namespace baton::router {
namespace {

SamplingRequest SamplingFromProto(const v1::SamplingParams& proto) {
  SamplingRequest sampling;
  if (proto.has_temperature()) sampling.temperature = proto.temperature();
  if (proto.has_top_k()) sampling.top_k = proto.top_k();
  if (proto.has_top_p()) sampling.top_p = proto.top_p();
  if (proto.has_min_p()) sampling.min_p = proto.min_p();
  if (proto.has_seed()) sampling.seed = proto.seed();
  sampling.stop.assign(proto.stop().begin(), proto.stop().end());
  sampling.stop_token_ids.assign(proto.stop_token_ids().begin(), proto.stop_token_ids().end());
  sampling.ignore_eos = proto.ignore_eos();
  if (proto.has_max_tokens()) sampling.max_tokens = proto.max_tokens();
  sampling.min_tokens = proto.min_tokens();
  sampling.logprobs = proto.logprobs();
  sampling.top_logprobs = proto.top_logprobs();
  sampling.prompt_logprobs = proto.prompt_logprobs();
  if (proto.has_presence_penalty()) sampling.presence_penalty = proto.presence_penalty();
  if (proto.has_frequency_penalty()) sampling.frequency_penalty = proto.frequency_penalty();
  if (proto.has_repetition_penalty()) sampling.repetition_penalty = proto.repetition_penalty();
  for (const v1::LogitBias& entry : proto.logit_bias()) {
    sampling.logit_bias.emplace_back(entry.token_id(), entry.bias());
  }
  return sampling;
}

// The shorter of the request's own timeout and the call's deadline; 0: neither.
int64_t TimeoutMs(const grpc::CallbackServerContext& context, int64_t timeout_ms) {
  const auto deadline = context.deadline();
  if (timeout_ms < 0 || deadline == std::chrono::system_clock::time_point::max()) {
    return timeout_ms;
  }
  const int64_t remaining_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                                   deadline - std::chrono::system_clock::now())
                                   .count();
  // gRPC's "no deadline" comes back as a far one.
  if (remaining_ms > int64_t{1000} * 86400 * 365) return timeout_ms;
  const int64_t bounded_ms = std::max<int64_t>(1, remaining_ms);
  return timeout_ms == 0 ? bounded_ms : std::min(timeout_ms, bounded_ms);
}

GenerateCall CallFromProto(const grpc::CallbackServerContext& context,
                           const v1::GenerateRequest& request) {
  GenerateCall call;
  call.endpoint = Endpoint::kGenerate;
  call.request_id = request.request_id();
  call.model = request.model();
  if (request.has_token_ids()) {
    call.prompt =
        TokenIdsPrompt(request.token_ids().ids().begin(), request.token_ids().ids().end());
  } else {
    call.prompt = request.text();
  }
  if (request.has_truncate_prompt_tokens()) {
    call.truncate_prompt_tokens = request.truncate_prompt_tokens();
  }
  call.sampling = SamplingFromProto(request.sampling());
  call.text.skip_special_tokens = !request.keep_special_tokens();
  call.text.include_stop = request.include_stop();
  call.timeout_ms = TimeoutMs(context, request.timeout_ms());
  return call;
}

v1::FinishReason ReasonToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kAbort:
      return v1::FINISH_REASON_ABORT;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

void SetLogprobs(const TokenPiece& token, v1::TokenLogprobs& logprobs) {
  if (token.logprob.has_value()) logprobs.set_logprob(*token.logprob);
  for (const TokenPiece::Top& top : token.top) {
    v1::TokenLogprob& entry = *logprobs.add_top();
    entry.set_token_id(top.id);
    entry.set_logprob(top.logprob);
  }
}

}  // namespace

GenerateStream* GenerateStream::Start(Gateway& gateway, const grpc::CallbackServerContext& context,
                                      const v1::GenerateRequest& request) {
  auto stream = std::make_shared<GenerateStream>(gateway);
  stream->self_ = stream;
  GenerateCall call = CallFromProto(context, request);
  if (gateway.tracer() != nullptr) call.caller = tracing::Extract(context);
  // Messages carry the id from the first on, and the first may come before Submit returns.
  if (call.request_id.empty()) call.request_id = "req-" + RandomHex(12);
  {
    MutexLock lock(&stream->mutex_);
    stream->request_id_ = call.request_id;
  }
  stream->want_logprobs_ = call.sampling.logprobs;
  const absl::StatusOr<Submitted> submitted = gateway.Submit(std::move(call), stream);
  if (!submitted.ok()) {
    stream->End(rpc::ToGrpc(submitted.status()));
    return stream.get();
  }
  bool cancelled = false;
  {
    MutexLock lock(&stream->mutex_);
    stream->call_id_ = submitted->call_id;
    cancelled = stream->cancelled_;
  }
  if (cancelled) gateway.Cancel(submitted->call_id);
  return stream.get();
}

void GenerateStream::OnPromptTokens(std::vector<TokenPiece> tokens) {
  v1::GenerateResponse message;
  v1::PromptLogprobs& chunk = *message.mutable_prompt_logprobs();
  for (const TokenPiece& token : tokens) {
    chunk.add_token_ids(token.id);
    SetLogprobs(token, *chunk.add_logprobs());
  }
  Enqueue(std::move(message));
}

void GenerateStream::OnTokens(TextPiece piece) {
  v1::GenerateResponse message;
  v1::TokenChunk& chunk = *message.mutable_tokens();
  chunk.set_text(std::move(piece.text));
  for (const TokenPiece& token : piece.tokens) {
    chunk.add_token_ids(token.id);
    if (want_logprobs_) SetLogprobs(token, *chunk.add_logprobs());
  }
  Enqueue(std::move(message));
}

void GenerateStream::OnFinished(Outcome outcome) {
  v1::GenerateResponse message;
  v1::Finished& finished = *message.mutable_finished();
  finished.set_reason(ReasonToProto(outcome.reason));
  finished.set_matched_stop(std::move(outcome.matched_stop));
  finished.set_text(std::move(outcome.text));
  *finished.mutable_usage() = std::move(outcome.usage);
  *finished.mutable_timing() = std::move(outcome.timing);
  finished.set_prefill_chain(std::move(outcome.chain_id));
  finished.set_decode_instance(std::move(outcome.decode_instance));
  finished.set_attempts(outcome.attempts);
  for (std::string& warning : outcome.warnings) finished.add_warnings(std::move(warning));
  Enqueue(std::move(message));
  End(grpc::Status::OK);
}

void GenerateStream::OnError(absl::Status status) { End(rpc::ToGrpc(status)); }

void GenerateStream::Enqueue(v1::GenerateResponse message) {
  MutexLock lock(&mutex_);
  if (cancelled_) return;
  message.set_request_id(request_id_);
  queue_.push_back(std::move(message));
  Advance();
}

void GenerateStream::End(grpc::Status status) {
  MutexLock lock(&mutex_);
  if (end_.has_value()) return;
  end_ = std::move(status);
  Advance();
}

void GenerateStream::Advance() {
  if (writing_ || finished_) return;
  if (!queue_.empty()) {
    writing_ = true;
    StartWrite(&queue_.front());
  } else if (end_.has_value()) {
    finished_ = true;
    Finish(*end_);
  }
}

void GenerateStream::OnWriteDone(bool) {
  MutexLock lock(&mutex_);
  writing_ = false;
  queue_.pop_front();
  if (cancelled_) queue_.clear();
  Advance();
}

void GenerateStream::OnCancel() {
  uint64_t call_id = 0;
  {
    MutexLock lock(&mutex_);
    if (finished_) return;
    cancelled_ = true;
    call_id = call_id_;
    // The message that is being written belongs to gRPC until OnWriteDone.
    while (queue_.size() > (writing_ ? 1 : 0)) queue_.pop_back();
    end_ = grpc::Status(grpc::StatusCode::CANCELLED, "the client cancelled the call");
    Advance();
  }
  if (call_id != 0) gateway_.Cancel(call_id);
}

void GenerateStream::OnDone() { self_.reset(); }

}  // namespace baton::router
