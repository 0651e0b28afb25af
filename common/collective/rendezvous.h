// Where the ranks of one group find one another: a state machine at rank 0, which whoever carries
// messages between the group's processes (the chain's links) feeds with what the ranks say and
// empties of what they are to hear. It opens no port and knows no address: those are in the entries
// that the ranks hand one another through it (bootstrap_store.h).
//
//   Gathering: ranks join; the first says what the others must agree with. What they set is kept.
//   Connecting: all are there; everybody hears every entry, and says when it is connected.
//   Formed: all are connected, and everybody hears OK. So no rank takes a group for formed that
//   another has given up.
//
// An epoch forms once. It ends, for all who wait and with the same words, when a rank leaves before
// it has formed, somebody contradicts, or `timeout_ms` have passed since its first rank joined. A
// higher epoch replaces it, a lower one is refused for good; so is a second process of a rank.
#ifndef COMMON_COLLECTIVE_RENDEZVOUS_H_
#define COMMON_COLLECTIVE_RENDEZVOUS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"

namespace baton {

class Rendezvous {
 public:
  // A rank's connection to this one; the caller's number, used once.
  using Caller = uint64_t;

  struct Join {
    uint64_t epoch = 0;
    int rank = 0;
    int size = 0;
    std::string member;        // The instance's name.
    uint64_t incarnation = 0;  // Of its process.
  };
  struct Entry {
    std::string key;
    std::string value;
  };
  // What a caller is to hear. After a verdict nothing follows.
  struct Message {
    Caller to = 0;
    std::optional<Entry> entry;
    std::optional<absl::Status> verdict;
  };

  // For the group of this name ("stage 1").
  Rendezvous(std::string group, int64_t timeout_ms)
      : group_(std::move(group)), timeout_us_(timeout_ms * 1000) {}

  void OnJoin(Caller caller, const Join& join, int64_t now_us);
  void OnEntry(Caller caller, const Entry& entry);
  void OnConnected(Caller caller);
  // The caller is no longer there.
  void OnGone(Caller caller);
  void Tick(int64_t now_us);
  // Ends what is under way, and refuses whoever still comes for this epoch.
  void End(const absl::Status& why);

  std::vector<Message> TakeMessages();
  // When to call Tick.
  int64_t deadline_us() const { return phase_ == Phase::kOpen ? deadline_us_ : kNeverUs; }
  bool formed() const { return phase_ == Phase::kFormed; }
  uint64_t epoch() const { return epoch_; }
  // The members' names by rank, once all have joined.
  std::vector<std::string> members() const;

 private:
  enum class Phase { kNone, kOpen, kFormed, kEnded };
  struct Seat {
    bool taken = false;
    bool connected = false;
    Caller caller = 0;
    Join join;
    std::vector<Entry> entries;
  };

  absl::Status Refusal(const Join& join) const;
  std::string Describe(const Join& join) const;
  Seat* SeatOf(Caller caller);
  bool complete() const;
  void Say(Caller to, const Entry& entry);
  void Close(Caller to, const absl::Status& verdict);
  void Share(const Seat& from, const Entry& entry);

  const std::string group_;
  const int64_t timeout_us_;
  Phase phase_ = Phase::kNone;
  uint64_t epoch_ = 0;
  int64_t deadline_us_ = kNeverUs;
  absl::Status ended_;
  std::vector<Seat> seats_;  // By rank.
  std::vector<Message> messages_;
};

}  // namespace baton

#endif  // COMMON_COLLECTIVE_RENDEZVOUS_H_
