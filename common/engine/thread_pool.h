// Helpers for one computing thread: splits a loop over a fixed number of threads.
#ifndef COMMON_ENGINE_THREAD_POOL_H_
#define COMMON_ENGINE_THREAD_POOL_H_

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace baton {

// One thread calls a pool; it computes too. Idle helpers sleep, they don't spin: a stage shares its
// machine with others.
class ThreadPool {
 public:
  // `threads` in all, the caller's included; 1 starts none.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls body(begin, end) on contiguous parts of [0, count), one per thread, and waits for all.
  // `body` must not throw.
  void ParallelFor(int count, const std::function<void(int begin, int end)>& body);

 private:
  void Help(int index);
  void RunPart(int index, int count, const std::function<void(int, int)>& body) const;

  absl::Mutex mutex_;
  const std::function<void(int, int)>* body_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t round_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> helpers_;
};

}  // namespace baton

#endif  // COMMON_ENGINE_THREAD_POOL_H_
