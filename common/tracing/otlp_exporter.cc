#include "common/tracing/otlp_exporter.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"

namespace baton::tracing {
namespace {

int64_t UnixOffsetUs() {
  const int64_t unix_us = std::chrono::duration_cast<std::chrono::microseconds>(
                              std::chrono::system_clock::now().time_since_epoch())
                              .count();
  return unix_us - NowUs();
}

}  // namespace

OtlpExporter::OtlpExporter(OtlpExporterOptions options)
    : options_(std::move(options)),
      queue_(options_.limits.queue_spans, options_.limits.batch_spans),
      core_(options_.limits),
      thread_([this] { Run(); }) {}

OtlpExporter::~OtlpExporter() { Shutdown(); }

void OtlpExporter::Take(Span span) {
  switch (queue_.Push(std::move(span))) {
    case SpanQueue::Pushed::kTaken:
      return;
    case SpanQueue::Pushed::kBatchFull:
      return Wake();
    case SpanQueue::Pushed::kDropped:
      return options_.count(SpanFate::kQueueFull, 1);
  }
}

void OtlpExporter::Wake() {
  MutexLock lock(&mutex_);
  batch_full_ = true;
}

bool OtlpExporter::stopping() const {
  MutexLock lock(&mutex_);
  return stop_at_us_ != kNeverUs;
}

int64_t OtlpExporter::stop_at_us() const {
  MutexLock lock(&mutex_);
  return stop_at_us_;
}

void OtlpExporter::Sleep(int64_t until_us, bool for_batch) {
  const auto pause = std::chrono::microseconds(std::max<int64_t>(0, until_us - NowUs()));
  MutexLock lock(&mutex_);
  mutex_.AwaitFor(pause, [this, for_batch]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stop_at_us_ != kNeverUs || (for_batch && batch_full_);
  });
  if (for_batch) batch_full_ = false;
}

void OtlpExporter::Run() {
  pthread_setname_np(pthread_self(), "baton-otlp");
  int64_t looked_us = NowUs();
  while (NowUs() < stop_at_us()) {
    Sleep(core_.NextLookUs(queue_.size(), looked_us), /*for_batch=*/true);
    looked_us = NowUs();
    const bool last = stopping();
    do {
      std::vector<Span> spans;
      queue_.Take(spans);
      if (!spans.empty()) Export(spans);
    } while (queue_.size() >= (last ? 1 : options_.limits.batch_spans) && NowUs() < stop_at_us());
    if (last) break;
  }
  MutexLock lock(&mutex_);
  ended_ = true;
}

void OtlpExporter::Export(const std::vector<Span>& spans) {
  const SpanDestination::Request request = EncodeSpans(spans, options_.resource, UnixOffsetUs());
  while (true) {
    int64_t refused = 0;
    const int64_t until_us = std::min(NowUs() + options_.limits.call_timeout_us, stop_at_us());
    const absl::Status status = options_.to->Send(request, until_us, refused);
    const AfterExport after = core_.OnResult(status, NowUs(), stopping());
    const size_t failed = after == AfterExport::kGiveUp ? spans.size()
                          : after == AfterExport::kDone ? static_cast<size_t>(refused)
                                                        : 0;
    if (failed > 0) options_.count(SpanFate::kFailed, failed);
    lost_ += failed;
    Tell(status);
    if (after == AfterExport::kDone) options_.count(SpanFate::kExported, spans.size() - failed);
    if (after != AfterExport::kRetry) return;
    Sleep(core_.retry_at_us(), /*for_batch=*/false);
  }
}

void OtlpExporter::Tell(const absl::Status& status) {
  switch (core_.TakeNews()) {
    case ExportNews::kNone:
      return;
    case ExportNews::kFailing:
      failing_since_us_ = NowUs();
      LOG(kWarning) << "spans cannot be exported to " << options_.to->name() << " ("
                    << DescribeStatus(status)
                    << "); requests go on, spans are lost once the queue is full";
      return;
    case ExportNews::kWorking:
      LOG(kInfo) << "spans are exported to " << options_.to->name() << " again after "
                 << (NowUs() - failing_since_us_) / 1'000'000 << " s; " << std::exchange(lost_, 0)
                 << " were lost on the way";
      return;
  }
}

void OtlpExporter::Shutdown() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mutex_);
    stop_at_us_ = NowUs() + options_.limits.flush_us;
  }  // Unlocking wakes the thread; the wait below would not.
  {
    MutexLock lock(&mutex_);
    const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_; };
    // A call that has started before has a later deadline.
    if (!mutex_.AwaitFor(std::chrono::microseconds(options_.limits.flush_us), ended)) {
      options_.to->Cancel();
    }
  }
  thread_.join();
  std::vector<Span> left;
  while (queue_.size() > 0) queue_.Take(left);
  if (!left.empty()) options_.count(SpanFate::kFailed, left.size());
}

}  // namespace baton::tracing
