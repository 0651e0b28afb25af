#include "common/engine/executor.h"

#include <utility>

namespace baton {

void Submissions::Submit(Step step, std::function<void(StepResult)> done) {
  bool stopped = false;
  {
    MutexLock lock(&mutex_);
    stopped = stopped_;
    if (!stopped) ++under_way_;
  }
  if (stopped) {
    StepResult refused;
    refused.status = absl::CancelledError("no more steps are wanted");
    return done(std::move(refused));
  }
  executor_->Submit(std::move(step), [this, done = std::move(done)](StepResult result) {
    done(std::move(result));
    MutexLock lock(&mutex_);
    --under_way_;
  });
}

void Submissions::Stop() {
  MutexLock lock(&mutex_);
  stopped_ = true;
  mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return under_way_ == 0; });
}

}  // namespace baton
