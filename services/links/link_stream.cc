#include "services/links/link_stream.h"

#include "common/rpc/grpc_status.h"

namespace baton::links {

LinkStream* LinkStream::Open(Callbacks callbacks) {
  std::shared_ptr<LinkStream> stream(new LinkStream(std::move(callbacks)));
  stream->self_ = stream;
  stream->StartRead(&stream->request_);
  return stream.get();
}

void LinkStream::Write(v1::LinkResponse response) {
  bool overrun = false;
  {
    MutexLock lock(&mutex_);
    if (finished_) return;
    overrun = unsent_.size() >= kMaxUnsent;
    if (!overrun) {
      unsent_.push_back(std::move(response));
      if (unsent_.size() == 1) StartWrite(&unsent_.front());
    }
  }
  if (overrun)
    Finish(absl::ResourceExhaustedError("who has opened the link does not read its reports"));
}

// gRPC takes no Finish while a write is under way.
void LinkStream::Finish(const absl::Status& status) {
  grpc::Status converted = rpc::ToGrpc(status);
  {
    MutexLock lock(&mutex_);
    if (std::exchange(finished_, true)) return;
    if (!unsent_.empty()) {
      finish_ = std::move(converted);
      return;
    }
  }
  ServerBidiReactor::Finish(std::move(converted));
}

void LinkStream::OnReadDone(bool ok) {
  if (!ok) {
    callbacks_.on_end(shared_from_this());
    return;
  }
  if (!callbacks_.on_request(shared_from_this(), std::move(request_))) {
    Finish(absl::ResourceExhaustedError("the worker takes no more messages"));
    return;
  }
  request_.Clear();
  StartRead(&request_);
}

void LinkStream::OnWriteDone(bool ok) {
  std::optional<grpc::Status> finish;
  {
    MutexLock lock(&mutex_);
    unsent_.pop_front();
    if (!ok) unsent_.clear();
    if (finish_.has_value()) {
      finish.swap(finish_);
      unsent_.clear();
    } else if (!unsent_.empty()) {
      StartWrite(&unsent_.front());
    }
  }
  if (finish.has_value()) ServerBidiReactor::Finish(*std::move(finish));
}

void LinkStream::OnCancel() { callbacks_.on_end(shared_from_this()); }

void LinkStream::OnDone() { const std::shared_ptr<LinkStream> last = std::move(self_); }

}  // namespace baton::links
