// What a router does, held against what it has heard (router_witness.h).
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/router_witness.h"

namespace baton::sim {

// ---- Attempts ----

template <typename Action>
void RouterWitness::SeeBegin(const Action& action, const InstanceRef& decode,
                             const std::vector<KvWriter>& writers) {
  Request* request = OfCall(action.call_id);
  if (request == nullptr || request->attempt != 0 || ends_due_.contains(action.call_id)) {
    return Complain(action.call_id, "is begun twice, or after its end");
  }
  const uint64_t id = (limits_.incarnation << 32) | (++attempts_ & 0xffffffffU);
  if (action.attempt_id != id) Complain(action.call_id, "has an attempt under a wrong id");
  if (request->failing.has_value()) {
    if (!request->failing->goes_on) {
      return Complain(action.call_id,
                      absl::StrCat("is tried again after ", request->failing->status.ToString()));
    }
    GoOn(*request);
  } else {
    for (const auto& [call_id, other] : requests_) {
      const bool before = other.asked.tenant == request->asked.tenant;
      if (other.waits() && before && other.order < request->order) {
        Complain(call_id, "is overtaken");
      }
    }
  }
  const std::vector<router::Pair>& pairs = members_.Pairs();
  const auto pair = std::find_if(pairs.begin(), pairs.end(), [&](const router::Pair& p) {
    return p.decode == decode && p.writers == writers;
  });
  if (pair == pairs.end()) {
    return Complain(action.call_id, "begins on workers that are no ready pair");
  }
  CheckChoice(*request, *pair);
  if (action.deadline_us != request->asked.deadline_us) {
    Complain(action.call_id, "is begun with another deadline");
  }
  if (action.drawn_tokens != request->drawn) Complain(action.call_id, "reads another text");
  request->redraws = request->told > 0;
  request->resumes += request->redraws ? 1 : 0;
  if (++request->attempts == 1) begun_s_.push_back(world_.now_us() / 1'000'000);
  request->phase = pair->colocated() ? Phase::kPrefilling : Phase::kReserving;
  request->prefill_open = pair->colocated();
  request->until_us = kNeverUs;
  request->began_full = !pair->colocated() && IsFull(*request, *pair);
  request->perhaps_full = anybody_fails_;
  request->attempt = id;
  request->pair = *pair;
  request->held = 0;
  request->decode_open = request->prefill_counts = true;
  calls_[id] = action.call_id;
  for (const InstanceRef& used : {pair->decode, pair->chain.stage0}) {
    lost_.erase(used);
    last_used_[used] = attempts_;
  }
  if (drain_over_) {  // It had a pair again, and the time is over all the same.
    MustEnd(*request, {std::nullopt, absl::StatusCode::kUnavailable, "router", "", true, false});
    MustClose(*request);
  }
}

void RouterWitness::See(const router::Reserve& action) {
  SeeBegin(action, action.decode, action.writers);
}

void RouterWitness::GoOn(Request& request) {
  Failure failure = *std::exchange(request.failing, std::nullopt);
  if (failure.takes_budget) retried_s_.push_back(world_.now_us() / 1'000'000);
  router::RetryCounts& counts = totals_.RetriesOf(failure.blamed);
  if (failure.full) {
    ++request.refused;
    ++counts.overload_total;
    return;
  }
  request.handed_back += failure.handed_back ? 1 : 0;
  request.failed_resumes += failure.of_text && !failure.handed_back ? 1 : 0;
  const bool by_drain = failure.handed_back && IsEndedByDrain(failure.status);
  ++(by_drain ? counts.drain_total : counts.failure_total);
  request.failed = std::move(failure);
}

void RouterWitness::See(const router::OpenStream& action) {
  const Request* request = OfAttempt(action.attempt_id);
  if (request == nullptr || !std::exchange(stream_due_, false) ||
      ticket_->attempt_id != action.attempt_id || action.decode != request->pair.decode ||
      action.generation != ticket_->ticket->generation ||
      action.deadline_us != request->asked.deadline_us) {
    world_.Violate(absl::StrCat(name_, ": a stream is opened that is not the ticket's"));
  }
}

void RouterWitness::See(const router::StartPrefill& action) {
  const Request* request = OfAttempt(action.attempt_id);
  if (request == nullptr || !std::exchange(start_due_, false) ||
      ticket_->attempt_id != action.attempt_id || action.ticket != *ticket_->ticket ||
      action.call_id != request->asked.call_id || action.stage0 != request->pair.chain.stage0 ||
      action.drawn_tokens != request->drawn || action.deadline_us != request->asked.deadline_us) {
    return world_.Violate(absl::StrCat(name_, ": a prefill is started that is not the ticket's"));
  }
  CheckHeadStart(*request, action.head_start_us);
}

void RouterWitness::CheckHeadStart(const Request& request, int64_t head_start_us) {
  const bool alone = std::ranges::all_of(requests_, [&](const auto& entry) {
    return entry.second.asked.tenant == request.asked.tenant;
  });
  if (head_start_us < 0 || (alone && head_start_us != 0)) {
    Complain(request.asked.call_id, "goes before others of its tenant");
  }
}

void RouterWitness::See(const router::StartGeneration& action) {
  SeeBegin(action, action.stage0, {});
  const Request* request = OfAttempt(action.attempt_id);
  if (request == nullptr || !world_.violation().empty()) return;
  if (action.stages != request->pair.chain.stages) Complain(action.call_id, "is of another chain");
  CheckHeadStart(*request, action.head_start_us);
}

void RouterWitness::See(const router::AbortPrefill& action) {
  const auto leg = closes_prefill_.find(action.attempt_id);
  if (leg == closes_prefill_.end() || leg->second != action.stage0) {
    return world_.Violate(absl::StrCat(name_, ": a prefill is aborted for no reason"));
  }
  closes_prefill_.erase(leg);
}

void RouterWitness::See(const router::AbortDecode& action) {
  const auto leg = closes_decode_.find(action.attempt_id);
  if (leg == closes_decode_.end() || leg->second != action.decode) {
    return world_.Violate(absl::StrCat(name_, ": a decode is aborted for no reason"));
  }
  closes_decode_.erase(leg);
}

// ---- What clients and workers are told ----

void RouterWitness::See(const router::DeliverPrompt& action) {
  if (std::exchange(prompt_due_, std::nullopt) != action.call_id) {
    Complain(action.call_id, "hears of its prompt out of turn");
  }
}

void RouterWitness::See(const router::DeliverToken& action) {
  if (prompt_due_ == action.call_id || --tokens_due_[action.call_id] < 0) {
    Complain(action.call_id, "hears a token out of turn");
  }
}

void RouterWitness::See(const router::ReplyAbort& action) {
  if (std::exchange(abort_reply_due_, std::nullopt) != action.status.code()) {
    world_.Violate(absl::StrCat(name_, ": an abort is answered with ", action.status.ToString()));
  }
}

void RouterWitness::See(const router::AnswerHeartbeat& action) {
  if (std::exchange(needed_requests_due_, std::nullopt) == action.needed_requests) return;
  world_.Violate(absl::StrCat(name_, ": a worker that drains hears of ", action.needed_requests,
                              " requests, which is wrong"));
}

void RouterWitness::See(const router::FinishCall& action) {
  const auto due = ends_due_.find(action.call_id);
  const Request* request = OfCall(action.call_id);
  if (request == nullptr && due == ends_due_.end()) {
    return Complain(action.call_id, "I2: ends twice, or though nobody asked");
  }
  const Request nothing;
  const Request& of = request == nullptr ? nothing : *request;
  if (action.attempts != of.attempts || action.resumes != of.resumes ||
      action.chain_id != of.pair.chain.chain_id || action.decode_instance != of.pair.decode.id) {
    Complain(action.call_id, "ends with another one's attempts or workers");
  }
  if (due != ends_due_.end()) {
    CheckEnd(action, due->second);
    ends_due_.erase(due);
  } else if (give_way_.contains(action.call_id) || perhaps_refused_ == action.call_id) {
    CheckEnd(action,
             {std::nullopt, absl::StatusCode::kResourceExhausted, "router", "", false, true});
    give_way_.clear();
    perhaps_refused_.reset();
  } else if (of.failing.has_value()) {
    const Failure& failure = *of.failing;
    if (failure.goes_on && !drain_over_) {
      Complain(action.call_id,
               absl::StrCat("is not tried again after ", failure.status.ToString()));
    }
    totals_.budget_exhausted_total += failure.lacks_budget ? 1 : 0;
    totals_.drain.worker_total += !failure.full && failure.otherwise.by_drain ? 1 : 0;
    if (!drain_over_) CheckEnd(action, failure.otherwise);
  } else if (of.waits() && members_.Pairs().empty() && PairAwaitedUntilUs() == 0) {
    End end{std::nullopt, absl::StatusCode::kUnavailable, "router", "", false, false};
    if (of.failed.has_value()) end = of.failed->otherwise;
    if (end.by_drain) end = EndOfDrained(of);
    CheckEnd(action, end);
  } else if (of.waits() && !FitsSome(of, nullptr, /*with_room=*/false)) {
    CheckEnd(action,
             {std::nullopt, absl::StatusCode::kInvalidArgument, "router", "", false, false});
  } else {
    Complain(action.call_id,
             absl::StrCat("ends for no reason: ", action.outcome.status().ToString()));
  }
  if (of.attempt != 0) calls_.erase(of.attempt);
  requests_.erase(action.call_id);
}

void RouterWitness::CheckEnd(const router::FinishCall& action, const End& end) {
  const absl::Status& status = action.outcome.status();
  bool right = action.outcome.ok() == end.reason.has_value();
  if (right && end.reason.has_value()) {
    right = *action.outcome == *end.reason;
  } else if (right) {
    right = status.code() == end.code && LegOf(status) == end.leg &&
            InstanceOf(status) == end.instance && IsEndedByDrain(status) == end.by_drain &&
            IsOverloaded(status) == end.overloaded && !status.message().empty();
  }
  if (right) return;
  Complain(action.call_id,
           absl::StrCat("ends with ", action.outcome.ok() ? "an answer" : status.ToString(),
                        ", expected ", absl::StatusCodeToString(end.code), " of ", end.leg, " ",
                        end.instance, end.by_drain ? " by a drain" : "",
                        end.overloaded ? " for want of room" : ""));
}

// ---- What must be true afterwards ----

void RouterWitness::Wait(Request& request) {
  if (CountWaiting() == 0) wait_for_room_ = !members_.Pairs().empty();
  GoOn(request);
  request.excused = false;
  request.until_us = wait_for_room_ ? kNeverUs : world_.now_us() + limits_.pairing_timeout_us;
}

void RouterWitness::CheckDone() {
  if (!give_way_.empty()) Complain(*give_way_.begin(), "keeps the place that it was to give up");
  for (const auto& [call_id, end] : std::exchange(ends_due_, {})) {
    Complain(call_id, "I2: goes on after its end");
  }
  for (const auto& [call_id, tokens] : std::exchange(tokens_due_, {})) {
    if (tokens != 0) Complain(call_id, "is not told a token");
  }
  if (!closes_prefill_.empty() || !closes_decode_.empty()) {
    world_.Violate(absl::StrCat(name_, ": rule 5: a leg goes on that nobody needs"));
  }
  if (stream_due_ || start_due_ || prompt_due_.has_value() || abort_reply_due_.has_value() ||
      needed_requests_due_.has_value()) {
    world_.Violate(absl::StrCat(name_, ": what was asked for is not done"));
  }
  for (auto& [call_id, request] : requests_) {
    if (!request.failing.has_value()) continue;
    const Failure& failure = *request.failing;
    if (!failure.goes_on || (failure.must_begin && !failure.full)) {
      Complain(call_id, absl::StrCat(failure.goes_on ? "is not tried again at once after "
                                                     : "goes on after ",
                                     failure.status.ToString()));
    }
    Wait(request);
  }
  ForgetLost();
}

void RouterWitness::ForgetLost() {
  std::erase_if(lost_, [this](const InstanceRef& instance) {
    const Work work = WorkOn(instance);
    if (work.chain_requests > 0 || work.decode_requests > 0) return false;
    last_used_.erase(instance);
    limited_.erase(instance);
    return true;
  });
}

void RouterWitness::CheckWaiting() {
  if (CountWaiting() == 0) return;
  const bool ready = !members_.Pairs().empty();
  std::map<std::string, const Request*> oldest;  // By tenant.
  for (auto& [call_id, request] : requests_) {
    if (!request.waits()) continue;
    const Request*& first = oldest.try_emplace(request.asked.tenant, &request).first->second;
    if (request.order < first->order) first = &request;
    if (ready != wait_for_room_) {
      request.until_us = ready ? kNeverUs : world_.now_us() + limits_.pairing_timeout_us;
    }
  }
  wait_for_room_ = ready;
  // One of them is next, which depends on what tenants were served: if all could begin, it could.
  const bool could = std::ranges::all_of(oldest, [this](const auto& entry) {
    const Request& request = *entry.second;
    return FitsSome(request, request.failed.has_value() ? &*request.failed : nullptr,
                    /*with_room=*/true);
  });
  const uint64_t call_id = oldest.begin()->second->asked.call_id;
  if (ready && could) Complain(call_id, "waits while a pair has room for it");
  if (!ready && PairAwaitedUntilUs() == 0) Complain(call_id, "waits in vain");
}

void RouterWitness::CheckLoad(const router::RouterLoad& load) {
  const bool gauges = load.in_flight == static_cast<int>(requests_.size()) &&
                      load.waiting == CountOf(Phase::kWaiting) &&
                      load.reserving == CountOf(Phase::kReserving) &&
                      load.prefilling == CountOf(Phase::kPrefilling) &&
                      load.decoding == CountOf(Phase::kDecoding) + CountOf(Phase::kSettling);
  if (!gauges) world_.Violate(absl::StrCat(name_, ": counts what runs wrongly"));
  const auto same = [](const router::RetryCounts& a, const router::RetryCounts& b) {
    return a.failure_total == b.failure_total && a.drain_total == b.drain_total &&
           a.overload_total == b.overload_total && a.refused_total == b.refused_total;
  };
  const bool cluster = load.pauses_total == members_.pauses_total() &&
                       load.leases_expired_total == members_.leases_expired_total() &&
                       load.accounting_errors_total == 0;
  const bool totals = same(load.retries_prefill, totals_.retries_prefill) &&
                      same(load.retries_decode, totals_.retries_decode) &&
                      load.budget_exhausted_total == totals_.budget_exhausted_total &&
                      load.resumes.continued_total == totals_.resumes.continued_total &&
                      load.resumes.diverged_total == 0 && load.drain == totals_.drain;
  if (cluster && (totals || !counts_certain_)) return;
  world_.Violate(absl::StrCat(name_, ": counts what has happened wrongly"));
}

void RouterWitness::CheckTimer(const router::RouterCore& core) const {
  const int64_t wakes_us = core.NextDeadlineUs();
  const auto sleeps_beyond = [&](int64_t due_us, const std::string& what) {
    if (wakes_us <= due_us) return;
    world_.Violate(absl::StrCat(name_, ": sleeps beyond what is due: ", what, " by ",
                                wakes_us == kNeverUs ? "ever" : absl::StrCat(wakes_us - due_us)));
  };
  sleeps_beyond(members_.NextUs(), "a lease or a probation");
  if (world_.now_us() < refuse_from_us_) sleeps_beyond(refuse_from_us_, "the end of settling");
  for (const auto& [call_id, request] : requests_) {
    sleeps_beyond(request.asked.deadline_us, absl::StrCat("the deadline of call ", call_id));
    sleeps_beyond(request.until_us, absl::StrCat("what call ", call_id, " waits for"));
    sleeps_beyond(drain_ends_us_, "the end of the drain");
  }
}

}  // namespace baton::sim
