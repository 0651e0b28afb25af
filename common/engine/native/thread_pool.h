// Helpers for one computing thread: splits a loop over a fixed number of threads.
#ifndef COMMON_ENGINE_NATIVE_THREAD_POOL_H_
#define COMMON_ENGINE_NATIVE_THREAD_POOL_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

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
  // `body` must not throw, so it must not allocate either: nothing on a helper catches bad_alloc.
  void ParallelFor(int count, const std::function<void(int begin, int end)>& body);

 private:
  void Help(int index);
  void RunPart(int index, int count, const std::function<void(int, int)>& body) const;

  // Not absl::Mutex: ThreadSanitizer can't see into Debian's build of it and reports every use.
  std::mutex mutex_;
  std::condition_variable called_;
  std::condition_variable done_;
  // All guarded by mutex_.
  const std::function<void(int, int)>* body_ = nullptr;
  int count_ = 0;
  int64_t round_ = 0;
  int running_ = 0;
  bool stopping_ = false;

  std::vector<std::thread> helpers_;
};

}  // namespace baton

#endif  // COMMON_ENGINE_NATIVE_THREAD_POOL_H_
