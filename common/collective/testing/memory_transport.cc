#include "common/collective/testing/memory_transport.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/check.h"
#include "common/base/sync.h"

namespace baton::testing {
namespace {

struct Lane {
  Mutex mutex;
  std::deque<std::vector<std::byte>> messages ABSL_GUARDED_BY(mutex);
  bool sender_closed ABSL_GUARDED_BY(mutex) = false;
  bool receiver_closed ABSL_GUARDED_BY(mutex) = false;
};

// [from][to]
using Lanes = std::vector<std::vector<std::unique_ptr<Lane>>>;

class MemoryTransport final : public MessageTransport {
 public:
  MemoryTransport(int rank, std::shared_ptr<Lanes> lanes)
      : rank_(rank), lanes_(std::move(lanes)), rooms_(lanes_->size()) {}
  ~MemoryTransport() override { Close(); }

  absl::Status PostReceive(int peer, std::span<std::byte> room) override {
    MutexLock lock(&mutex_);
    rooms_[peer].push_back(room);
    return absl::OkStatus();
  }

  absl::Status AwaitReceive(int peer) override {
    Lane& lane = *(*lanes_)[peer][rank_];
    MutexLock lock(&lane.mutex);
    lane.mutex.Await([&lane]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane.mutex) {
      return !lane.messages.empty() || lane.sender_closed || lane.receiver_closed;
    });
    if (lane.receiver_closed) return absl::CancelledError("closed");
    if (lane.messages.empty()) return absl::UnavailableError("connection closed by peer");
    MutexLock rooms_lock(&mutex_);
    BATON_CHECK(!rooms_[peer].empty()) << "more than there is room for from " << peer;
    const std::span<std::byte> room = rooms_[peer].front();
    rooms_[peer].pop_front();
    BATON_CHECK(lane.messages.front().size() <= room.size());
    std::copy(lane.messages.front().begin(), lane.messages.front().end(), room.begin());
    lane.messages.pop_front();
    return absl::OkStatus();
  }

  absl::Status Send(int peer, std::span<const std::byte> message) override {
    Lane& lane = *(*lanes_)[rank_][peer];
    MutexLock lock(&lane.mutex);
    if (lane.receiver_closed) return absl::UnavailableError("connection reset by peer");
    lane.messages.emplace_back(message.begin(), message.end());
    return absl::OkStatus();
  }

  absl::Status AwaitSent(int) override { return absl::OkStatus(); }

  void Close() override {
    for (size_t peer = 0; peer < lanes_->size(); ++peer) {
      Lane& from_me = *(*lanes_)[rank_][peer];
      {
        MutexLock lock(&from_me.mutex);
        from_me.sender_closed = true;
      }
      Lane& to_me = *(*lanes_)[peer][rank_];
      MutexLock lock(&to_me.mutex);
      to_me.receiver_closed = true;
    }
  }

 private:
  const int rank_;
  const std::shared_ptr<Lanes> lanes_;
  Mutex mutex_;
  std::vector<std::deque<std::span<std::byte>>> rooms_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::vector<std::unique_ptr<MessageTransport>> MakeMemoryTransports(int size) {
  auto lanes = std::make_shared<Lanes>(static_cast<size_t>(size));
  for (auto& row : *lanes) {
    for (int to = 0; to < size; ++to) row.push_back(std::make_unique<Lane>());
  }
  std::vector<std::unique_ptr<MessageTransport>> transports;
  transports.reserve(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    transports.push_back(std::make_unique<MemoryTransport>(rank, lanes));
  }
  return transports;
}

}  // namespace baton::testing
