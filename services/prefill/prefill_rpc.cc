#include "services/prefill/prefill_rpc.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"
#include "common/tracing/grpc_propagation.h"
#include "services/prefill/chain/chain_shell.h"

namespace baton::prefill {
namespace {

constexpr char kService[] = "baton.v1.Prefill";
constexpr char kGenerate[] = "Generate";
constexpr char kGenerateSpan[] = "generate";

void Describe(const v1::StartResponse& response, tracing::ActiveSpan& span) {
  const v1::PrefillReport& report = response.report();
  span.Set("baton.prefill.chunks", report.chunks_size());
  span.Set("baton.kv.bytes", report.kv_bytes());
  span.Set("baton.kv.exposed_seconds", static_cast<double>(report.kv_exposed_us()) * 1e-6);
}
}  // namespace

absl::Status PrefillRpc::Own(absl::Status status) const {
  return WithLeg(std::move(status), "prefill", options_.instance_id);
}

absl::Status PrefillRpc::NotStage0() const {
  return Own(absl::FailedPreconditionError(
      absl::StrCat(options_.instance_id, " is not stage 0 of its chain")));
}

void PrefillRpc::NoteTaken(const v1::StartRequest& request) const {
  options_.peers->OnPromptTaken(request.router_incarnation(),
                                {request.prefix_keys().begin(), request.prefix_keys().end()});
}

grpc::ServerUnaryReactor* PrefillRpc::Start(grpc::CallbackServerContext* context,
                                            const v1::StartRequest* request,
                                            v1::StartResponse* response) {
  tracing::ActiveSpan span =
      tracing::ServerSpan(options_.tracer, *context, "prefill", kService, "Start");
  span.Set("baton.prompt.tokens", request->fixed_prompt_token_ids().size());
  const tracing::TraceContext trace = span.ContextOr({});
  std::shared_ptr<StartCall> call =
      StartCall::Open(response, std::move(span), Describe,
                      [chain = options_.chain, loop = options_.loop](const auto& cancelled) {
                        const bool posted = loop->PostCompletion([chain, cancelled] {
                          if (chain != nullptr) chain->Cancel(cancelled);
                        });
                        if (!posted) {
                          LOG(kInfo) << "a call is cancelled while the service stops";
                        }
                      });
  if (options_.chain == nullptr) {
    call->Reply(NotStage0());
    return call.get();
  }
  absl::StatusOr<prefill::Start> start = FromProto(*request, options_.bounds, trace);
  if (start.ok() && !start->ticket.has_value()) start = InvalidField("ticket", "is missing");
  if (!start.ok()) {
    call->Reply(Own(start.status()));
    return call.get();
  }
  NoteTaken(*request);
  grpc::ServerUnaryReactor* reactor = call.get();
  const bool posted = options_.loop->Post(
      [chain = options_.chain, start = *std::move(start), call] { chain->Start(start, call); });
  if (!posted) {
    call->Reply(Own(absl::UnavailableError("the stage stops or is overloaded")));
  }
  return reactor;
}

worker::StreamTrace PrefillRpc::TraceOf(tracing::ActiveSpan span,
                                        const v1::StartRequest& request) const {
  span.Set("baton.prompt.tokens", request.fixed_prompt_token_ids().size());
  return {options_.tracer, std::move(span), "prefill", NowUs()};
}

grpc::ServerWriteReactor<v1::DecodeGenerateResponse>* PrefillRpc::Generate(
    grpc::CallbackServerContext* context, const v1::StartRequest* request) {
  const auto call = worker::GenerateCall::Create(
      context,
      TraceOf(tracing::ServerSpan(options_.tracer, *context, kGenerateSpan, kService, kGenerate),
              *request));
  Begin(*request, call);
  return call.get();
}

void PrefillRpc::Begin(const v1::RelayedCall& call, worker::TokenRelay& relay) const {
  const v1::StartRequest& request = call.start();
  const auto caller = tracing::ParseTraceContext(call.traceparent(), call.tracestate());
  const std::shared_ptr<worker::TokenStream> stream = relay.Open(
      call.attempt_id(),
      TraceOf(tracing::ServerSpan(options_.tracer, caller, kGenerateSpan, kService, kGenerate),
              request));
  if (stream == nullptr) return;
  if (!call.has_start() || request.attempt_id() != call.attempt_id()) {
    return stream->Fail(Own(InvalidField("start", "is missing, or of another attempt")));
  }
  Begin(request, stream);
}

void PrefillRpc::Begin(const v1::StartRequest& request,
                       const std::shared_ptr<worker::TokenStream>& stream) const {
  if (options_.chain == nullptr) return stream->Fail(NotStage0());
  absl::StatusOr<prefill::Start> start = FromProto(request, options_.bounds, stream->context());
  if (start.ok() && start->ticket.has_value()) {
    start = InvalidField("ticket", "is of no use to a chain that decodes the request");
  }
  if (!start.ok()) return stream->Fail(Own(start.status()));
  NoteTaken(request);
  const bool posted = options_.loop->Post([chain = options_.chain, start = *std::move(start),
                                           stream] { chain->Generate(start, stream); });
  if (!posted) {
    return stream->Fail(Own(absl::UnavailableError("the stage stops or is overloaded")));
  }
  // Not the stream itself, which would keep itself alive: it lives until gRPC is done with it.
  stream->SetCancelHandler([chain = options_.chain, loop = options_.loop,
                            cancelled = std::weak_ptr<worker::TokenStream>(stream)] {
    const bool told = loop->PostCompletion([chain, cancelled] { chain->Cancel(cancelled.lock()); });
    if (!told) {
      LOG(kInfo) << "a stream is cancelled while the service stops";
    }
  });
}

grpc::ServerUnaryReactor* PrefillRpc::Abort(grpc::CallbackServerContext* context,
                                            const v1::PrefillAbortRequest* request,
                                            v1::PrefillAbortResponse* /*response*/) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (options_.chain == nullptr) {
    reactor->Finish(rpc::ToGrpc(NotStage0()));
    return reactor;
  }
  const bool posted =
      options_.loop->Post([chain = options_.chain, attempt_id = request->attempt_id(),
                           reason = request->reason().substr(0, rpc::kMaxStatusMessageBytes)] {
        chain->Abort(attempt_id, reason);
      });
  reactor->Finish(posted ? grpc::Status::OK
                         : rpc::ToGrpc(absl::UnavailableError("the stage stops or is overloaded")));
  return reactor;
}

grpc::ServerUnaryReactor* PrefillRpc::FlushCache(grpc::CallbackServerContext* context,
                                                 const v1::FlushCacheRequest* /*request*/,
                                                 v1::FlushCacheResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (options_.chain == nullptr) {
    reactor->Finish(rpc::ToGrpc(NotStage0()));
    return reactor;
  }
  const bool posted = options_.loop->Post([chain = options_.chain, response, reactor] {
    response->set_pages(chain->FlushCache());
    reactor->Finish(grpc::Status::OK);
  });
  if (!posted) {
    reactor->Finish(rpc::ToGrpc(Own(absl::UnavailableError("the stage stops or is overloaded"))));
  }
  return reactor;
}

grpc::ServerBidiReactor<v1::LinkRequest, v1::LinkResponse>* PrefillRpc::Link(
    grpc::CallbackServerContext* /*context*/) {
  return OpenLinkStream(options_.link, options_.loop);
}

}  // namespace baton::prefill
