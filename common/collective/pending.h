// Blocking waits for collectives, for callers with a thread to spare.
#ifndef COMMON_COLLECTIVE_PENDING_H_
#define COMMON_COLLECTIVE_PENDING_H_

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "common/collective/communicator.h"

namespace baton {

// Any number of collectives that are waited for together:
//   Pending chunks;
//   for (...) communicator.AllReduce(chunk, order, chunks.Add());
//   absl::Status status = chunks.Wait();
// One thread adds and waits. A Pending may be destroyed before the collectives are done; their
// tensors may not.
class Pending {
 public:
  // The completion of one collective; submit it once.
  Communicator::Done Add() {
    {
      MutexLock lock(&state_->mutex);
      ++state_->open;
    }
    return [state = state_](absl::Status status) {
      MutexLock lock(&state->mutex);
      --state->open;
      state->first_error.Update(std::move(status));
    };
  }

  // Returns when all added collectives are done: OK, or the first error. Bounded, since every
  // communicator bounds its collectives.
  absl::Status Wait() {
    State& state = *state_;
    MutexLock lock(&state.mutex);
    state.mutex.Await([&state]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) { return state.open == 0; });
    return std::exchange(state.first_error, absl::OkStatus());
  }

 private:
  struct State {
    Mutex mutex;
    int open ABSL_GUARDED_BY(mutex) = 0;
    absl::Status first_error ABSL_GUARDED_BY(mutex);
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace baton

#endif  // COMMON_COLLECTIVE_PENDING_H_
