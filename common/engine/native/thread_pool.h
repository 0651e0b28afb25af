// Splits a loop over a fixed number of threads.
#ifndef COMMON_ENGINE_NATIVE_THREAD_POOL_H_
#define COMMON_ENGINE_NATIVE_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace baton {

// One thread calls a pool, and computes too. A thread that waits for another looks again for some
// microseconds, since waking one that sleeps takes longer than most loops of a decode step. Then it
// sleeps: a stage shares its machine with other processes.
class ThreadPool {
 public:
  // `threads` includes the caller's; 1 starts none.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls body(begin, end) on contiguous parts of [0, count), one per thread, and waits for all.
  // `body` must not throw and so must not allocate: nothing on the pool's threads catches
  // bad_alloc.
  void ParallelFor(int count, const std::function<void(int begin, int end)>& body);

 private:
  void Help(int index);
  void RunPart(int index, int count, const std::function<void(int, int)>& body) const;

  // Written while no helper runs, and read by helpers once they see a new round.
  const std::function<void(int, int)>* body_ = nullptr;
  int count_ = 0;
  bool stopping_ = false;

  std::atomic<uint32_t> round_ = 0;
  std::atomic<uint32_t> running_ = 0;  // Helpers that have not ended the round.

  std::vector<std::thread> helpers_;
};

}  // namespace baton

#endif  // COMMON_ENGINE_NATIVE_THREAD_POOL_H_
