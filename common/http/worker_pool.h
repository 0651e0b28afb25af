// Threads that handle requests with bodies, away from the I/O threads. Tasks start in the order in
// which they come, but large ones never take the last thread, so that six prompts of 15 MiB don't
// hold up a chat message.
#ifndef COMMON_HTTP_WORKER_POOL_H_
#define COMMON_HTTP_WORKER_POOL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"

namespace baton {

class WorkerPool {
 public:
  // Tasks over this size are large.
  static constexpr size_t kLargeBytes = size_t{256} * 1024;

  WorkerPool(const std::string& name, int threads);  // `threads` > 0.
  ~WorkerPool();                                     // Drops what has not begun, and joins.
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // `bytes`: of the body. The caller bounds what is queued: one task for each connection.
  void Submit(size_t bytes, std::function<void()> task);

 private:
  struct Task {
    bool large = false;
    std::function<void()> run;
  };

  void Run();
  std::deque<Task>::iterator Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLarge();

  const int large_limit_;
  Mutex mutex_;
  std::deque<Task> queue_ ABSL_GUARDED_BY(mutex_);
  int large_running_ ABSL_GUARDED_BY(mutex_) = 0;
  int large_queued_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace baton

#endif  // COMMON_HTTP_WORKER_POOL_H_
