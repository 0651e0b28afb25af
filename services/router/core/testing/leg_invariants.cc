// What must be true of the calls of legs after every event, for tests.
#include "absl/strings/str_cat.h"
#include "services/router/core/leg_calls.h"

namespace baton::router {

absl::Status LegCalls::CheckInvariants() const {
  for (const auto& [call_id, attempt_id] : attempt_of_call_) {
    const auto attempt = attempts_.find(attempt_id);
    if (attempt != attempts_.end() && attempt->second.call_id == call_id) continue;
    return absl::InternalError(absl::StrCat("legs: request ", call_id, " has lost its attempt"));
  }
  if (attempts_.size() != attempt_of_call_.size()) {
    return absl::InternalError("legs: an attempt is kept that no request has");
  }
  return absl::OkStatus();
}

}  // namespace baton::router
