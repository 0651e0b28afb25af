#include "services/router/legs/leg_stream.h"

#include <utility>

#include "common/base/log.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"
#include "common/tracing/grpc_propagation.h"

namespace baton::router {
namespace {

StreamMessage MessageOf(const v1::DecodeGenerateResponse& message) {
  if (message.has_token()) {
    const v1::DecodeToken& token = message.token();
    return rpc::SampledFromProto(token.token_id(), token.logprobs());
  }
  if (!message.has_finished()) return StreamMalformed{};
  switch (message.finished().reason()) {
    case v1::FINISH_REASON_STOP:
      return StreamFinished{FinishReason::kStop};
    case v1::FINISH_REASON_LENGTH:
      return StreamFinished{FinishReason::kLength};
    default:
      return StreamFinished{};
  }
}

}  // namespace

Heard HeardOf(v1::DecodeGenerateResponse& message) {
  if (!message.has_prompt()) return {MessageOf(message), nullptr};
  return {StreamMalformed{},
          std::make_unique<v1::StartResponse>(std::move(*message.mutable_prompt()))};
}

bool Tell(const LegStream::Listener& listener, Heard& heard) {
  if (heard.prompt != nullptr && listener.on_prompt != nullptr) {
    listener.on_prompt(std::move(*heard.prompt));
    return false;
  }
  listener.on_message(heard.message);
  return std::holds_alternative<StreamFinished>(heard.message);
}

std::shared_ptr<LegStream> LegStream::Start(std::shared_ptr<WorkerStubs> worker,
                                            rpc::CallTracker& tracker, Request request,
                                            std::chrono::system_clock::time_point deadline,
                                            const tracing::TraceContext& trace, Post post,
                                            Listener listener) {
  auto stream = std::make_shared<LegStream>(std::move(worker), tracker, std::move(request),
                                            std::move(post), std::move(listener));
  stream->self_ = stream;
  grpc::ClientContext& context = *stream->context_;
  context.set_deadline(deadline);
  tracing::Inject(trace, context);
  if (const auto* decode = std::get_if<v1::DecodeGenerateRequest>(&stream->request_)) {
    stream->worker_->decode->async()->Generate(&context, decode, stream.get());
  } else {
    const auto& prompt = std::get<v1::StartRequest>(stream->request_);
    stream->worker_->prefill->async()->Generate(&context, &prompt, stream.get());
  }
  // Some reads are started from the loop, outside of reactions: the hold keeps the call from ending
  // between a read and the next. The read that fails gives it back.
  stream->AddHold();
  stream->StartRead(&stream->message_);
  stream->StartCall();
  return stream;
}

LegStream::LegStream(std::shared_ptr<WorkerStubs> worker, rpc::CallTracker& tracker,
                     Request request, Post post, Listener listener)
    : context_(tracker),
      worker_(std::move(worker)),
      request_(std::move(request)),
      post_(std::move(post)),
      listener_(std::move(listener)) {}

// ---- On gRPC's threads ----

void LegStream::OnReadDone(bool ok) {
  if (!ok) return RemoveHold();
  const auto added = unheard_.Add(HeardOf(message_));
  if (!added.paused) StartRead(&message_);  // First: the task may run here.
  if (added.first && !post_([stream = self_] { stream->HearUnheard(); })) {
    context_->TryCancel();
    unheard_.Clear();
  }
}

void LegStream::OnDone(const grpc::Status& status) {
  const bool posted =
      post_([stream = self_, status = rpc::FromGrpc(status)] { stream->listener_.on_end(status); });
  if (!posted) {
    LOG(kDebug) << "a stream ended after the router's loop";
  }
  self_.reset();
}

// ---- On the loop ----

void LegStream::HearUnheard() {
  const bool paused = unheard_.Take(hearing_);
  for (Heard& heard : hearing_) Tell(listener_, heard);
  hearing_.clear();
  if (paused) StartRead(&message_);
}

}  // namespace baton::router
