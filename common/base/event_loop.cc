#include "common/base/event_loop.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/failpoint.h"

namespace baton {
namespace {

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
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) {
    BATON_CHECK(!OnLoopThread()) << name_ << " cannot join itself";
    thread_.join();
  }
}

bool EventLoop::Post(std::function<void()> task) {
  if (FoundFull(name_)) return false;
  MutexLock lock(&mutex_);
  if (stopping_ || mailbox_.size() >= mailbox_limit_) return false;
  mailbox_.push_back(std::move(task));
  return true;
}

bool EventLoop::PostCompletion(std::function<void()> task) {
  MutexLock lock(&mutex_);
  if (stopping_) return false;
  mailbox_.push_back(std::move(task));
  return true;
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

void EventLoop::Run() {
  pthread_setname_np(pthread_self(), name_.substr(0, 15).c_str());
  int64_t wake_us = on_wake_ ? on_wake_(NowUs()) : kNeverUs;
  std::vector<std::function<void()>> batch;
  while (true) {
    {
      MutexLock lock(&mutex_);
      const auto awake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !mailbox_.empty();
      };
      if (wake_us == kNeverUs) {
        mutex_.Await(awake);
      } else {
        mutex_.AwaitFor(std::chrono::microseconds(std::max<int64_t>(0, wake_us - NowUs())), awake);
      }
      if (mailbox_.empty() && stopping_) return;
      batch.swap(mailbox_);
    }
    for (auto& task : batch) task();
    batch.clear();
    if (on_wake_) wake_us = on_wake_(NowUs());
  }
}

}  // namespace baton
