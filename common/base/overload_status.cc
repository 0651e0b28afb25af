#include "common/base/overload_status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/drain_status.h"

namespace baton {
namespace {

constexpr char kOverloadPayload[] = "baton.dev/overload";  // Milliseconds, in decimal.

int64_t HintMsOf(const absl::Status& status) {
  int64_t retry_after_ms = 0;
  const auto payload = status.GetPayload(kOverloadPayload);
  const bool read = payload.has_value() && absl::SimpleAtoi(std::string(*payload), &retry_after_ms);
  return read ? retry_after_ms : 0;
}

}  // namespace

absl::Status Overloaded(absl::Status status, int64_t retry_after_ms) {
  if (!status.ok()) status.SetPayload(kOverloadPayload, absl::Cord(absl::StrCat(retry_after_ms)));
  return status;
}

bool IsOverloaded(const absl::Status& status) { return HintMsOf(status) > 0; }

int64_t RetryHintMsOf(const absl::Status& status) {
  const int64_t overload_ms = HintMsOf(status);
  return overload_ms > 0 ? overload_ms : RetryAfterMsOf(status);
}

}  // namespace baton
