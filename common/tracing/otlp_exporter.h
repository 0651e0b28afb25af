// Exports spans in batches: a queue, a thread, one batch at a time. The thread that ends a span
// only pushes it. A slow, unreachable or faulty collector, or a full disk, loses spans but never
// delays a request.
#ifndef COMMON_TRACING_OTLP_EXPORTER_H_
#define COMMON_TRACING_OTLP_EXPORTER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "common/tracing/export_core.h"
#include "common/tracing/otlp_encode.h"
#include "common/tracing/span.h"
#include "common/tracing/span_destination.h"

namespace baton::tracing {

// A bounded queue between the threads that end spans and the exporter's thread; pushing never
// waits. If the exporter falls behind, the newest spans are dropped and counted: the older ones
// show how the problem started.

// Thread-safe. The lock is held only to move spans.
class SpanQueue {
 public:
  // The outcome of a push.
  enum class Pushed { kTaken, kBatchFull, kDropped };

  // Holds `limit` spans; every `batch`-th push reports that a batch is full.
  SpanQueue(size_t limit, size_t batch) : limit_(limit), batch_(batch) {}

  Pushed Push(Span span) {
    MutexLock lock(&mutex_);
    if (spans_.size() >= limit_) return Pushed::kDropped;
    spans_.push_back(std::move(span));
    return spans_.size() % batch_ == 0 ? Pushed::kBatchFull : Pushed::kTaken;
  }

  // Appends up to a batch of the oldest to `out`.
  void Take(std::vector<Span>& out) {
    MutexLock lock(&mutex_);
    const auto end = spans_.begin() + static_cast<std::ptrdiff_t>(std::min(batch_, spans_.size()));
    std::move(spans_.begin(), end, std::back_inserter(out));
    spans_.erase(spans_.begin(), end);
  }

  size_t size() const {
    MutexLock lock(&mutex_);
    return spans_.size();
  }

 private:
  const size_t limit_;
  const size_t batch_;
  mutable Mutex mutex_;
  std::deque<Span> spans_ ABSL_GUARDED_BY(mutex_);
};

struct OtlpExporterOptions {
  std::unique_ptr<SpanDestination> to;
  ResourceAttributes resource;
  ExportLimits limits;
  CountSpans count = [](SpanFate, size_t) {};
};

class OtlpExporter {
 public:
  explicit OtlpExporter(OtlpExporterOptions options);
  ~OtlpExporter();  // Calls Shutdown.
  OtlpExporter(const OtlpExporter&) = delete;
  OtlpExporter& operator=(const OtlpExporter&) = delete;

  // Any thread; never waits. No call may follow the destructor.
  void Take(Span span);

  // Sends the queued spans within `limits.flush_us` and ends the thread; spans that are left count
  // as failed. Idempotent; one thread at a time.
  void Shutdown();

 private:
  void Wake();
  bool stopping() const;
  int64_t stop_at_us() const;  // kNeverUs while not stopping.

  // These run on the exporter's thread.
  void Run();
  // Sleeps until `until_us`, a full batch (if `for_batch`) or shutdown.
  void Sleep(int64_t until_us, bool for_batch);
  // Returns when the batch is sent or given up.
  void Export(const std::vector<Span>& spans);
  void Tell(const absl::Status& status);

  const OtlpExporterOptions options_;
  SpanQueue queue_;

  mutable Mutex mutex_;  // Pushing threads take it once per batch.
  bool batch_full_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t stop_at_us_ ABSL_GUARDED_BY(mutex_) = kNeverUs;

  // Used by the exporter's thread alone.
  ExportCore core_;
  int64_t failing_since_us_ = 0;
  size_t lost_ = 0;  // Spans lost since then.
  std::thread thread_;
};

}  // namespace baton::tracing

#endif  // COMMON_TRACING_OTLP_EXPORTER_H_
