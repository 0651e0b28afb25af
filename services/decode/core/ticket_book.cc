#include "services/decode/core/ticket_book.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/coverage.h"

namespace baton::decode {

void TicketBook::SetDue(uint64_t attempt_id, Entry& entry, int64_t due_us) {
  due_.erase({entry.due_us, attempt_id});
  entry.due_us = due_us;
  if (due_us != kNeverUs) due_.emplace(due_us, attempt_id);
}

void TicketBook::Erase(Entries::iterator entry) {
  due_.erase({entry->second.due_us, entry->first});
  over_.erase({entry->second.due_us, entry->first});
  entries_.erase(entry);
}

void TicketBook::GiveTicket(uint64_t attempt_id, uint64_t generation, int64_t now_us) {
  Entry& entry = entries_.at(attempt_id);
  entry.generation = generation;
  SetDue(attempt_id, entry, now_us + stream_lease_us_);
}

uint64_t TicketBook::GenerationOf(uint64_t attempt_id) const {
  const auto found = entries_.find(attempt_id);
  return found == entries_.end() ? 0 : found->second.generation;
}

absl::StatusOr<TicketBook::Owed> TicketBook::Open(uint64_t attempt_id, uint64_t generation) {
  const auto found = entries_.find(attempt_id);
  if (found == entries_.end()) {
    Covered<"decode: a stream comes for no reservation">();
    return absl::NotFoundError(absl::StrCat("attempt ", attempt_id, " is not held"));
  }
  Entry& entry = found->second;
  if (entry.generation == 0 || entry.generation != generation) {
    return absl::FailedPreconditionError(absl::StrCat(
        "generation ", generation, " is not that of attempt ", attempt_id, "'s ticket"));
  }
  if (entry.stream_open) {
    Covered<"decode: a second stream">();
    return absl::AlreadyExistsError(absl::StrCat("attempt ", attempt_id, " has a stream already"));
  }
  entry.stream_open = true;
  Owed owed{std::exchange(entry.tokens, {}), entry.outcome};
  if (owed.outcome.has_value()) {
    Covered<"decode: a stream comes after the end">();
    Erase(found);
  } else {
    SetDue(attempt_id, entry, kNeverUs);
  }
  return owed;
}

bool TicketBook::Deliver(uint64_t attempt_id, const SampledToken& token) {
  Entry& entry = entries_.at(attempt_id);
  if (entry.stream_open) return true;
  Covered<"decode: a token is kept for its stream">();
  entry.tokens.push_back(token);
  return false;
}

TicketBook::EndFor TicketBook::End(uint64_t attempt_id, const Outcome& outcome) {
  const auto found = entries_.find(attempt_id);
  BATON_CHECK(found != entries_.end() && !found->second.outcome.has_value())
      << "attempt " << attempt_id << " ends twice, or is not held";
  Entry& entry = found->second;
  if (entry.generation != 0 && entry.due_us != kNeverUs) {
    Covered<"decode: an outcome is kept for its stream">();
    entry.outcome = outcome;
    over_.emplace(entry.due_us, attempt_id);
    if (over_.size() > kept_) Erase(entries_.find(over_.begin()->second));
    return EndFor::kLater;
  }
  const EndFor end = entry.stream_open       ? EndFor::kStream
                     : entry.generation == 0 ? EndFor::kReservation
                                             : EndFor::kLater;
  Erase(found);
  return end;
}

void TicketBook::ForgetIfOver(uint64_t attempt_id) {
  const auto found = entries_.find(attempt_id);
  if (found != entries_.end() && found->second.outcome.has_value()) Erase(found);
}

std::vector<uint64_t> TicketBook::Expire(int64_t now_us) {
  std::vector<uint64_t> late;
  while (NextDeadlineUs() <= now_us) {
    const auto entry = entries_.find(due_.begin()->second);
    if (entry->second.outcome.has_value()) {
      Erase(entry);
      continue;
    }
    Covered<"decode: no stream comes">();
    SetDue(entry->first, entry->second, kNeverUs);
    late.push_back(entry->first);
  }
  return late;
}

absl::Status TicketBook::TooLate() const {
  return absl::UnavailableError(absl::StrCat("its stream was not opened within ",
                                             stream_lease_us_ / 1000, " ms of its ticket"));
}

}  // namespace baton::decode
