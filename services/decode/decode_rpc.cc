#include "services/decode/decode_rpc.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"
#include "common/tracing/grpc_propagation.h"
#include "common/types/limits.h"
#include "services/decode/core/writers.h"

namespace baton::decode {
namespace {

constexpr char kService[] = "baton.v1.Decode";
constexpr int kMaxWriters = 4096;
constexpr size_t kMaxReasonBytes = 256;

void Describe(const v1::ReserveResponse& response, tracing::ActiveSpan& span) {
  if (response.has_ticket()) span.Set("baton.kv.pages", response.ticket().prompt_pages());
}

absl::Status Busy() {
  return absl::UnavailableError("the decode service is stopping or cannot keep up");
}

}  // namespace

absl::Status DecodeRpc::Own(absl::Status status) const {
  return WithLeg(std::move(status), "decode", options_.self.id);
}

absl::Status DecodeRpc::CheckPrompt(const v1::ReserveRequest& request) const {
  const auto& ids = request.prompt_token_ids();
  if (ids.empty()) return InvalidField("prompt_token_ids", "must not be empty");
  if (ids.size() >= options_.planner.max_context_tokens) {
    return InvalidField("prompt_token_ids",
                        absl::StrCat(ids.size(), " leave no room for a new one",
                                     " in a context of ", options_.planner.max_context_tokens));
  }
  const auto outside = std::find_if(
      ids.begin(), ids.end(), [this](int32_t id) { return id < 0 || id >= model_.vocab_size; });
  if (outside == ids.end()) return absl::OkStatus();
  return InvalidField(absl::StrCat("prompt_token_ids[", outside - ids.begin(), "]"),
                      absl::StrCat(*outside, " is not in the vocabulary of ", model_.vocab_size));
}

absl::StatusOr<prefill::Start> DecodeRpc::Check(const v1::ReserveRequest& request) const {
  if (request.attempt_id() == 0) return InvalidField("attempt_id", "must not be 0");
  if (request.timeout_ms() < 1 || request.timeout_ms() > kMaxTimeoutMs) {
    return InvalidField("timeout_ms", absl::StrCat("must be in [1, ", kMaxTimeoutMs, "], is ",
                                                   request.timeout_ms()));
  }
  v1::SamplingParams sampling = request.sampling();
  sampling.clear_prompt_logprobs();  // They are told by who reads the prompt.
  if (!sampling.logprobs()) sampling.clear_top_logprobs();
  BATON_ASSIGN_OR_RETURN(
      auto sampler,
      parts_.executor->last_stage()
          ? TokenSampler::Create(sampling, model_.eos_token_ids, model_.vocab_size,
                                 parts_.constraints)
          : TokenSampler::CreateSilent(sampling, model_.eos_token_ids, model_.vocab_size));
  BATON_RETURN_IF_ERROR(CheckPrompt(request));
  BATON_RETURN_IF_ERROR(sampler.CheckDrawn(request.prompt_token_ids_size()));
  if (request.writers_size() > kMaxWriters) {
    return InvalidField("writers", absl::StrCat(request.writers_size(), " are too many"));
  }
  if (request.cache_salt().size() > kMaxCacheSaltBytes) {
    return InvalidField("cache_salt", absl::StrCat(request.cache_salt().size(), " bytes, at most ",
                                                   kMaxCacheSaltBytes));
  }
  prefill::Start start;
  start.attempt_id = request.attempt_id();
  for (int i = 0; i < request.writers_size(); ++i) {
    BATON_ASSIGN_OR_RETURN(KvWriter writer,
                           rpc::FromProto(request.writers(i), absl::StrCat("writers[", i, "]")));
    start.writers.push_back(std::move(writer));
  }
  BATON_RETURN_IF_ERROR(CheckWriters(start.writers, model_.num_hidden_layers,
                                     model_.num_key_value_heads,
                                     parts_.executor->tensor_rank().size));
  start.cache_salt = request.cache_salt();
  start.timeout_ms = request.timeout_ms();
  start.prompt = std::make_shared<const prefill::PromptContext>(
      prefill::PromptContext{{request.prompt_token_ids().begin(), request.prompt_token_ids().end()},
                             std::move(sampling),
                             std::move(sampler),
                             {}});
  return start;
}

grpc::ServerUnaryReactor* DecodeRpc::Reserve(grpc::CallbackServerContext* context,
                                             const v1::ReserveRequest* request,
                                             v1::ReserveResponse* response) {
  const std::shared_ptr<ReserveCall> call = ReserveCall::Open(
      response, tracing::ServerSpan(parts_.tracer, *context, "reserve", kService, "Reserve"),
      Describe, [this, attempt_id = request->attempt_id()](const auto& cancelled) {
        const bool told = loop_->PostCompletion([shell = shell_, attempt_id, cancelled] {
          shell->Cancelled(attempt_id, cancelled.get());
        });
        if (!told) {
          LOG(kDebug) << "a reservation is cancelled after the end";
        }
        cancelled->Reply(absl::CancelledError("the call was cancelled"));
      });
  absl::StatusOr<prefill::Start> start = Check(*request);
  if (!start.ok()) {
    call->Reply(Own(start.status()));
    return call.get();
  }
  const bool posted = loop_->Post(
      [shell = shell_, call, start = *std::move(start)] { shell->Reserve(start, call); });
  if (!posted) call->Reply(Own(Busy()));
  return call.get();
}

worker::StreamTrace DecodeRpc::TraceOf(tracing::ActiveSpan span) const {
  return {parts_.tracer, std::move(span), "kv receive", NowUs()};
}

grpc::ServerWriteReactor<v1::DecodeGenerateResponse>* DecodeRpc::Generate(
    grpc::CallbackServerContext* context, const v1::DecodeGenerateRequest* request) {
  const auto call = worker::GenerateCall::Create(
      context,
      TraceOf(tracing::ServerSpan(parts_.tracer, *context, "decode", kService, "Generate")));
  Begin(*request, call);
  return call.get();
}

void DecodeRpc::Begin(const v1::RelayedCall& call, worker::TokenRelay& relay) const {
  const auto caller = tracing::ParseTraceContext(call.traceparent(), call.tracestate());
  const std::shared_ptr<worker::TokenStream> stream = relay.Open(
      call.attempt_id(),
      TraceOf(tracing::ServerSpan(parts_.tracer, caller, "decode", kService, "Generate")));
  if (stream == nullptr) return;
  if (!call.has_generate() || call.generate().attempt_id() != call.attempt_id()) {
    return stream->Fail(Own(InvalidField("generate", "is missing, or of another attempt")));
  }
  Begin(call.generate(), stream);
}

void DecodeRpc::Begin(const v1::DecodeGenerateRequest& request,
                      const std::shared_ptr<worker::TokenStream>& stream) const {
  const uint64_t attempt_id = request.attempt_id();
  const bool posted =
      loop_->Post([shell = shell_, stream, attempt_id, generation = request.generation()] {
        shell->Open(attempt_id, generation, stream);
      });
  if (!posted) return stream->Fail(Own(Busy()));
  stream->SetCancelHandler([this, attempt_id, raw = stream.get()] {
    const bool told = loop_->PostCompletion(
        [shell = shell_, attempt_id, raw] { shell->Cancelled(attempt_id, raw); });
    if (!told) {
      LOG(kDebug) << "a stream is cancelled after the end";
    }
  });
}

grpc::ServerUnaryReactor* DecodeRpc::Release(grpc::CallbackServerContext* context,
                                             const v1::ReleaseRequest* request,
                                             v1::ReleaseResponse* response) {
  return PostAndAnswer(
      context, [shell = shell_, attempt_id = request->attempt_id(),
                generation = request->generation()] { shell->Release(attempt_id, generation); });
}

grpc::ServerUnaryReactor* DecodeRpc::Abort(grpc::CallbackServerContext* context,
                                           const v1::DecodeAbortRequest* request,
                                           v1::DecodeAbortResponse* response) {
  const std::string reason = request->reason().substr(0, kMaxReasonBytes);
  return PostAndAnswer(context,
                       [shell = shell_, attempt_id = request->attempt_id(),
                        status = Own(absl::CancelledError(reason.empty() ? "aborted" : reason))] {
                         shell->Abort(attempt_id, status);
                       });
}

grpc::ServerUnaryReactor* DecodeRpc::FlushCache(grpc::CallbackServerContext* context,
                                                const v1::FlushCacheRequest* /*request*/,
                                                v1::FlushCacheResponse* response) {
  return PostAndAnswer(context,
                       [shell = shell_, response] { response->set_pages(shell->FlushCache()); });
}

// Answers after the loop has done it, so that the caller knows that the pages are being returned.
grpc::ServerUnaryReactor* DecodeRpc::PostAndAnswer(grpc::CallbackServerContext* context,
                                                   std::function<void()> task) const {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const bool posted = loop_->Post([task = std::move(task), reactor] {
    task();
    reactor->Finish(grpc::Status::OK);
  });
  if (!posted) reactor->Finish(rpc::ToGrpc(Own(Busy())));
  return reactor;
}

}  // namespace baton::decode
