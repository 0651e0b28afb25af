#include "common/tracing/export_core.h"

#include <algorithm>

namespace baton::tracing {
namespace {

// OTLP's list of retryable codes.
bool MayPass(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

}  // namespace

AfterExport ExportCore::OnResult(const absl::Status& status, int64_t now_us, bool stopping) {
  failing_ = !status.ok();
  if (status.ok()) {
    tries_ = 0;
    pause_us_ = 0;
    return AfterExport::kDone;
  }
  pause_us_ =
      pause_us_ == 0 ? limits_.first_pause_us : std::min(2 * pause_us_, limits_.longest_pause_us);
  retry_at_us_ = now_us + pause_us_;
  if (!stopping && MayPass(status) && ++tries_ < limits_.max_tries) return AfterExport::kRetry;
  tries_ = 0;
  return AfterExport::kGiveUp;
}

ExportNews ExportCore::TakeNews() {
  if (failing_ == told_failing_) return ExportNews::kNone;
  told_failing_ = failing_;
  return failing_ ? ExportNews::kFailing : ExportNews::kWorking;
}

}  // namespace baton::tracing
