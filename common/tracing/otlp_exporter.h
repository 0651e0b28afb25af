// Exports spans in batches: a queue, a thread, one batch at a time. The thread that ends a span
// only pushes it. A slow, unreachable or faulty collector, or a full disk, loses spans but never
// delays a request.
#ifndef COMMON_TRACING_OTLP_EXPORTER_H_
#define COMMON_TRACING_OTLP_EXPORTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "common/tracing/export_core.h"
#include "common/tracing/otlp_encode.h"
#include "common/tracing/span.h"
#include "common/tracing/span_destination.h"
#include "common/tracing/span_fate.h"
#include "common/tracing/span_queue.h"

namespace baton::tracing {

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
