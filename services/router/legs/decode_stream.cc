#include "services/router/legs/decode_stream.h"

#include <utility>

#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/tracing/grpc_propagation.h"
#include "services/router/legs/leg_status.h"

namespace baton::router {

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
  if (message_.has_token() && !finished_.has_value()) {
    const v1::DecodeToken& token = message_.token();
    if (callbacks_.on_token(rpc::SampledFromProto(token.token_id(), token.logprobs()))) return;
    Cancel();
  } else if (message_.has_finished() && !finished_.has_value()) {
    switch (message_.finished().reason()) {
      case v1::FINISH_REASON_STOP:
        finished_ = FinishReason::kStop;
        break;
      case v1::FINISH_REASON_LENGTH:
        finished_ = FinishReason::kLength;
        break;
      default:
        finished_ =
            LegProtocolError("finished for no reason that the router knows", "decode", *worker_);
    }
  } else {
    finished_ =
        LegProtocolError("sent a message that is neither token nor end", "decode", *worker_);
    Cancel();
  }
  StartRead(&message_);
}

void DecodeStream::OnDone(const grpc::Status& status) {
  if (finished_.has_value() && (status.ok() || !finished_->ok())) {
    callbacks_.on_end(*std::move(finished_));
  } else if (status.ok()) {
    callbacks_.on_end(LegProtocolError("ended its stream without Finished", "decode", *worker_));
  } else {
    callbacks_.on_end(LegStatus(status, "decode", "Decode.Generate", *worker_));
  }
  self_.reset();
}

}  // namespace baton::router
