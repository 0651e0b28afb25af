#include "common/engine/native/thread_pool.h"

namespace baton {

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) helpers_.emplace_back([this, i] { Help(i); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  called_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::ParallelFor(int count, const std::function<void(int, int)>& body) {
  if (helpers_.empty() || count <= 1) {
    if (count > 0) body(0, count);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    body_ = &body;
    count_ = count;
    running_ = static_cast<int>(helpers_.size());
    ++round_;
  }
  called_.notify_all();
  RunPart(0, count, body);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return running_ == 0; });
}

void ThreadPool::Help(int index) {
  int64_t seen = 0;
  while (true) {
    const std::function<void(int, int)>* body = nullptr;
    int count = 0;
    {
      std::unique_lock lock(mutex_);
      called_.wait(lock, [&] { return stopping_ || round_ != seen; });
      if (stopping_) return;
      seen = round_;
      body = body_;
      count = count_;
    }
    RunPart(index, count, *body);
    const std::lock_guard lock(mutex_);
    if (--running_ == 0) done_.notify_one();
  }
}

void ThreadPool::RunPart(int index, int count, const std::function<void(int, int)>& body) const {
  const auto boundary = [&](int64_t part) { return static_cast<int>(part * count / threads()); };
  const int begin = boundary(index);
  const int end = boundary(index + 1);
  if (begin < end) body(begin, end);
}

}  // namespace baton
