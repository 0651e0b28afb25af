// Whether a plan's input is what the previous stage sent. Its checksums are looked at on a thread
// of their own, while the plan is computed already: of a hop through a chain they would be a third.
// Nothing that was computed leaves the stage before they have held (PlanComputer), so a damaged
// input costs its epoch, as ever, and reaches nobody.
#ifndef SERVICES_PREFILL_STAGE_INPUT_CHECKS_H_
#define SERVICES_PREFILL_STAGE_INPUT_CHECKS_H_

#include <cstddef>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"

namespace baton::prefill {

// Of one plan; any thread.
class InputChecks {
 public:
  explicit InputChecks(size_t pieces) : left_(pieces) {}

  // A piece has been looked at; called once for each.
  void Checked(const absl::Status& status) {
    MutexLock lock(&mutex_);
    --left_;
    if (status_.ok()) status_ = status;
  }

  // Blocks until that is so for all pieces. The first that did not hold.
  absl::Status Await() {
    MutexLock lock(&mutex_);
    mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return left_ == 0; });
    return status_;
  }

 private:
  Mutex mutex_;
  size_t left_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_STAGE_INPUT_CHECKS_H_
