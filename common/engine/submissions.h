// One user's steps at an executor: counted, so that the user can end before the executor does.
#ifndef COMMON_ENGINE_SUBMISSIONS_H_
#define COMMON_ENGINE_SUBMISSIONS_H_

#include <functional>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "common/engine/executor.h"

namespace baton {

class Submissions {
 public:
  explicit Submissions(Executor* executor) : executor_(executor) {}  // Not owned.
  ~Submissions() { Stop(); }
  Submissions(const Submissions&) = delete;
  Submissions& operator=(const Submissions&) = delete;

  // As Executor::Submit; after Stop, `done` is told CANCELLED within the call.
  void Submit(Step step, std::function<void(StepResult)> done);

  // Takes nothing more and returns when all have ended. Not from within a `done`.
  void Stop();

 private:
  Executor* const executor_;
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  int under_way_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton

#endif  // COMMON_ENGINE_SUBMISSIONS_H_
