#include "tests/sim/decode_account.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/content.h"
#include "tests/sim/decode_witness.h"

namespace baton::sim {

void DecodeAccount::Saw(const decode::Event& event, const std::vector<decode::Action>& actions,
                        const decode::DecodeCore& core) {
  asked_.reset();
  std::visit([this](const auto& e) { Hear(e); }, event);
  HearTime();
  for (const decode::Action& action : actions) {
    std::visit([this](const auto& a) { See(a); }, action);
    if (!world_.violation().empty()) return;
  }
  for (const auto& [attempt_id, cause] : std::exchange(ends_due_, {})) {
    Complain(attempt_id, "I2: goes on after its end");
  }
  CheckLoad(core);
  CheckTimer(core);
}

void DecodeAccount::Complain(uint64_t attempt_id, const std::string& what) {
  world_.Violate(absl::StrCat(self_.id, ", attempt ", attempt_id, ": ", what));
}

int DecodeAccount::CountWaiting() const {
  return static_cast<int>(std::count_if(requests_.begin(), requests_.end(), [](const auto& entry) {
    return entry.second.generation == 0;
  }));
}

DecodeAccount::Cause DecodeAccount::ByDrain() const {
  return {absl::StatusCode::kUnavailable, /*by_drain=*/true, "decode", self_.id};
}

DecodeAccount::Cause DecodeAccount::Of(const absl::Status& status) const {
  return {status.code(), IsEndedByDrain(status), LegOf(status), InstanceOf(status)};
}

// ---- Events ----

void DecodeAccount::Hear(const decode::ReserveRequested& event) {
  asked_ = event.attempt_id;
  Request& request = requests_[event.attempt_id];
  request.deadline_us = event.deadline_us;
  request.resumes = event.resumes;
  for (const KvWriter& writer : event.writers) {
    const bool draws = writer.layers.end == topology_.layers && writer.tensor_rank.rank == 0;
    if (draws) request.draws = writer.instance.id;
  }
  waiting_.push_back(event.attempt_id);
  const auto refuse = [&](absl::StatusCode code) {
    ends_due_[event.attempt_id] = {code, false, "decode", self_.id};
  };
  if (ForgetOne(early_aborts_, event.attempt_id)) return refuse(absl::StatusCode::kCancelled);
  if (draining_) {
    ++drained_.refused_total;
    ends_due_[event.attempt_id] = ByDrain();
  } else if (!joined_) {
    refuse(absl::StatusCode::kUnavailable);
  } else if (event.prompt_tokens >= topology_.max_context_tokens) {
    refuse(absl::StatusCode::kInvalidArgument);
  } else if (event.deadline_us <= world_.now_us()) {
    refuse(absl::StatusCode::kDeadlineExceeded);
  }
}

void DecodeAccount::Hear(const decode::StreamOpened& event) {
  const auto found = requests_.find(event.attempt_id);
  if (found == requests_.end() || found->second.generation != event.generation ||
      !found->second.ticket || std::exchange(found->second.stream_open, true)) {
    return;
  }
  if (found->second.kept.has_value()) ends_due_[event.attempt_id] = *found->second.kept;
}

void DecodeAccount::Hear(const decode::AbortRequested& event) {
  const auto found = requests_.find(event.attempt_id);
  if (found == requests_.end()) {
    early_aborts_.push_back(event.attempt_id);
    if (early_aborts_.size() > topology_.remembered) early_aborts_.pop_front();
    return;
  }
  Cause cause = Of(event.reason.ok() ? absl::CancelledError("aborted") : event.reason);
  if (!found->second.ticket) {  // A refusal, which is this service's.
    cause.leg = "decode";
    cause.instance = self_.id;
  }
  ends_due_[event.attempt_id] = cause;
}

void DecodeAccount::Hear(const decode::StepFinished& event) {
  for (const uint64_t attempt_id : std::exchange(in_step_, {})) {
    const auto found = requests_.find(attempt_id);
    if (found == requests_.end() || found->second.revoked || !found->second.stream_open) continue;
    const auto output =
        std::find_if(event.outputs.begin(), event.outputs.end(),
                     [attempt_id](const auto& out) { return out.attempt_id == attempt_id; });
    absl::Status status = event.status;
    if (status.ok() && output == event.outputs.end()) status = absl::InternalError("no token");
    if (status.ok()) status = output->token.status();
    if (status.ok() && !IsInVocabulary(output->token->token)) status = absl::InternalError("none");
    if (!status.ok()) {
      Cause cause = Of(status);  // Another rank's, if it says so.
      // A rank has left the group, which was not requested.
      const bool parted = absl::IsCancelled(event.status) || absl::IsAborted(event.status);
      if (parted) cause.code = absl::StatusCode::kUnavailable;
      if (!cause.leg.has_value()) cause.leg = "decode", cause.instance = self_.id;
      ends_due_[attempt_id] = cause;
    }
  }
}

void DecodeAccount::Hear(const decode::DrainBegan& event) {
  drain_ends_us_ = std::min(drain_ends_us_, event.deadline_us);
  if (std::exchange(draining_, true)) return;
  for (const auto& [attempt_id, request] : requests_) {
    if (request.generation != 0) continue;
    ++drained_.handed_back_total;
    ends_due_[attempt_id] = ByDrain();
  }
}

void DecodeAccount::Hear(const KvCommitted& event) { HearCommitted(0, event); }

void DecodeAccount::HearCommitted(int rank, const KvCommitted& event) {
  for (auto& [attempt_id, request] : requests_) {
    if (request.generation != event.generation || !request.ticket || request.revoked ||
        request.not_committed.erase(rank) == 0) {
      continue;
    }
    if (rank == 0) request.bad_first_token = !IsInVocabulary(event.first_token->token);
    request.committed = request.not_committed.empty();
    if (!request.committed || !request.bad_first_token) continue;
    EndOrKeep(attempt_id, request, {absl::StatusCode::kInternal, false, "prefill", request.draws});
  }
}

void DecodeAccount::EndOrKeep(uint64_t attempt_id, Request& request, const Cause& cause) {
  if (request.stream_open || !request.ticket) {
    ends_due_[attempt_id] = cause;
  } else {
    request.kept = cause;
  }
}

void DecodeAccount::Hear(const decode::FollowerHeard& event) {
  if (const auto* failed = std::get_if<KvFailed>(&event.event)) return Hear(*failed);
  if (const auto* committed = std::get_if<KvCommitted>(&event.event)) {
    HearCommitted(event.rank, *committed);
  }
}

void DecodeAccount::Hear(const decode::RanksJoined&) { joined_ = true; }

void DecodeAccount::Hear(const decode::RanksLost& event) {
  if (!std::exchange(joined_, false)) return;
  Cause cause = Of(event.status);
  if (!cause.leg.has_value()) cause.leg = "decode", cause.instance = self_.id;
  for (const auto& [attempt_id, request] : requests_) {
    if (!request.kept.has_value() && !request.revoked) ends_due_[attempt_id] = cause;
  }
}

void DecodeAccount::Hear(const KvFailed& event) {
  for (auto& [attempt_id, request] : requests_) {
    if (request.generation != event.generation || request.revoked) continue;
    EndOrKeep(attempt_id, request, Of(event.status));
  }
}

void DecodeAccount::HearTime() {
  const int64_t now_us = world_.now_us();
  for (const auto& [attempt_id, request] : requests_) {
    if (ends_due_.contains(attempt_id)) continue;
    const bool lacks_stream = request.ticket && !request.stream_open;
    if (request.deadline_us <= now_us) {
      ends_due_[attempt_id] = {absl::StatusCode::kDeadlineExceeded, false, "decode", self_.id};
    } else if (lacks_stream && request.granted_us + topology_.times.stream_lease_us <= now_us) {
      ends_due_[attempt_id] = {absl::StatusCode::kUnavailable, false, "decode", self_.id};
    } else if (drain_ends_us_ <= now_us) {
      ++drained_.time_over_total;
      ends_due_[attempt_id] = ByDrain();
    }
  }
}

// ---- What it does ----

void DecodeAccount::See(const decode::ReplyReserve& action) {
  const auto found = requests_.find(action.attempt_id);
  if (found == requests_.end()) return;  // The witness says so.
  if (action.ticket.ok()) {
    found->second.ticket = true;
    found->second.granted_us = world_.now_us();
    return;
  }
  std::erase(waiting_, action.attempt_id);
  const absl::Status& status = action.ticket.status();
  const auto due = ends_due_.find(action.attempt_id);
  if (due != ends_due_.end()) {
    CheckEnd(action.attempt_id, status, due->second);
    ends_due_.erase(due);
  } else if (asked_ != action.attempt_id) {
    if (IsRetractedRightly(found->second, status)) {
      requests_.erase(found);
      return;
    }
    Complain(action.attempt_id, absl::StrCat("stops waiting for no reason: ", status.ToString()));
  } else {
    // What waits already does not count this one.
    const bool full = CountWaiting() - 1 >= topology_.max_queued;
    CheckEnd(action.attempt_id, status,
             {absl::StatusCode::kResourceExhausted, false, "decode", self_.id});
    if (IsOverloaded(status) && (!full || RetryHintMsOf(status) != kQueueRetryAfterMs)) {
      Complain(action.attempt_id, "is refused for a queue that is not full");
    }
  }
  requests_.erase(found);
}

void DecodeAccount::See(const decode::GrantKv& action) {
  if (action.rank > 0 || waiting_.empty()) return;  // The witness says so.
  Request& request = requests_.at(waiting_.front());
  waiting_.erase(waiting_.begin());
  request.generation = action.grant.generation;
  for (int rank = 0; rank < topology_.decode_ranks; ++rank) request.not_committed.insert(rank);
}

void DecodeAccount::See(const decode::RevokeKv& action) {
  for (auto& [attempt_id, request] : requests_) {
    if (request.generation != action.generation) continue;
    request.revoked = true;
    const bool ends = !request.ticket || request.stream_open || ends_due_.contains(attempt_id);
    if (!ends) Keep(attempt_id);
  }
}

// Its end waits for its stream. Of too many the oldest gets none any more.
void DecodeAccount::Keep(uint64_t attempt_id) {
  kept_.push_back(attempt_id);
  if (kept_.size() <= topology_.remembered) return;
  ends_due_[kept_.front()] = {absl::StatusCode::kResourceExhausted, false, "decode", self_.id};
}

void DecodeAccount::See(const decode::RunStep& action) {
  for (const auto& sequence : action.sequences) in_step_.insert(sequence.attempt_id);
}

void DecodeAccount::See(const decode::Finish& action) {
  const auto due = ends_due_.find(action.attempt_id);
  if (!action.outcome.ok()) {
    const absl::Status& status = action.outcome.status();
    const auto found = requests_.find(action.attempt_id);
    const bool gives_way = due == ends_due_.end() && found != requests_.end() &&
                           IsRetractedRightly(found->second, status);
    if (due == ends_due_.end() && !gives_way) {
      return Complain(action.attempt_id, absl::StrCat("fails for no reason: ", status.ToString()));
    }
    if (!gives_way) CheckEnd(action.attempt_id, status, due->second);
  }
  if (due != ends_due_.end()) ends_due_.erase(due);
  std::erase(kept_, action.attempt_id);
  requests_.erase(action.attempt_id);
}

bool DecodeAccount::IsRetractedRightly(const Request& request, const absl::Status& status) const {
  return IsRetracted(status) && absl::IsAborted(status) && request.resumes && request.revoked &&
         LegOf(status) == "decode" && InstanceOf(status) == self_.id;
}

void DecodeAccount::CheckEnd(uint64_t attempt_id, const absl::Status& status, const Cause& cause) {
  if (status.code() == cause.code && IsEndedByDrain(status) == cause.by_drain &&
      !IsRetracted(status) && LegOf(status) == cause.leg && InstanceOf(status) == cause.instance) {
    return;
  }
  Complain(attempt_id,
           absl::StrCat("ends with ", status.ToString(), ", expected ",
                        absl::StatusCodeToString(cause.code), " of ", cause.leg.value_or("nobody"),
                        " ", cause.instance.value_or(""), cause.by_drain ? " by a drain" : ""));
}

// ---- What it says of itself ----

void DecodeAccount::CheckLoad(const decode::DecodeCore& core) {
  int reserved = 0;
  int running = 0;
  for (const auto& [attempt_id, request] : requests_) {
    const bool granted = request.generation != 0 && !request.revoked;
    reserved += granted && !request.committed ? 1 : 0;
    running += granted && request.committed ? 1 : 0;
  }
  const decode::DecodeLoad load = core.load();
  if (load.waiting != CountWaiting() || load.reserved != reserved || load.running != running) {
    world_.Violate(absl::StrCat(self_.id, " says that ", load.waiting, ", ", load.reserved, " and ",
                                load.running, " requests wait, are reserved and run; it is ",
                                CountWaiting(), ", ", reserved, " and ", running));
  }
  if (core.draining() != draining_ || core.drain_counts() != drained_) {
    world_.Violate(absl::StrCat(self_.id, " counts what its drain ends wrongly"));
  }
  if (core.joined() != joined_) {
    world_.Violate(absl::StrCat(self_.id, " says that its ranks are together, or the contrary"));
  }
}

void DecodeAccount::CheckTimer(const decode::DecodeCore& core) {
  int64_t due_us = requests_.empty() ? kNeverUs : drain_ends_us_;
  for (const auto& [attempt_id, request] : requests_) {
    due_us = std::min(due_us, request.deadline_us);
    if (request.ticket && !request.stream_open) {
      due_us = std::min(due_us, request.granted_us + topology_.times.stream_lease_us);
    }
  }
  if (core.NextDeadlineUs() == due_us) return;
  world_.Violate(absl::StrCat(self_.id, " wakes at ", core.NextDeadlineUs(), ", due at ", due_us));
}

}  // namespace baton::sim
