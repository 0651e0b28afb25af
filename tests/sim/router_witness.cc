#include "tests/sim/router_witness.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton::sim {

bool RouterWitness::Request::UsesDecode(const InstanceRef& instance) const {
  const std::vector<InstanceRef>& followers = pair.followers;
  return pair.decode == instance ||
         std::find(followers.begin(), followers.end(), instance) != followers.end();
}

bool RouterWitness::Request::UsesChain(const InstanceRef& instance) const {
  return std::any_of(pair.chain.stages.begin(), pair.chain.stages.end(),
                     [&instance](const KvWriter& stage) { return stage.instance == instance; });
}

void RouterWitness::Saw(const router::Event& event, const std::vector<router::Action>& actions,
                        const router::RouterCore& core) {
  if (!world_.violation().empty()) return;
  anybody_fails_ = serves_ = false;
  give_way_.clear();
  perhaps_refused_.reset();
  if (members_.NoticePause()) HearPause();
  std::visit([this](const auto& e) { Hear(e); }, event);
  const auto lost = members_.Take(event, actions, core.membership());
  for (const MembersWitness::Lost& worker : lost) HearLost(worker);
  if (std::holds_alternative<router::Tick>(event)) {
    for (auto& [call_id, request] : requests_) HearTimer(request);
  }
  HearDrainEnd();
  for (const router::Action& action : actions) {
    std::visit([this](const auto& a) { See(a); }, action);
    if (!world_.violation().empty()) return;  // What follows would rest on it.
  }
  CheckDone();
  // Any other token changes nothing for those who wait.
  if (serves_ || !std::holds_alternative<router::TokenReceived>(event)) CheckWaiting();
  members_.Check(event, actions, core);
  CheckLoad(core.load());
  CheckTimer(core);
}

void RouterWitness::Complain(uint64_t call_id, const std::string& what) {
  world_.Violate(absl::StrCat(name_, ", call ", call_id, ": ", what));
}

RouterWitness::Request* RouterWitness::OfCall(uint64_t call_id) {
  const auto found = requests_.find(call_id);
  return found == requests_.end() ? nullptr : &found->second;
}

RouterWitness::Request* RouterWitness::OfAttempt(uint64_t attempt_id) {
  const auto found = calls_.find(attempt_id);
  return found == calls_.end() ? nullptr : OfCall(found->second);
}

int RouterWitness::CountWaiting() const {
  return static_cast<int>(std::count_if(requests_.begin(), requests_.end(),
                                        [](const auto& entry) { return entry.second.waits(); }));
}

int RouterWitness::CountOf(Phase phase) const {
  return static_cast<int>(
      std::count_if(requests_.begin(), requests_.end(),
                    [phase](const auto& entry) { return entry.second.phase == phase; }));
}

// ---- Clients ----

std::optional<RouterWitness::End> RouterWitness::RefusalOf(const router::CallSubmitted& event) {
  const auto refused = [](absl::StatusCode code, bool overloaded = false, bool by_drain = false) {
    return End{std::nullopt, code, "router", "", by_drain, overloaded};
  };
  if (world_.now_us() >= refuse_from_us_) {
    ++totals_.drain.refused_total;
    return refused(absl::StatusCode::kUnavailable, false, /*by_drain=*/true);
  }
  for (const auto& [call_id, request] : requests_) {
    if (request.asked.request_id != event.request_id) continue;
    return refused(absl::StatusCode::kAlreadyExists);
  }
  const std::set<uint64_t> givers = WhoGivesWayTo(event.tenant);
  const auto has_told = [this](uint64_t call_id) { return requests_.at(call_id).told > 0; };
  const bool none_gives = std::ranges::all_of(givers, has_told);
  const bool crowded = static_cast<int>(requests_.size()) >= limits_.max_requests;
  if (crowded && none_gives) {
    return refused(absl::StatusCode::kResourceExhausted, /*overloaded=*/true);
  }
  if (event.deadline_us <= world_.now_us()) return refused(absl::StatusCode::kDeadlineExceeded);
  const bool no_place = crowded || CountOf(Phase::kWaiting) >= limits_.max_waiting;
  const bool queue_full = no_place && none_gives;
  const auto takes_a_place = [&] {
    if (!no_place) return;
    give_way_ = givers;
    std::erase_if(give_way_, has_told);
    if (give_way_.size() < givers.size()) perhaps_refused_ = event.call_id;
  };
  if (members_.Pairs().empty()) {
    if (PairAwaitedUntilUs() == 0) return refused(absl::StatusCode::kUnavailable);
    if (queue_full) return refused(absl::StatusCode::kResourceExhausted, /*overloaded=*/true);
    takes_a_place();
    return std::nullopt;
  }
  Request request;
  request.asked = event;
  if (!FitsSome(request, nullptr, /*with_room=*/false)) {
    return refused(absl::StatusCode::kInvalidArgument);
  }
  const bool must_wait =
      CountOf(Phase::kWaiting) > 0 || !FitsSome(request, nullptr, /*with_room=*/true);
  if (must_wait && queue_full) {
    return refused(absl::StatusCode::kResourceExhausted, /*overloaded=*/true);
  }
  if (must_wait) takes_a_place();
  return std::nullopt;
}

std::set<uint64_t> RouterWitness::WhoGivesWayTo(const std::string& tenant) const {
  std::map<std::string, std::pair<size_t, std::pair<uint64_t, uint64_t>>> waiting;
  for (const auto& [call_id, request] : requests_) {
    if (request.phase != Phase::kWaiting) continue;
    auto& [count, last] = waiting[request.asked.tenant];
    ++count;
    last = std::max(last, std::pair(request.order, call_id));
  }
  const size_t own = waiting.contains(tenant) ? waiting.at(tenant).first : 0;
  size_t most = own + 2;
  for (const auto& [name, of] : waiting) most = std::max(most, of.first);
  std::set<uint64_t> givers;
  for (const auto& [name, of] : waiting) {
    if (of.first == most) givers.insert(of.second.second);
  }
  return givers;
}

void RouterWitness::Hear(const router::CallSubmitted& event) {
  const std::optional<End> refusal = RefusalOf(event);
  if (refusal.has_value()) {
    ends_due_[event.call_id] = *refusal;
    return;
  }
  Request request;
  request.asked = event;
  request.order = ++admitted_;
  if (CountOf(Phase::kWaiting) == 0) wait_for_room_ = !members_.Pairs().empty();
  request.until_us = wait_for_room_ ? kNeverUs : world_.now_us() + limits_.pairing_timeout_us;
  requests_[event.call_id] = std::move(request);
}

void RouterWitness::Hear(const router::ClientGone& event) {
  Request* request = OfCall(event.call_id);
  if (request == nullptr) return;
  MustClose(*request);
  requests_.erase(event.call_id);
}

void RouterWitness::Hear(const router::AbortCalled& event) {
  abort_reply_due_ = absl::StatusCode::kNotFound;
  for (auto& [call_id, request] : requests_) {
    if (request.asked.request_id != event.request_id) continue;
    abort_reply_due_ = absl::StatusCode::kOk;
    MustEnd(request, {request.complete() ? request.answer : FinishReason::kAbort});
    MustClose(request);
  }
}

void RouterWitness::Hear(const router::StopMatched& event) {
  Request* request = OfCall(event.call_id);
  if (request == nullptr || request->told == 0 || request->phase == Phase::kSettling) return;
  if (request->phase != Phase::kDecoding) {
    MustEnd(*request, {FinishReason::kStop});
    return MustClose(*request);
  }
  MustCloseDecode(*request);
  Complete(*request, FinishReason::kStop);
}

void RouterWitness::Hear(const router::RouterDrainBegan& event) {
  refuse_from_us_ = std::min(refuse_from_us_, world_.now_us() + event.settle_us);
  drain_ends_us_ = std::min(drain_ends_us_, refuse_from_us_ + event.timeout_us);
}

void RouterWitness::HearDrainEnd() {
  drain_over_ = world_.now_us() >= drain_ends_us_;
  if (!drain_over_) return;
  counts_certain_ = counts_certain_ && !anybody_fails_;
  for (auto& [call_id, request] : requests_) {
    if (ends_due_.contains(call_id)) continue;
    if (request.complete()) {
      MustEnd(request, {request.answer});
    } else if (!request.failing.has_value()) {
      ++totals_.drain.time_over_total;
      MustEnd(request, {std::nullopt, absl::StatusCode::kUnavailable, "router", "", true, false});
    }
    MustClose(request);
  }
}

// ---- Workers ----

void RouterWitness::Hear(const router::HeartbeatReceived& event) {
  const std::optional<InstanceRef> sender = members_.WorkerOf(event.rpc_id);
  if (!sender.has_value()) return;  // It is not answered.
  const InstanceRef& instance = *sender;
  int needed = 0;
  for (const auto& [call_id, request] : requests_) {
    const bool holds_decode = request.attempt != 0 && request.UsesDecode(instance) &&
                              (request.decode_open || request.prefill_open);
    needed += holds_decode || (request.needs_chain() && request.UsesChain(instance)) ? 1 : 0;
  }
  needed_requests_due_ = event.draining ? needed : 0;
  const Work own = WorkOn(instance);
  const auto& info = members_.Find(instance)->info;
  const int64_t used_pages = std::max(0, members_.UsablePages(info) - event.load.free_pages);
  Others& others = others_[instance];
  others.prompt_tokens = std::max<int64_t>(0, event.load.queued_tokens - own.prompt_tokens);
  others.context_tokens =
      std::max<int64_t>(0, used_pages * info.fingerprint.kv_layout.page_size - own.context_tokens);
  others.requests = std::max(0, event.load.running_requests + event.load.queued_requests -
                                    own.chain_requests - own.decode_requests);
}

void RouterWitness::HearLost(const MembersWitness::Lost& lost) {
  const InstanceRef& instance = lost.member.info.instance;
  others_.erase(instance);
  lost_.insert(instance);
  const bool chain = lost.member.info.role == Role::kPrefill;
  absl::Status status = absl::UnavailableError("lost");
  if (lost.left) status = EndedByDrain(std::move(status));
  status = WithLeg(std::move(status), chain ? "prefill" : "decode", instance.id);
  for (auto& [call_id, request] : requests_) {
    const bool needs =
        chain ? request.needs_chain() && request.UsesChain(instance)
              : request.attempt != 0 && request.decode_open && request.UsesDecode(instance);
    if (needs) Fail(request, chain ? Role::kPrefill : Role::kDecode, status);
  }
}

// ---- Legs ----

void RouterWitness::Hear(const router::ReserveReplied& event) {
  Request* request = OfAttempt(event.attempt_id);
  if (request == nullptr || request->phase != Phase::kReserving) return;
  if (!event.ticket.ok()) return Fail(*request, Role::kDecode, event.ticket.status());
  // The ticket is from another life with the same name.
  if (event.ticket->decode != request->pair.decode ||
      event.ticket->followers != request->pair.followers) {
    return Fail(*request, Role::kDecode, absl::InternalError("another one's ticket"));
  }
  request->phase = Phase::kPrefilling;
  request->prefill_open = true;
  ticket_ = event;
  stream_due_ = start_due_ = true;
}

void RouterWitness::Hear(const router::TokenReceived& event) {
  Request* request = OfAttempt(event.attempt_id);
  if (request == nullptr) return;
  if (request->phase != Phase::kPrefilling && request->phase != Phase::kDecoding) return;
  if (std::exchange(request->redraws, false)) {  // The same one: prompts have one text.
    ++totals_.resumes.continued_total;
    Serves(*request);
  } else if (request->awaits_prompt()) {
    ++request->held;
  } else {
    Tell(*request, 1);
  }
}

void RouterWitness::Tell(Request& request, int tokens) {
  if (tokens == 0) return;
  tokens_due_[request.asked.call_id] += tokens;
  request.told += tokens;
  if (request.phase == Phase::kPrefilling) Serves(request);
}

void RouterWitness::Serves(Request& request) {
  request.phase = Phase::kDecoding;
  request.prefill_counts = false;
  serves_ = true;
  members_.Served(request.pair.decode);
  for (const InstanceRef& follower : request.pair.followers) members_.Served(follower);
  for (const KvWriter& stage : request.pair.chain.stages) members_.Served(stage.instance);
}

void RouterWitness::Hear(const router::DecodeEnded& event) {
  Request* request = OfAttempt(event.attempt_id);
  if (request == nullptr) return;
  if (request->phase != Phase::kPrefilling && request->phase != Phase::kDecoding) return;
  if (!event.outcome.ok()) return Fail(*request, Role::kDecode, event.outcome.status());
  request->decode_open = false;
  Complete(*request, *event.outcome);
}

void RouterWitness::Hear(const router::PrefillEnded& event) {
  Request* request = OfAttempt(event.attempt_id);
  if (request == nullptr || !request->prefill_open) return;
  if (!event.status.ok()) return Fail(*request, Role::kPrefill, event.status);
  request->prefill_open = request->prefill_counts = false;
  if (request->awaits_prompt()) {
    prompt_due_ = request->asked.call_id;
    request->prompt_told = true;
    Tell(*request, std::exchange(request->held, 0));
  }
  if (request->phase != Phase::kSettling) return;
  MustEnd(*request, {request->answer});
  MustClose(*request);
}

void RouterWitness::Complete(Request& request, FinishReason reason) {
  if (!request.prefill_open) return MustEnd(request, {reason});
  request.answer = reason;
  request.phase = Phase::kSettling;
  request.until_us = request.awaits_prompt() ? kNeverUs : world_.now_us() + limits_.settle_us;
}

// It has waited in vain since a drain handed it back; one with a text is counted as ended by that.
RouterWitness::End RouterWitness::EndOfDrained(const Request& request) {
  totals_.drain.worker_total += request.told > 0 ? 1 : 0;
  End end = request.failed->otherwise;
  end.leg = "router";
  end.instance = "";
  return end;
}

// ---- Time ----

void RouterWitness::Hear(const router::Tick& /*event*/) {}

void RouterWitness::HearPause() {
  const int64_t until_us = world_.now_us() + limits_.membership.lease_us;
  for (auto& [call_id, request] : requests_) {
    if (!request.waits() || wait_for_room_ || std::exchange(request.excused, true)) continue;
    request.until_us = std::max(request.until_us, until_us);
  }
  if (world_.now_us() < next_pause_counts_from_us_) return;
  pair_awaited_until_us_ = until_us;
  next_pause_counts_from_us_ = until_us + limits_.membership.lease_us;
}

int64_t RouterWitness::PairAwaitedUntilUs() const {
  const int64_t after_pause_us =
      world_.now_us() < pair_awaited_until_us_ ? pair_awaited_until_us_ : 0;
  return std::max(members_.PairExpectedUntilUs(), after_pause_us);
}

void RouterWitness::HearTimer(Request& request) {
  const int64_t now_us = world_.now_us();
  if (request.failing.has_value() || ends_due_.contains(request.asked.call_id)) return;
  const bool over = request.asked.deadline_us <= now_us;
  if (!over && request.until_us > now_us) return;
  if (request.complete()) {
    MustEnd(request, {request.answer});
    return MustClose(request);
  }
  End end{std::nullopt, absl::StatusCode::kDeadlineExceeded, "router", "", false, false};
  switch (request.phase) {
    case Phase::kWaiting:
      if (over) break;
      end.code = absl::StatusCode::kUnavailable;
      if (request.failed.has_value()) end = request.failed->otherwise;
      if (end.by_drain) end = EndOfDrained(request);
      break;
    case Phase::kPrefilling:
    case Phase::kSettling:
      end.leg = "prefill";
      end.instance = request.pair.chain.stage0.id;
      break;
    case Phase::kReserving:
    case Phase::kDecoding:
      end.leg = request.pair.colocated() ? "prefill" : "decode";
      end.instance = request.pair.decode.id;
      break;
  }
  MustEnd(request, end);
  MustClose(request);
}

}  // namespace baton::sim
