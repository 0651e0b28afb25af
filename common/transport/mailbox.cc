#include "common/transport/mailbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "common/base/check.h"
#include "common/base/sync.h"

namespace baton {

Mailbox::Mailbox(size_t limit) : limit_(limit), event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Mailbox::~Mailbox() {
  if (event_fd_ >= 0) close(event_fd_);
}

bool Mailbox::Push(std::function<void()>& task) {
  MutexLock lock(&mutex_);
  if (closed_ || tasks_.size() >= limit_) return false;
  PushLocked(std::move(task));
  return true;
}

bool Mailbox::PushControl(std::function<void()> task) {
  MutexLock lock(&mutex_);
  if (closed_) return false;
  PushLocked(std::move(task));
  return true;
}

void Mailbox::PushLocked(std::function<void()> task) {
  tasks_.push_back(std::move(task));
  // Only the first closure of a batch needs a system call: Take empties vector and eventfd
  // together.
  if (tasks_.size() == 1) {
    const uint64_t one = 1;
    BATON_CHECK(write(event_fd_, &one, sizeof(one)) == sizeof(one)) << "eventfd write";
  }
}

std::vector<std::function<void()>> Mailbox::Take() {
  MutexLock lock(&mutex_);
  return TakeLocked();
}

std::vector<std::function<void()>> Mailbox::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  return TakeLocked();
}

std::vector<std::function<void()>> Mailbox::TakeLocked() {
  if (tasks_.empty()) return {};
  uint64_t count = 0;
  BATON_CHECK(read(event_fd_, &count, sizeof(count)) == sizeof(count)) << "eventfd read";
  return std::exchange(tasks_, {});
}

}  // namespace baton
