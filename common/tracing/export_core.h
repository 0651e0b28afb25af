// The exporter's decisions: when a batch is sent, what to do when it fails, and when to log it.
// Event in, decision out; time handed in.
//
// A batch is sent again while its error may pass, after a pause that doubles each time, and is
// given up after a few tries: the queue behind it is bounded, and newer spans are more useful.
#ifndef COMMON_TRACING_EXPORT_CORE_H_
#define COMMON_TRACING_EXPORT_CORE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/base/clock.h"

namespace baton::tracing {

struct ExportLimits {
  size_t queue_spans = 8192;
  size_t batch_spans = 512;
  int64_t interval_us = 1'000'000;  // The longest time that a span waits for a full batch.
  int64_t call_timeout_us = 10'000'000;
  int64_t first_pause_us = 500'000;  // After a first failure; doubles with each further one.
  int64_t longest_pause_us = 8'000'000;
  int max_tries = 5;             // For one batch.
  int64_t flush_us = 2'000'000;  // At shutdown, for all spans that are left.
};

enum class AfterExport {
  kDone,    // The collector has it.
  kRetry,   // Send the same batch again at `retry_at_us()`.
  kGiveUp,  // It is lost.
};

// What to log now.
enum class ExportNews { kNone, kFailing, kWorking };

class ExportCore {
 public:
  explicit ExportCore(const ExportLimits& limits) : limits_(limits) {}

  // When to check the queue again: at once if it holds a batch, otherwise at the end of the
  // interval.
  int64_t NextLookUs(size_t queued, int64_t looked_us) const {
    return queued >= limits_.batch_spans ? looked_us : looked_us + limits_.interval_us;
  }

  // The result of sending a batch. While stopping, no batch is sent again.
  AfterExport OnResult(const absl::Status& status, int64_t now_us, bool stopping);

  int64_t retry_at_us() const { return retry_at_us_; }

  // Once for each change between working and failing, except for the first success.
  ExportNews TakeNews();

 private:
  const ExportLimits limits_;
  int tries_ = 0;  // For the current batch.
  int64_t pause_us_ = 0;
  int64_t retry_at_us_ = kNeverUs;
  bool failing_ = false;
  bool told_failing_ = false;
};

}  // namespace baton::tracing

#endif  // COMMON_TRACING_EXPORT_CORE_H_
