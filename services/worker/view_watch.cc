#include "services/worker/view_watch.h"

#include <grpcpp/support/client_callback.h>

#include <memory>
#include <utility>

#include "common/base/log.h"

namespace baton::worker {

// Keeps itself alive until its end.
class ViewWatch::Call : public grpc::ClientReadReactor<v1::WatchNotice> {
 public:
  explicit Call(ViewWatch& owner) : context_(owner.tracker_), owner_(owner) {
    *request_.mutable_instance() = owner.self_;
  }

  static void Start(ViewWatch& owner) {
    auto call = std::make_shared<Call>(owner);
    call->keep_ = call;
    owner.stub_.async()->Watch(&*call->context_, &call->request_, call.get());
    call->StartRead(&call->notice_);
    call->StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    owner_.on_news_();
    StartRead(&notice_);
  }
  void OnDone(const grpc::Status& status) override {
    LOG(kDebug) << "the watch of the view ends: " << status.error_message();
    owner_.OnEnd();
    keep_.reset();  // The owner may go once the context has.
  }

  rpc::TrackedContext context_;
  ViewWatch& owner_;
  v1::WatchRequest request_;
  v1::WatchNotice notice_;
  std::shared_ptr<Call> keep_;
};

ViewWatch::ViewWatch(v1::Cluster::Stub& stub, v1::InstanceRef self, std::function<void()> on_news)
    : stub_(stub), self_(std::move(self)), on_news_(std::move(on_news)) {}

ViewWatch::~ViewWatch() {
  tracker_.CancelAll();
  tracker_.WaitIdle();
}

void ViewWatch::Keep(int64_t now_us, int64_t reopen_ms, bool registered_anew) {
  if (registered_anew) opened_us_ = 0;
  {
    MutexLock lock(&mutex_);
    if (stands_ || (opened_us_ != 0 && now_us < opened_us_ + reopen_ms * 1000)) return;
    stands_ = true;
  }
  opened_us_ = now_us;
  Call::Start(*this);
}

void ViewWatch::OnEnd() {
  {
    MutexLock lock(&mutex_);
    stands_ = false;
  }
  on_news_();
}

}  // namespace baton::worker
