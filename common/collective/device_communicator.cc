#include "common/collective/device_communicator.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/device/queue.h"

namespace baton {
namespace {

// How long the thread sleeps between looks while something is under way: a part of what a small
// all-reduce between GPUs takes.
constexpr std::chrono::microseconds kBetweenLooks{5};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceCommunicator>> DeviceCommunicator::Create(
    const GroupDescription& group, const CommunicatorOptions& options,
    std::unique_ptr<CollectiveStream> stream) {
  BATON_RETURN_IF_ERROR(ValidateGroup(group));
  return std::unique_ptr<DeviceCommunicator>(
      new DeviceCommunicator(group, options, std::move(stream)));
}

DeviceCommunicator::DeviceCommunicator(const GroupDescription& group,
                                       const CommunicatorOptions& options,
                                       std::unique_ptr<CollectiveStream> stream)
    : group_(group),
      options_(options),
      device_(stream->device()),
      stream_(std::move(stream)),
      thread_([this] { Run(); }) {}

DeviceCommunicator::~DeviceCommunicator() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void DeviceCommunicator::Submit(const Collective& collective, Done done) {
  absl::Status refused;
  {
    MutexLock lock(&mutex_);
    refused = Take(collective, done);
  }
  if (!refused.ok()) done(refused);
}

absl::Status DeviceCommunicator::Take(const Collective& collective, Done& done) {
  if (!ended_.ok()) return ended_;
  BATON_RETURN_IF_ERROR(ValidateCollective(group_, collective, device_));
  if (pending_ >= options_.pending_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat(pending_, " collectives of ", group_.name, " are pending"));
  }
  BATON_ASSIGN_OR_RETURN(CollectiveStream::Point point, stream_->Mark());
  ++pending_;
  submitted_.push_back({collective, std::move(point), std::move(done), ++submissions_});
  return absl::OkStatus();
}

void DeviceCommunicator::Abort(absl::Status why) {
  MutexLock lock(&mutex_);
  ended_.Update(std::move(why));
  if (std::this_thread::get_id() == thread_.get_id()) return;
  mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return pending_ == 0; });
}

void DeviceCommunicator::Run() {
  pthread_setname_np(pthread_self(), QueueThreadName(Queue::kCommunication));
  bool aborted = false;
  for (;;) {
    absl::Status ended = aborted ? absl::OkStatus() : Advance();
    {
      MutexLock lock(&mutex_);
      ended_.Update(std::move(ended));
      if (stopping_ && !(begun_.empty() && submitted_.empty())) {
        ended_.Update(absl::CancelledError(
            absl::StrCat(group_.Describe(group_.rank), " has left epoch ", group_.epoch)));
      }
      ended = ended_;
      if (ended.ok() && begun_.empty()) {
        if (stopping_) return;
        mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return stopping_ || !ended_.ok() || !submitted_.empty();
        });
      } else if (aborted) {
        if (stopping_) return;
        mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; });
      }
    }
    if (ended.ok()) {
      if (!begun_.empty()) std::this_thread::sleep_for(kBetweenLooks);
    } else if (!std::exchange(aborted, true)) {
      stream_->Abort();
      FailAll();
    }
  }
}

absl::Status DeviceCommunicator::Advance() {
  BATON_RETURN_IF_ERROR(BeginSubmitted());
  BATON_RETURN_IF_ERROR(CompleteDone());
  return CheckDeadline();
}

absl::Status DeviceCommunicator::BeginSubmitted() {
  std::deque<Submitted> fresh;
  {
    MutexLock lock(&mutex_);
    if (!ended_.ok()) return ended_;
    fresh.swap(submitted_);
  }
  absl::Status begun;
  for (Submitted& next : fresh) {
    if (begun_.empty()) first_since_us_ = NowUs();
    if (begun.ok()) begun = stream_->Begin(next.collective, next.point);
    begun_.push_back(std::move(next));  // One that has not begun fails with the others.
  }
  return begun;
}

absl::Status DeviceCommunicator::CompleteDone() {
  while (!begun_.empty()) {
    BATON_ASSIGN_OR_RETURN(const bool done, stream_->OldestDone());
    if (!done) break;
    Submitted oldest = std::move(begun_.front());
    begun_.pop_front();
    first_since_us_ = NowUs();
    Finish(std::move(oldest), absl::OkStatus());
  }
  return absl::OkStatus();
}

absl::Status DeviceCommunicator::CheckDeadline() const {
  if (begun_.empty()) return absl::OkStatus();
  if (NowUs() - first_since_us_ < options_.operation_timeout_ms * 1000) return absl::OkStatus();
  const Submitted& oldest = begun_.front();
  return absl::DeadlineExceededError(
      absl::StrCat(CollectiveName(oldest.collective.kind), " ", oldest.number, " of ", group_.name,
                   ", epoch ", group_.epoch, ", was not done within ",
                   options_.operation_timeout_ms, " ms at ", group_.Describe(group_.rank)));
}

void DeviceCommunicator::FailAll() {
  absl::Status why;
  {
    MutexLock lock(&mutex_);
    why = ended_;  // From here on nothing is taken.
    while (!submitted_.empty()) {
      begun_.push_back(std::move(submitted_.front()));
      submitted_.pop_front();
    }
  }
  while (!begun_.empty()) {
    Submitted oldest = std::move(begun_.front());
    begun_.pop_front();
    Finish(std::move(oldest), why);
  }
}

void DeviceCommunicator::Finish(Submitted submitted, const absl::Status& status) {
  submitted.done(status);
  submitted.done = nullptr;  // Released before the caller can see that the collective has ended.
  MutexLock lock(&mutex_);
  --pending_;
}

}  // namespace baton
