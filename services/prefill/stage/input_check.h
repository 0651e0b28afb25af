// Whether a plan's input is what the previous stage sent: both stages take the checksum of all of
// it once it has arrived, while the plan is computed already, since checksums would be a third of a
// hop's time. Nothing that was computed leaves the stage before they have been found equal
// (PlanComputer), so a damaged input ends its epoch, as always, and its results are not sent.
#ifndef SERVICES_PREFILL_STAGE_INPUT_CHECK_H_
#define SERVICES_PREFILL_STAGE_INPUT_CHECK_H_

#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/sync.h"

namespace baton::prefill {

inline absl::Status DamagedInput(uint64_t plan) {
  return absl::DataLossError(absl::StrCat("activations of plan ", plan, " are damaged"));
}

// Checks one plan's input; any thread. The answer does not change once it is there.
class InputCheck {
 public:
  explicit InputCheck(uint64_t plan) : plan_(plan) {}

  // The checksums of what the previous stage has sent, and of what has arrived (called once).
  // DATA_LOSS if the other is known and differs, FAILED_PRECONDITION for a second Sent.
  absl::Status Sent(uint64_t checksum) {
    MutexLock lock(&mutex_);
    if (sent_.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat("activations of plan ", plan_, ": their checksum came twice"));
    }
    sent_ = checksum;
    return Compare();
  }
  absl::Status Arrived(uint64_t checksum) {
    MutexLock lock(&mutex_);
    arrived_ = checksum;
    return Compare();
  }

  // The answer is known otherwise, or one of the two will not come any more.
  void Settle(const absl::Status& answer) {
    MutexLock lock(&mutex_);
    if (!answer_.has_value()) answer_ = answer;
  }

  // Blocks until there is an answer: DATA_LOSS if the two differ.
  absl::Status Await() {
    MutexLock lock(&mutex_);
    mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return answer_.has_value(); });
    return *answer_;
  }

 private:
  absl::Status Compare() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!sent_.has_value() || !arrived_.has_value()) return absl::OkStatus();
    const absl::Status equal = *sent_ == *arrived_ ? absl::OkStatus() : DamagedInput(plan_);
    if (!answer_.has_value()) answer_ = equal;
    return equal;
  }

  const uint64_t plan_;
  Mutex mutex_;
  std::optional<uint64_t> sent_ ABSL_GUARDED_BY(mutex_);
  std::optional<uint64_t> arrived_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> answer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_STAGE_INPUT_CHECK_H_
