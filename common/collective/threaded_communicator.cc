#include "common/collective/threaded_communicator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/clock.h"

namespace baton {
namespace {

constexpr auto kQuietLimit = std::chrono::milliseconds(300);
constexpr int64_t kLookMs = 20;  // How often a group that forms looks whether it is given up.

// A deadline is seen late by at most this, and a group at rest costs next to nothing.
int64_t ClockPeriodUs(const CommunicatorOptions& options) {
  return std::clamp<int64_t>(options.operation_timeout_ms * 1000 / 16, 5'000, 250'000);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ThreadedCommunicator>> ThreadedCommunicator::Create(
    const GroupDescription& group, const collective::CoreOptions& options,
    std::unique_ptr<MessageTransport> transport, int64_t form_timeout_ms, BootstrapStore* store) {
  if (absl::Status status = ValidateGroup(group); !status.ok()) return status;
  std::unique_ptr<ThreadedCommunicator> communicator(
      new ThreadedCommunicator(group, options, std::move(transport)));
  communicator->Start();
  absl::Status formed = communicator->AwaitFormed(form_timeout_ms, store);
  if (!formed.ok()) return formed;
  return communicator;
}

ThreadedCommunicator::ThreadedCommunicator(const GroupDescription& group,
                                           const collective::CoreOptions& options,
                                           std::unique_ptr<MessageTransport> transport)
    : group_(group),
      transport_(std::move(transport)),
      clock_period_us_(ClockPeriodUs(options.communicator)),
      core_(group, options),
      links_(group.members.size()) {
  const size_t rooms = options.window_frames + collective::kControlFramesMax;
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == group.rank) continue;
    links_[peer].receive_rooms.assign(rooms, std::vector<std::byte>(core_.frame_bytes_max()));
    links_[peer].send_rooms.assign(rooms + 1, std::vector<std::byte>(core_.frame_bytes_max()));
  }
}

void ThreadedCommunicator::Start() {
  {
    MutexLock lock(&mutex_);
    for (int peer = 0; peer < group_.size(); ++peer) {
      for (size_t room = 0; room < links_[peer].receive_rooms.size(); ++room) {
        if (absl::Status status = Post(peer, room); !status.ok()) Lose(peer, status);
      }
    }
    Settle();
  }
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer != group_.rank) threads_.emplace_back([this, peer] { ReceiveFrom(peer); });
  }
  threads_.emplace_back([this] { WatchClock(); });
}

absl::Status ThreadedCommunicator::AwaitFormed(int64_t timeout_ms, BootstrapStore* store) {
  const auto left_within = [this](int64_t limit_ms) {
    MutexLock lock(&phase_mutex_);
    return phase_mutex_.AwaitFor(
        std::chrono::milliseconds(limit_ms),
        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(phase_mutex_) { return phase_ != Phase::kForming; });
  };
  const int64_t until_us = NowUs() + timeout_ms * 1000;
  bool left = false;
  absl::Status given_up;
  while (!left && given_up.ok() && NowUs() < until_us) {
    left = left_within(std::clamp<int64_t>((until_us - NowUs()) / 1000, 1, kLookMs));
    if (store != nullptr) given_up = store->ended();
  }
  MutexLock lock(&mutex_);
  if (!left) {
    core_.Abort(given_up.ok() ? core_.Unformed(timeout_ms) : given_up);
    Settle();
  }
  return core_.ended();
}

ThreadedCommunicator::~ThreadedCommunicator() {
  {
    MutexLock lock(&mutex_);
    core_.Leave();
    Settle();
  }
  {
    MutexLock lock(&phase_mutex_);
    phase_mutex_.AwaitFor(kQuietLimit, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(phase_mutex_) {
      return phase_ == Phase::kQuiet;
    });
    stopping_ = true;
  }
  transport_->Close();
  for (std::thread& thread : threads_) thread.join();
  transport_.reset();  // Before the rooms that it may still write into.
}

void ThreadedCommunicator::Submit(const Collective& collective, Done done) {
  MutexLock lock(&mutex_);
  core_.Submit(collective, std::move(done), NowUs());
  Settle();
}

void ThreadedCommunicator::Abort(absl::Status why) {
  MutexLock lock(&mutex_);
  core_.Abort(std::move(why));
  Settle();
}

void ThreadedCommunicator::ReceiveFrom(int peer) {
  for (;;) {
    absl::Status received = transport_->AwaitReceive(peer);
    MutexLock lock(&mutex_);
    if (!received.ok()) {
      if (!absl::IsCancelled(received)) Lose(peer, received);
      Settle();
      return;
    }
    Link& link = links_[peer];
    const size_t room = link.posted.front();
    link.posted.pop_front();
    if (core_.Offer(peer, link.receive_rooms[room], NowUs())) {
      link.kept.push_back(room);
    } else if (absl::Status status = Post(peer, room); !status.ok()) {
      Lose(peer, status);
    }
    Settle();
  }
}

void ThreadedCommunicator::WatchClock() {
  for (;;) {
    {
      MutexLock lock(&phase_mutex_);
      const bool stop = phase_mutex_.AwaitFor(
          std::chrono::microseconds(clock_period_us_),
          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(phase_mutex_) { return stopping_; });
      if (stop) return;
    }
    MutexLock lock(&mutex_);
    core_.Tick(NowUs());
    Settle();
  }
}

void ThreadedCommunicator::Settle() {
  do {
    while (SendSome()) {
    }
    PostRead();
    ShowPhase();
    Complete();
    // A completion has submitted while another thread was completing: its frames are still unsent.
  } while (SendSome());
}

bool ThreadedCommunicator::SendSome() {
  bool sent = false;
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer == group_.rank || links_[peer].broken) continue;
    const uint64_t before = links_[peer].messages_sent;
    if (absl::Status status = SendOne(peer); !status.ok()) {
      links_[peer].broken = true;
      Lose(peer, status);
    }
    sent |= links_[peer].messages_sent > before;
  }
  return sent;
}

absl::Status ThreadedCommunicator::SendOne(int peer) {
  Link& link = links_[peer];
  const size_t rooms = link.send_rooms.size();
  if (link.messages_sent - link.messages_out == rooms) {
    // There is one room more than messages that the peer may have unread, so it has read the one in
    // the oldest: no wait.
    if (absl::Status status = transport_->AwaitSent(peer); !status.ok()) return status;
    ++link.messages_out;
  }
  std::vector<std::byte>& room = link.send_rooms[link.messages_sent % rooms];
  const size_t bytes = core_.NextFrame(peer, room, NowUs());
  if (bytes == 0) return absl::OkStatus();
  ++link.messages_sent;
  return transport_->Send(peer, std::span(room).first(bytes));
}

absl::Status ThreadedCommunicator::Post(int peer, size_t room) {
  Link& link = links_[peer];
  absl::Status status = transport_->PostReceive(peer, link.receive_rooms[room]);
  if (status.ok()) link.posted.push_back(room);
  return status;
}

void ThreadedCommunicator::PostRead() {
  for (int peer = 0; peer < group_.size(); ++peer) {
    Link& link = links_[peer];
    for (size_t count = core_.TakeReleased(peer); count > 0; --count) {
      const size_t room = link.kept.front();
      link.kept.pop_front();
      if (absl::Status status = Post(peer, room); !status.ok()) Lose(peer, status);
    }
  }
}

void ThreadedCommunicator::Lose(int peer, const absl::Status& why) {
  core_.Lost(peer, why, NowUs());
}

void ThreadedCommunicator::Complete() {
  if (completing_) return;  // The thread that is completing continues, in order.
  completing_ = true;
  for (;;) {
    std::vector<collective::CollectiveCore::Completion> completions = core_.TakeCompletions();
    if (completions.empty()) break;
    mutex_.Unlock();
    for (auto& completion : completions) completion.done(std::move(completion.status));
    mutex_.Lock();
  }
  completing_ = false;
}

void ThreadedCommunicator::ShowPhase() {
  const Phase phase = core_.quiet()         ? Phase::kQuiet
                      : !core_.ended().ok() ? Phase::kEnded
                      : core_.formed()      ? Phase::kFormed
                                            : Phase::kForming;
  MutexLock lock(&phase_mutex_);
  phase_ = phase;
}

}  // namespace baton
