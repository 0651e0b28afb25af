// The receiver's side of pulls: reads offered payloads out of the memory of other processes of this
// host, a slice at a time, so that the data thread comes to its other work in between.
#ifndef COMMON_TRANSPORT_PULLER_H_
#define COMMON_TRANSPORT_PULLER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/transport/pull_wire.h"

namespace baton {

class MessageHandler;

// Reads `to.size()` bytes at `address` of a process; false if not all of it can be read: the
// process is gone, has nothing there, or must not be read by this one. (Rejected: UCX's own use of
// the same call, CMA, README "Pulls".)
bool ReadProcess(uint64_t process, uint64_t address, std::span<std::byte> to);

// Data thread only.
class Puller {
 public:
  // An accepted offer.
  struct Pull {
    PullOffer offer;  // `address` moves on with what has been read.
    uint64_t bytes = 0;
    std::vector<std::span<std::byte>> runs;  // Where the payload goes.
    MessageHandler* handler = nullptr;       // Null: unregistered since.
    uint64_t receipt = 0;
  };
  // An answer to the process with that source.
  struct Answer {
    uint64_t source = 0;
    PullEnd end;
  };

  // `on_end` is called once for each pull, within Advance, RemoveSource or Abandon.
  explicit Puller(std::function<void(const Pull&, const absl::Status&)> on_end)
      : on_end_(std::move(on_end)) {}

  // Whether the greeting_sender's memory can be read, and is the greeting_sender's: then it is
  // `source` from now on.
  bool AddSource(uint64_t source, const GreetingSender& greeting);
  // The process is lost. Its pulls end UNAVAILABLE.
  void RemoveSource(uint64_t source);
  bool HasSource(uint64_t source) const { return sources_.contains(source); }

  // Whether the payload's first byte can be read: memory of a device, mapped into a process, can't.
  bool Readable(const PullOffer& offer) const;
  void Add(Pull pull) { pulls_.push_back({std::move(pull), 0, 0}); }
  // The payload of the offer is not wanted, or not readable.
  void Decline(const PullOffer& offer, PullOutcome outcome) { AnswerFor(offer, outcome); }
  void Unregister(const MessageHandler* handler);

  // Reads the next slice, if there is anything to read.
  bool Advance();
  bool HasPending() const { return !pulls_.empty(); }
  std::vector<Answer> TakeAnswers() { return std::exchange(answers_, {}); }

  // Ends all pulls with `why`.
  void Abandon(const absl::Status& why);

 private:
  struct Pending {
    Pull pull;
    size_t run;     // The one that is being filled,
    size_t offset;  // so far.
  };
  static bool ReadSlice(Pending& pending, uint64_t process);
  bool StillOffered(const PullOffer& offer) const;
  void AnswerFor(const PullOffer& offer, PullOutcome outcome);
  void EndFront(const absl::Status& status);

  const std::function<void(const Pull&, const absl::Status&)> on_end_;
  std::unordered_map<uint64_t, GreetingSender> sources_;
  std::deque<Pending> pulls_;  // Read in their order.
  std::vector<Answer> answers_;
};

}  // namespace baton

#endif  // COMMON_TRANSPORT_PULLER_H_
