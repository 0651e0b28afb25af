// What the data plane's tests and their second process share: messages whose content follows from
// their header, cut into runs at random, and a handler that checks every byte.
#ifndef COMMON_TRANSPORT_TESTING_TEST_MESSAGES_H_
#define COMMON_TRANSPORT_TESTING_TEST_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "common/transport/data_plane.h"

namespace baton::testing {

// The header of a test message.
struct TestHeader {
  uint64_t id = 0;
  uint64_t payload_bytes = 0;
  uint32_t receive_runs = 1;  // The receiver cuts its buffer into so many.
  uint32_t refuse = 0;        // 1: the receiver must refuse; 2: it answers runs that don't sum up.
};

// The payload of message `id`.
std::vector<std::byte> Pattern(uint64_t id, size_t bytes);

// `bytes` cut into `count` runs at places drawn from `seed`; empty ones are possible.
std::vector<std::span<std::byte>> Cut(std::span<std::byte> bytes, uint32_t count, uint64_t seed);

// A message with its content; keep it until on_sent.
struct TestMessage {
  TestMessage(const TestHeader& header, uint32_t send_runs);
  // Gathers from `content`, which must live until `on_sent`.
  Outgoing ToOutgoing(std::function<void(const absl::Status&)> on_sent) const;

  TestHeader header;
  uint32_t send_runs;
  mutable std::vector<std::byte> content;  // Cut() is for both directions.
};

// Accepts test messages of up to 64 MiB and checks them.
class Inbox : public MessageHandler {
 public:
  struct Arrival {
    TestHeader header;
    absl::Status status;
    bool intact = false;  // Payload and announced size as they should be.
  };

  std::optional<Placement> OnHeader(std::span<const std::byte> header,
                                    size_t payload_bytes) override;
  void OnPlaced(uint64_t receipt, const absl::Status& status) override;

  // Called in OnHeader with each accepted message, on the data thread. Set before messages come.
  void SetHeaderHook(std::function<void(const TestHeader&)> hook) { hook_ = std::move(hook); }
  // Called after each OnPlaced, on the data thread.
  void SetArrivalHook(std::function<void(const Arrival&)> hook) { arrival_hook_ = std::move(hook); }

  // Blocks until `count` messages have ended, then returns all, in that order.
  std::vector<Arrival> WaitFor(size_t count);
  // Blocks until message `id` has ended.
  Arrival WaitForId(uint64_t id);
  size_t refused() const;

 private:
  struct Pending {
    TestHeader header;
    std::vector<std::byte> buffer;
  };

  std::function<void(const TestHeader&)> hook_;
  std::function<void(const Arrival&)> arrival_hook_;
  std::map<uint64_t, Pending> pending_;  // Data thread.
  uint64_t last_receipt_ = 0;            // Data thread.
  mutable Mutex mutex_;
  std::vector<Arrival> arrivals_ ABSL_GUARDED_BY(mutex_);
  size_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Counts on_sent calls and keeps their statuses.
class Outbox {
 public:
  // An on_sent that records under `index`; calls after the first are counted in duplicates().
  std::function<void(const absl::Status&)> Expect();
  // Blocks until every expected call has come.
  std::vector<absl::Status> WaitForAll();
  size_t duplicates() const;

 private:
  mutable Mutex mutex_;
  std::vector<int> calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Status> statuses_ ABSL_GUARDED_BY(mutex_);
  size_t done_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The defaults, with pulls if this run of the test is about them (BATON_TEST_PULL).
DataPlaneOptions TestOptions();

std::string ToHex(std::string_view bytes);
std::string FromHex(std::string_view hex);

}  // namespace baton::testing

#endif  // COMMON_TRANSPORT_TESTING_TEST_MESSAGES_H_
