#include "common/collective/rendezvous.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/collective/bootstrap_store.h"
#include "common/collective/communicator.h"

namespace baton {

void Rendezvous::OnJoin(Caller caller, const Join& join, int64_t now_us) {
  absl::Status refusal = Refusal(join);
  if (!refusal.ok()) return Close(caller, refusal);
  if (phase_ == Phase::kNone || join.epoch > epoch_) {
    End(absl::AbortedError(absl::StrCat(group_, " goes on with epoch ", join.epoch,
                                        ", asked for by ", Describe(join), "; epoch ", epoch_,
                                        " is over")));
    phase_ = Phase::kOpen;
    epoch_ = join.epoch;
    ended_ = absl::OkStatus();
    deadline_us_ = now_us + timeout_us_;
    seats_.assign(static_cast<size_t>(join.size), Seat{});
  }
  Seat& seat = seats_[join.rank];
  seat.taken = true;
  seat.caller = caller;
  seat.join = join;
  if (!complete()) return;
  for (const Seat& from : seats_) {
    for (const Entry& entry : from.entries) Share(from, entry);
  }
}

absl::Status Rendezvous::Refusal(const Join& join) const {
  if (join.size < 1 || join.size > kGroupSizeMax || join.rank < 0 || join.rank >= join.size) {
    return absl::InvalidArgumentError(absl::StrCat(Describe(join), " is none of ", join.size,
                                                   " ranks, of at most ", kGroupSizeMax));
  }
  if (phase_ == Phase::kNone || join.epoch > epoch_) return absl::OkStatus();
  if (join.epoch < epoch_) {
    return absl::FailedPreconditionError(absl::StrCat(
        Describe(join), " asks for epoch ", join.epoch, ", which epoch ", epoch_, " has replaced"));
  }
  if (phase_ == Phase::kEnded) return ended_;
  if (phase_ == Phase::kFormed) {
    const bool has_seat = join.rank < static_cast<int>(seats_.size());
    const Seat& seat = seats_[has_seat ? join.rank : 0];
    return absl::FailedPreconditionError(absl::StrCat(Describe(join), " comes late: epoch ", epoch_,
                                                      " has formed with ", Describe(seat.join)));
  }
  for (const Seat& seat : seats_) {
    if (!seat.taken) continue;
    if (seat.join.size != join.size) {
      return absl::InvalidArgumentError(absl::StrCat(Describe(join), " counts ", join.size,
                                                     " ranks, ", Describe(seat.join), " ",
                                                     seat.join.size));
    }
    if (seat.join.rank == join.rank) {
      return absl::AlreadyExistsError(absl::StrCat("two processes are rank ", join.rank, ": ",
                                                   Describe(seat.join), " came before ",
                                                   Describe(join)));
    }
  }
  return absl::OkStatus();
}

std::string Rendezvous::Describe(const Join& join) const {
  return absl::StrCat("rank ", join.rank, " of ", group_, " (", join.member, ", incarnation ",
                      absl::Hex(join.incarnation), ")");
}

void Rendezvous::OnEntry(Caller caller, const Entry& entry) {
  Seat* const seat = SeatOf(caller);
  if (seat == nullptr) return;
  absl::Status status = ValidateBootstrapEntry(entry.key, entry.value);
  if (status.ok() && seat->entries.size() >= kBootstrapEntriesMax) {
    status =
        absl::ResourceExhaustedError(absl::StrCat("more than ", kBootstrapEntriesMax, " entries"));
  }
  if (!status.ok()) {
    return End(absl::Status(status.code(), absl::StrCat(Describe(seat->join), " sets ",
                                                        std::string(status.message()))));
  }
  seat->entries.push_back(entry);
  if (complete()) Share(*seat, entry);
}

void Rendezvous::OnConnected(Caller caller) {
  Seat* const seat = SeatOf(caller);
  if (seat == nullptr) return;
  seat->connected = true;
  for (const Seat& each : seats_) {
    if (!each.connected) return;
  }
  for (const Seat& each : seats_) Close(each.caller, absl::OkStatus());
  phase_ = Phase::kFormed;
}

void Rendezvous::Tick(int64_t now_us) {
  if (phase_ != Phase::kOpen || now_us < deadline_us_) return;
  std::vector<std::string> missing;
  const bool all_joined = complete();
  for (size_t rank = 0; rank < seats_.size(); ++rank) {
    const Seat& seat = seats_[rank];
    if (!seat.taken) missing.push_back(absl::StrCat("rank ", rank));
    if (all_joined && !seat.connected) missing.push_back(Describe(seat.join));
  }
  End(absl::DeadlineExceededError(absl::StrCat(absl::StrJoin(missing, ", "), " did not ",
                                               all_joined ? "connect to" : "join", " epoch ",
                                               epoch_, " of ", group_, " with ", seats_.size(),
                                               " ranks within ", timeout_us_ / 1000, " ms")));
}

void Rendezvous::End(const absl::Status& why) {
  if (phase_ != Phase::kOpen) return;
  phase_ = Phase::kEnded;
  ended_ = why;
  for (const Seat& seat : seats_) {
    if (seat.taken) Close(seat.caller, why);
  }
}

Rendezvous::Seat* Rendezvous::SeatOf(Caller caller) {
  if (phase_ != Phase::kOpen) return nullptr;
  for (Seat& seat : seats_) {
    if (seat.taken && seat.caller == caller) return &seat;
  }
  return nullptr;
}

bool Rendezvous::complete() const {
  for (const Seat& seat : seats_) {
    if (!seat.taken) return false;
  }
  return !seats_.empty();
}

void Rendezvous::Share(const Seat& from, const Entry& entry) {
  for (const Seat& to : seats_) {
    if (to.caller != from.caller) Say(to.caller, entry);
  }
}

void Rendezvous::Say(Caller to, const Entry& entry) { messages_.push_back({to, entry, {}}); }

void Rendezvous::Close(Caller to, const absl::Status& verdict) {
  messages_.push_back({to, {}, verdict});
}

std::vector<Rendezvous::Message> Rendezvous::TakeMessages() { return std::exchange(messages_, {}); }

std::vector<std::string> Rendezvous::members() const {
  std::vector<std::string> names;
  if (!complete()) return names;
  names.reserve(seats_.size());
  for (const Seat& seat : seats_) names.push_back(seat.join.member);
  return names;
}

}  // namespace baton
