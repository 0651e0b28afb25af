#include "common/engine/native/thread_pool.h"

#include <chrono>

namespace baton {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kLooks{50};
// A look that takes longer has let others run: the processors are busy, and a thread that sleeps
// is back sooner than one that gives way. So many waits do without looks then.
constexpr std::chrono::microseconds kGaveWay{100};
constexpr int kWaitsAsleep = 200;

// Returns what `value` is once it is not `old`.
uint32_t AwaitChange(const std::atomic<uint32_t>& value, uint32_t old) {
  thread_local int asleep = 0;
  if (asleep > 0) --asleep;
  const auto begin = Clock::now();
  for (auto looked = begin; asleep == 0 && looked - begin < kLooks;) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    std::this_thread::yield();
    const auto again = Clock::now();
    if (again - looked > kGaveWay) asleep = kWaitsAsleep;
    looked = again;
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) helpers_.emplace_back([this, i] { Help(i); });
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::ParallelFor(int count, const std::function<void(int, int)>& body) {
  if (helpers_.empty() || count <= 1) {
    if (count > 0) body(0, count);
    return;
  }
  body_ = &body;
  count_ = count;
  running_.store(static_cast<uint32_t>(helpers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  RunPart(0, count, body);
  uint32_t running = running_.load(std::memory_order_acquire);
  while (running != 0) running = AwaitChange(running_, running);
}

void ThreadPool::Help(int index) {
  uint32_t seen = 0;
  while (true) {
    seen = AwaitChange(round_, seen);
    if (stopping_) return;
    RunPart(index, count_, *body_);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

void ThreadPool::RunPart(int index, int count, const std::function<void(int, int)>& body) const {
  const auto boundary = [&](int64_t part) { return static_cast<int>(part * count / threads()); };
  const int begin = boundary(index);
  const int end = boundary(index + 1);
  if (begin < end) body(begin, end);
}

}  // namespace baton
