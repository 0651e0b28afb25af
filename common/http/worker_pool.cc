#include "common/http/worker_pool.h"

#include <malloc.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

namespace baton {

WorkerPool::WorkerPool(const std::string& name, int threads)
    : large_limit_(std::max(1, threads - 1)) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this, name = name.substr(0, 15)] {
      pthread_setname_np(pthread_self(), name.c_str());
      Run();
    });
  }
}

WorkerPool::~WorkerPool() {
  std::deque<Task> dropped;  // Destroyed after the lock: tasks own requests.
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    dropped.swap(queue_);
  }
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::Submit(size_t bytes, std::function<void()> task) {
  MutexLock lock(&mutex_);
  if (stopping_) return;
  const bool large = bytes > kLargeBytes;
  if (large) ++large_queued_;
  queue_.push_back({large, std::move(task)});
}

std::deque<WorkerPool::Task>::iterator WorkerPool::Next() {
  if (large_running_ < large_limit_) return queue_.begin();
  return std::find_if(queue_.begin(), queue_.end(), [](const Task& task) { return !task.large; });
}

void WorkerPool::Run() {
  while (true) {
    Task task;
    {
      MutexLock lock(&mutex_);
      mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || Next() != queue_.end();
      });
      if (stopping_) return;
      const auto next = Next();
      task = std::move(*next);
      queue_.erase(next);
      if (task.large) --large_queued_, ++large_running_;
    }
    task.run();
    task.run = nullptr;
    if (task.large) EndLarge();
  }
}

// A parsed body of 15 MiB takes hundreds, in small pieces that the allocator would keep for this
// process although the next such body may never come. Trimming costs milliseconds, so it is done
// once for a run of large bodies.
void WorkerPool::EndLarge() {
  {
    MutexLock lock(&mutex_);
    --large_running_;
    if (large_running_ > 0 || large_queued_ > 0) return;
  }
  malloc_trim(0);
}

}  // namespace baton
