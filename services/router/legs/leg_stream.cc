#include "services/router/legs/leg_stream.h"

#include <utility>

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

LegStream::Heard LegStream::HeardOf(v1::DecodeGenerateResponse& message) {
  if (!message.has_prompt()) return {MessageOf(message), nullptr};
  return {StreamMalformed{},
          std::make_unique<v1::StartResponse>(std::move(*message.mutable_prompt()))};
}

std::shared_ptr<LegStream> LegStream::Start(std::shared_ptr<WorkerStubs> worker,
                                            rpc::CallTracker& tracker, Request request,
                                            std::chrono::system_clock::time_point deadline,
                                            const tracing::TraceContext& trace,
                                            Callbacks callbacks) {
  auto stream = std::make_shared<LegStream>(std::move(worker), tracker, std::move(request),
                                            std::move(callbacks));
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
                     Request request, Callbacks callbacks)
    : context_(tracker),
      worker_(std::move(worker)),
      request_(std::move(request)),
      callbacks_(std::move(callbacks)) {}

void LegStream::OnReadDone(bool ok) {
  if (!ok) return RemoveHold();
  Heard heard = HeardOf(message_);
  bool first = false;
  bool paused = false;
  {
    MutexLock lock(&mutex_);
    first = unheard_.empty();
    unheard_.push_back(std::move(heard));
    paused = paused_ = unheard_.size() >= kReadAhead;
  }
  if (first && !callbacks_.post([stream = self_] { stream->TellUnheard(); })) {
    Cancel();
    MutexLock lock(&mutex_);
    unheard_.clear();
  }
  if (!paused) StartRead(&message_);
}

void LegStream::TellUnheard() {
  bool paused = false;
  {
    MutexLock lock(&mutex_);
    hearing_.swap(unheard_);
    paused = std::exchange(paused_, false);
  }
  for (Heard& heard : hearing_) {
    if (heard.prompt != nullptr && callbacks_.on_prompt != nullptr) {
      callbacks_.on_prompt(std::move(*heard.prompt));
    } else {
      callbacks_.on_message(heard.message);
    }
  }
  hearing_.clear();
  if (paused) StartRead(&message_);
}

void LegStream::OnDone(const grpc::Status& status) {
  callbacks_.on_end(rpc::FromGrpc(status));
  self_.reset();
}

}  // namespace baton::router
