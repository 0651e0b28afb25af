#include "common/base/drain_status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

constexpr char kDrainPayload[] = "baton.dev/drain";  // Milliseconds, in decimal.

}  // namespace

absl::Status EndedByDrain(absl::Status status, int64_t retry_after_ms) {
  if (!status.ok()) status.SetPayload(kDrainPayload, absl::Cord(absl::StrCat(retry_after_ms)));
  return status;
}

bool IsEndedByDrain(const absl::Status& status) { return RetryAfterMsOf(status) > 0; }

int64_t RetryAfterMsOf(const absl::Status& status) {
  int64_t retry_after_ms = 0;
  const auto payload = status.GetPayload(kDrainPayload);
  const bool read = payload.has_value() && absl::SimpleAtoi(std::string(*payload), &retry_after_ms);
  return read ? retry_after_ms : 0;
}

}  // namespace baton
