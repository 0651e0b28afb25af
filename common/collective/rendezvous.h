// Where the ranks of one group find one another: a state machine at rank 0. A carrier of messages
// between the group's processes (a chain's links) passes it the ranks' messages and delivers its
// answers. It opens no port and knows no addresses: they are in the entries that the ranks exchange
// through it (bootstrap_store.h).
//
//   Gathering: ranks join. The first one defines what the others must agree with. Entries are kept.
//   Connecting: all ranks have joined. Every rank gets every entry, and reports when it is
//   connected. Formed: all ranks are connected, and every rank gets OK. So no rank considers a
//   group formed that another one has given up.
//
// An epoch forms once. It ends for all waiting ranks, with the same message, when a rank leaves
// before it has formed, when a rank contradicts the others, or `timeout_ms` after its first rank
// joined. A higher epoch replaces it. A lower epoch is refused for good, and so is a second process
// of a rank.
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
  // A connection from a rank, numbered by the carrier; each number is used once.
  using Caller = uint64_t;

  struct Join {
    uint64_t epoch = 0;
    int rank = 0;
    int size = 0;
    std::string member;        // The instance's name.
    uint64_t incarnation = 0;  // The process's.
  };
  struct Entry {
    std::string key;
    std::string value;
  };
  // A message to a caller. Nothing follows a verdict.
  struct Message {
    Caller to = 0;
    std::optional<Entry> entry;
    std::optional<absl::Status> verdict;
  };

  // `group` is the group's name ("stage 1").
  Rendezvous(std::string group, int64_t timeout_ms)
      : group_(std::move(group)), timeout_us_(timeout_ms * 1000) {}

  void OnJoin(Caller caller, const Join& join, int64_t now_us);
  void OnEntry(Caller caller, const Entry& entry);
  void OnConnected(Caller caller);
  void Tick(int64_t now_us);
  // Ends the current epoch, and refuses ranks that join it later.
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
