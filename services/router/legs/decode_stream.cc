#include "services/router/legs/decode_stream.h"

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
  if (!message.has_finished()) return StreamNonsense{};
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

std::shared_ptr<DecodeStream> DecodeStream::Start(std::shared_ptr<WorkerStubs> worker,
                                                  rpc::CallTracker& tracker,
                                                  const v1::DecodeGenerateRequest& request,
                                                  std::chrono::system_clock::time_point deadline,
                                                  const tracing::TraceContext& trace,
                                                  Callbacks callbacks) {
  auto stream =
      std::make_shared<DecodeStream>(std::move(worker), tracker, request, std::move(callbacks));
  stream->self_ = stream;
  stream->context_->set_deadline(deadline);
  tracing::Inject(trace, *stream->context_);
  stream->worker_->decode->async()->Generate(&*stream->context_, &stream->request_, stream.get());
  // Reads are started from the loop, outside of reactions: the hold keeps the call from ending
  // between a read and the next. The read that fails gives it back.
  stream->AddHold();
  stream->StartRead(&stream->message_);
  stream->StartCall();
  return stream;
}

DecodeStream::DecodeStream(std::shared_ptr<WorkerStubs> worker, rpc::CallTracker& tracker,
                           v1::DecodeGenerateRequest request, Callbacks callbacks)
    : context_(tracker),
      worker_(std::move(worker)),
      request_(std::move(request)),
      callbacks_(std::move(callbacks)) {}

void DecodeStream::OnReadDone(bool ok) {
  if (!ok) return RemoveHold();
  if (callbacks_.on_message(MessageOf(message_))) return;
  Cancel();
  StartRead(&message_);
}

void DecodeStream::OnDone(const grpc::Status& status) {
  callbacks_.on_end(rpc::FromGrpc(status));
  self_.reset();
}

}  // namespace baton::router
