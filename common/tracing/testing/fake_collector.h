// An OTLP collector in this process that can fail, dawdle and come back.
#ifndef COMMON_TRACING_TESTING_FAKE_COLLECTOR_H_
#define COMMON_TRACING_TESTING_FAKE_COLLECTOR_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "proto/opentelemetry/proto/collector/trace/v1/trace_service.grpc.pb.h"

namespace baton::tracing {

class FakeCollector final
    : public opentelemetry::proto::collector::trace::v1::TraceService::Service {
 public:
  using Request = opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest;
  using Response = opentelemetry::proto::collector::trace::v1::ExportTraceServiceResponse;

  ~FakeCollector() override { Stop(); }

  // Listens on `port`, or on any free one; returns it (0: it could not).
  int Start(int port = 0) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    return server_ == nullptr ? 0 : port;
  }
  void Stop() {
    Release();
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_ = nullptr;
  }

  // What the next calls are answered with; OK again with an empty function.
  void SetAnswer(std::function<grpc::Status(const Request&, Response&)> answer) {
    MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }
  // Calls are answered only after Release.
  void Hold() {
    MutexLock lock(&mutex_);
    held_ = true;
  }
  void Release() {
    MutexLock lock(&mutex_);
    held_ = false;
  }

  // Waits until so many spans were taken in all; their number after a long while otherwise.
  size_t WaitForSpans(size_t count) {
    MutexLock lock(&mutex_);
    mutex_.AwaitFor(kPatience, [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return names_.size() >= count;
    });
    return names_.size();
  }
  size_t WaitForCalls(size_t count) {
    MutexLock lock(&mutex_);
    mutex_.AwaitFor(kPatience, [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return calls_ >= count;
    });
    return calls_;
  }
  std::vector<std::string> names() const {
    MutexLock lock(&mutex_);
    return names_;
  }
  std::vector<Request> requests() const {
    MutexLock lock(&mutex_);
    return requests_;
  }

 private:
  static constexpr auto kPatience = std::chrono::seconds(30);

  grpc::Status Export(grpc::ServerContext*, const Request* request, Response* response) override {
    {
      MutexLock lock(&mutex_);
      ++calls_;  // Waiting tests see it now, not when the call ends.
    }
    MutexLock lock(&mutex_);
    mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !held_; });
    const grpc::Status status = answer_ ? answer_(*request, *response) : grpc::Status::OK;
    if (!status.ok()) return status;
    requests_.push_back(*request);
    for (const auto& resource : request->resource_spans()) {
      for (const auto& scope : resource.scope_spans()) {
        for (const auto& span : scope.spans()) names_.push_back(span.name());
      }
    }
    return status;
  }

  std::unique_ptr<grpc::Server> server_;
  mutable Mutex mutex_;
  std::function<grpc::Status(const Request&, Response&)> answer_ ABSL_GUARDED_BY(mutex_);
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  size_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mutex_);
  std::vector<Request> requests_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::tracing

#endif  // COMMON_TRACING_TESTING_FAKE_COLLECTOR_H_
