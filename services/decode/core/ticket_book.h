// Who asked for a ticket, and who reads the text: a request's two callers, in one account. Its
// stream opens when the router has the ticket; what is drawn before is kept for it, and so is the
// end. A router that opens none has died with the ticket, which nothing else would show before the
// request's deadline, so a stream that is not there within its lease ends the request.
//
// Pure; the shell (decode_shell.h) speaks to the callers.
#ifndef SERVICES_DECODE_CORE_TICKET_BOOK_H_
#define SERVICES_DECODE_CORE_TICKET_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/types/sampled_token.h"
#include "common/types/stop_rule.h"

namespace baton::decode {

class TicketBook {
 public:
  using Outcome = absl::StatusOr<FinishReason>;
  // What its stream is owed when it opens.
  struct Owed {
    std::vector<SampledToken> tokens;
    std::optional<Outcome> outcome;  // The request is over, and forgotten.
  };
  // Who hears of a request's end.
  enum class EndFor { kReservation, kStream, kLater };

  // `kept`: outcomes that wait for their streams, of which the oldest are forgotten.
  TicketBook(int64_t stream_lease_us, size_t kept)
      : stream_lease_us_(stream_lease_us), kept_(kept) {}

  bool Holds(uint64_t attempt_id) const { return entries_.contains(attempt_id); }
  // Its ticket is asked for; it must not be held.
  void Ask(uint64_t attempt_id) { entries_[attempt_id] = {}; }
  void GiveTicket(uint64_t attempt_id, uint64_t generation, int64_t now_us);
  // 0: it has none.
  uint64_t GenerationOf(uint64_t attempt_id) const;

  // NOT_FOUND for an attempt that is not held, FAILED_PRECONDITION for another generation than its
  // ticket's, ALREADY_EXISTS for a second stream. The request goes on if there is one.
  absl::StatusOr<Owed> Open(uint64_t attempt_id, uint64_t generation);
  // Whether its stream is there to read the token. If not, it is kept.
  bool Deliver(uint64_t attempt_id, const SampledToken& token);
  EndFor End(uint64_t attempt_id, const Outcome& outcome);
  // The request has ended, and its stream is not to be opened any more.
  void ForgetIfOver(uint64_t attempt_id);

  // Those whose streams did not open in time, and that go on: they are to be aborted. Others are
  // forgotten.
  std::vector<uint64_t> Expire(int64_t now_us);
  absl::Status TooLate() const;
  int64_t NextDeadlineUs() const { return due_.empty() ? kNeverUs : due_.begin()->first; }
  bool empty() const { return entries_.empty(); }

 private:
  struct Entry {
    uint64_t generation = 0;  // 0: no ticket yet.
    int64_t due_us = kNeverUs;
    bool stream_open = false;
    std::vector<SampledToken> tokens;
    std::optional<Outcome> outcome;
  };

  using Entries = std::map<uint64_t, Entry>;
  void SetDue(uint64_t attempt_id, Entry& entry, int64_t due_us);
  void Erase(Entries::iterator entry);

  const int64_t stream_lease_us_;
  const size_t kept_;
  Entries entries_;                              // By attempt.
  std::set<std::pair<int64_t, uint64_t>> due_;   // While their stream is not open.
  std::set<std::pair<int64_t, uint64_t>> over_;  // Those with an outcome.
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_CORE_TICKET_BOOK_H_
