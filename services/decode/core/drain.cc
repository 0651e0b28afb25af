// Draining a decode service: requests with a ticket run to their end if the time suffices; those
// that still wait have lost nothing and begin elsewhere.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "services/decode/core/decode_state.h"

namespace baton::decode {

void DecodeCore::State::On(const DrainBegan& event) {
  drain_deadline_us = std::min(drain_deadline_us, event.deadline_us);
  if (!std::exchange(draining, true)) {
    drained_generation = last_generation;
    // Rejected: to let them wait on, for pages of a service that gets emptier anyway. Their time
    // would come late in the drain's, or not at all.
    for (const uint64_t attempt_id : std::vector<uint64_t>(queue.begin(), queue.end())) {
      Covered<"decode: a drain hands back">();
      ++drain_counts.handed_back_total;
      EndWith(attempt_id, EndedByDrain(absl::UnavailableError(
                              "this decode service drains, and had not begun the request")));
    }
  }
  EndDrain();
}

absl::Status DecodeCore::State::RefuseToBegin() {
  if (!draining) return absl::OkStatus();
  Covered<"decode: a draining service refuses">();
  ++drain_counts.refused_total;
  return EndedByDrain(absl::UnavailableError("this decode service drains and begins nothing new"));
}

void DecodeCore::State::EndDrain() {
  if (now_us < drain_deadline_us) return;
  while (!requests.empty()) {
    Covered<"decode: a drain ends a request">();
    ++drain_counts.time_over_total;
    EndWith(requests.begin()->first,
            Own(EndedByDrain(absl::UnavailableError(
                "this decode service left before the request was done (--drain-timeout-ms); send "
                "it again"))));
  }
}

absl::Status DecodeCore::State::CheckDrain() const {
  if (!draining) return absl::OkStatus();
  const bool began = !granted.empty() && granted.rbegin()->first > drained_generation;
  if (!queue.empty() || began) {
    return absl::InternalError("a draining decode service has begun a request");
  }
  if (now_us >= drain_deadline_us && !requests.empty()) {
    return absl::InternalError(
        absl::StrCat(requests.size(), " requests go on after the drain's deadline"));
  }
  return absl::OkStatus();
}

}  // namespace baton::decode
