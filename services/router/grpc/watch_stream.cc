#include "services/router/grpc/watch_stream.h"

#include <utility>

#include "common/rpc/grpc_status.h"

namespace baton::router {

WatchStream* WatchStream::Start(RouterShell& shell, InstanceRef instance) {
  auto stream = std::make_shared<WatchStream>(shell);
  stream->self_ = stream;
  RouterShell::WatchCallbacks callbacks;
  callbacks.notify = [stream](uint64_t view_version) { stream->Notify(view_version); };
  callbacks.end = [stream](const absl::Status& status) { stream->End(status); };
  const uint64_t rpc_id = shell.Watch(std::move(instance), std::move(callbacks));
  bool cancelled = false;
  {
    MutexLock lock(&stream->mutex_);
    stream->rpc_id_ = rpc_id;
    cancelled = stream->cancelled_;
  }
  if (cancelled) shell.Unwatch(rpc_id);
  return stream.get();
}

WatchStream* WatchStream::Refuse(RouterShell& shell, const absl::Status& status) {
  auto stream = std::make_shared<WatchStream>(shell);
  stream->self_ = stream;
  stream->End(status);
  return stream.get();
}

void WatchStream::Notify(uint64_t view_version) {
  MutexLock lock(&mutex_);
  next_ = view_version;
  Advance();
}

void WatchStream::End(const absl::Status& status) {
  MutexLock lock(&mutex_);
  if (!end_.has_value()) end_ = rpc::ToGrpc(status);
  Advance();
}

void WatchStream::Advance() {
  if (writing_ || finished_) return;
  if (end_.has_value()) {
    finished_ = true;
    return Finish(*end_);
  }
  if (!next_.has_value()) return;
  notice_.set_view_version(*std::exchange(next_, std::nullopt));
  writing_ = true;
  StartWrite(&notice_);
}

void WatchStream::OnWriteDone(bool ok) {
  MutexLock lock(&mutex_);
  writing_ = false;
  if (!ok && !end_.has_value()) end_ = grpc::Status::CANCELLED;
  Advance();
}

void WatchStream::OnCancel() {
  uint64_t rpc_id = 0;
  {
    MutexLock lock(&mutex_);
    cancelled_ = true;
    rpc_id = rpc_id_;
    if (!end_.has_value()) end_ = grpc::Status::CANCELLED;
    Advance();
  }
  if (rpc_id != 0) shell_.Unwatch(rpc_id);
}

void WatchStream::OnDone() { self_.reset(); }

}  // namespace baton::router
