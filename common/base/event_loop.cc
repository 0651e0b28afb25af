#include "common/base/event_loop.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/failpoint.h"

namespace baton {
namespace {

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();
constexpr auto kAwaitPause = std::chrono::milliseconds(10);

// The failpoint "prefill.mailbox" of the loop "baton-prefill"; its name is only made where any is
// armed.
bool FoundFull(const std::string& loop) {
  if (!internal::failpoints_armed.load(std::memory_order_relaxed)) return false;
  return !Failpoint(absl::StrCat(absl::StripPrefix(loop, "baton-"), ".mailbox")).ok();
}

}  // namespace

EventLoop::EventLoop(std::string name, size_t mailbox_limit)
    : name_(std::move(name)), mailbox_limit_(mailbox_limit) {}

EventLoop::~EventLoop() { Stop(); }

void EventLoop::Start() {
  BATON_CHECK(!thread_.joinable()) << name_ << " started twice";
  MutexLock lock(&mutex_);  // Run waits for it, so thread_id_ is set before any task.
  thread_ = std::thread([this] { Run(); });
  thread_id_ = thread_.get_id();
}

void EventLoop::Stop() {
  bool wakes = false;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wakes = MustWake();
  }
  if (wakes) internal::WakeSleepers(&wakes_);
  if (thread_.joinable()) {
    BATON_CHECK(!OnLoopThread()) << name_ << " cannot join itself";
    thread_.join();
  }
}

bool EventLoop::Post(std::function<void()> task) {
  return !FoundFull(name_) && Add(std::move(task), mailbox_limit_);
}

bool EventLoop::PostCompletion(std::function<void()> task) {
  return Add(std::move(task), kNoLimit);
}

bool EventLoop::Add(std::function<void()> task, size_t limit) {
  bool wakes = false;
  {
    MutexLock lock(&mutex_);
    if (stopping_ || mailbox_.size() >= limit) return false;
    mailbox_.push_back(std::move(task));
    wakes = MustWake();
  }
  // By now the loop may be gone: what follows uses the address alone.
  if (wakes) internal::WakeSleepers(&wakes_);
  return true;
}

bool EventLoop::RunOrPost(std::function<void()> task) {
  return !FoundFull(name_) && RunOrAdd(std::move(task), mailbox_limit_);
}

bool EventLoop::RunOrPostCompletion(std::function<void()> task) {
  return RunOrAdd(std::move(task), kNoLimit);
}

bool EventLoop::RunOrAdd(std::function<void()> task, size_t limit) {
  {
    MutexLock lock(&mutex_);
    if (stopping_ || mailbox_.size() >= limit) return false;
    if (runs_ || !mailbox_.empty()) {
      mailbox_.push_back(std::move(task));
      return true;  // Who runs, or has been woken, sees to it.
    }
    runs_ = true;
  }
  task();
  task = nullptr;  // As the loop's thread does: what it holds goes while it runs.
  Done();
  return true;
}

bool EventLoop::MustWake() {
  if (runs_ || !sleeps_until_us_.has_value()) return false;
  if (mailbox_.empty() && !stopping_ && wake_us_ >= *sleeps_until_us_) return false;
  sleeps_until_us_.reset();
  wakes_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void EventLoop::Done() {
  const int64_t wake_us = on_wake_ ? on_wake_(NowUs()) : kNeverUs;
  bool wakes = false;
  {
    MutexLock lock(&mutex_);
    runs_ = false;
    wake_us_ = wake_us;
    wakes = MustWake();
  }
  if (wakes) internal::WakeSleepers(&wakes_);
}

bool EventLoop::Await(const std::function<bool()>& done, int64_t limit_ms) {
  const int64_t until_us = NowUs() + limit_ms * 1000;
  while (true) {
    auto told = std::make_shared<std::promise<bool>>();
    std::future<bool> answer = told->get_future();
    if (Post([&done, told] { told->set_value(done()); })) {
      if (answer.get()) return true;  // What was posted runs, also while the loop stops.
    } else {
      MutexLock lock(&mutex_);
      if (stopping_) return true;
    }
    if (NowUs() >= until_us) return false;
    std::this_thread::sleep_for(kAwaitPause);
  }
}

EventLoop::Next EventLoop::Take(std::vector<std::function<void()>>& batch, Sleep& sleep) {
  MutexLock lock(&mutex_);
  sleeps_until_us_.reset();
  if (!runs_ && (!mailbox_.empty() || wake_us_ <= NowUs())) {
    runs_ = true;
    batch.swap(mailbox_);
    return Next::kRun;
  }
  if (!runs_ && stopping_) return Next::kEnd;
  // Who runs wakes this thread if there is more to do, or to sleep until.
  sleep = {wakes_.load(std::memory_order_relaxed), runs_ ? kNeverUs : wake_us_};
  sleeps_until_us_ = sleep.until_us;
  return Next::kSleep;
}

void EventLoop::Run() {
  pthread_setname_np(pthread_self(), name_.substr(0, 15).c_str());
  Done();
  std::vector<std::function<void()>> batch;
  while (true) {
    Sleep sleep;
    switch (Take(batch, sleep)) {
      case Next::kRun:
        for (auto& task : batch) task();
        batch.clear();
        Done();
        break;
      case Next::kSleep: {
        auto limit = std::chrono::microseconds::max();
        if (sleep.until_us != kNeverUs) {
          limit = std::chrono::microseconds(std::max<int64_t>(0, sleep.until_us - NowUs()));
        }
        internal::SleepWhile(&wakes_, sleep.seen, limit);
        break;
      }
      case Next::kEnd:
        return;
    }
  }
}

}  // namespace baton
