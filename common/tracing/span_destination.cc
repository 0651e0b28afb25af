#include "common/tracing/span_destination.h"

#include <fcntl.h>
#include <grpcpp/client_context.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "common/tracing/otlp_encode.h"
#include "proto/opentelemetry/proto/collector/trace/v1/trace_service.grpc.pb.h"

namespace baton::tracing {
namespace {

namespace service = opentelemetry::proto::collector::trace::v1;

class Collector final : public SpanDestination {
 public:
  explicit Collector(const std::string& endpoint)
      : endpoint_(endpoint), stub_(service::TraceService::NewStub(rpc::OpenChannel(endpoint))) {}

  absl::Status Send(const Request& request, int64_t until_us, int64_t& refused) override {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::microseconds(until_us - NowUs()));
    {
      MutexLock lock(&mutex_);
      call_ = &context;
    }
    service::ExportTraceServiceResponse response;
    const grpc::Status status = stub_->Export(&context, request, &response);
    {
      MutexLock lock(&mutex_);
      call_ = nullptr;
    }
    const int64_t sent = request.resource_spans(0).scope_spans(0).spans_size();
    refused = std::clamp<int64_t>(response.partial_success().rejected_spans(), 0, sent);
    return rpc::FromGrpc(status);
  }

  void Cancel() override {
    MutexLock lock(&mutex_);
    if (call_ != nullptr) call_->TryCancel();
  }

  const std::string& name() const override { return endpoint_; }

 private:
  const std::string endpoint_;
  const std::unique_ptr<service::TraceService::Stub> stub_;
  Mutex mutex_;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

class File final : public SpanDestination {
 public:
  File(const std::string& path, int64_t bytes_max) : path_(path), bytes_max_(bytes_max) {}
  ~File() override {
    if (fd_ >= 0) close(fd_);
  }

  absl::Status Send(const Request& request, int64_t /*until_us*/, int64_t& /*refused*/) override {
    BATON_RETURN_IF_ERROR(Open());
    const std::string line = OtlpJsonLine(request);
    struct stat now {};
    if (fstat(fd_, &now) != 0) return Error("cannot look at");
    if (now.st_size + static_cast<int64_t>(line.size()) > bytes_max_) {
      return absl::FailedPreconditionError(absl::StrCat(
          path_, " has ", now.st_size, " bytes; a trace file has no more than ", bytes_max_));
    }
    // A single write, so that lines of several processes stay whole. Only a full disk makes a write
    // partial; the next line then starts on a line of its own.
    const ssize_t written = write(fd_, line.data(), line.size());
    if (written == static_cast<ssize_t>(line.size())) return absl::OkStatus();
    if (written < 0) return Error("cannot write to");
    (void)!write(fd_, "\n", 1);
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": there was room for ", written, " bytes of ", line.size()));
  }

  void Cancel() override {}
  const std::string& name() const override { return path_; }

 private:
  absl::Status Open() {
    if (fd_ >= 0) return absl::OkStatus();
    // The file has no prompts, but it shows who asked for what and when, so other users can't read
    // it. A named pipe without a reader would block: with O_NONBLOCK its batches fail.
    fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0640);
    return fd_ >= 0 ? absl::OkStatus() : Error("cannot open");
  }
  absl::Status Error(const char* what) const {
    return absl::ErrnoToStatus(errno, absl::StrCat(what, " ", path_));
  }

  const std::string path_;
  const int64_t bytes_max_;
  int fd_ = -1;
};

}  // namespace

std::unique_ptr<SpanDestination> CollectorAt(const std::string& endpoint) {
  return std::make_unique<Collector>(endpoint);
}

std::unique_ptr<SpanDestination> FileAt(const std::string& path, int64_t bytes_max) {
  return std::make_unique<File>(path, bytes_max);
}

}  // namespace baton::tracing
