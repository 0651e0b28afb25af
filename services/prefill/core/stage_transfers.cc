// What a stage hands on: activations under credits, and KV with its commits.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "services/prefill/core/stage_state.h"

namespace baton::prefill {

// ---- Activations ----

// The oldest plan whose input buffer is in use, of some.
uint64_t Stage::State::OldestInput() const {
  return under_way.empty() ? *inputs.begin() : under_way.front().plan.number;
}

void Stage::State::On(const ActivationsArrived& event, int64_t now_us) {
  if (!Current(event.epoch)) return;
  const auto credits = static_cast<uint64_t>(options.activation_credits);
  const bool fresh = event.number > last_input && inputs.insert(event.number).second;
  if (!fresh || *inputs.rbegin() >= OldestInput() + credits) {
    return Break(absl::FailedPreconditionError(absl::StrCat("activations of plan ", event.number,
                                                            " after plan ", last_input,
                                                            " break the credit of ", credits)));
  }
  RunNext(now_us);
}

// A buffer of the next stage is number % credits, so the credit that counts is that of the plan
// which had the same buffer: plans without items leave holes, and a plain counter would not see
// them.
void Stage::State::PassActivations() {
  while (!to_pass.empty()) {
    const auto [number, tokens] = to_pass.front();
    const uint64_t oldest = uncredited.empty() ? number : *uncredited.begin();
    if (number >= oldest + static_cast<uint64_t>(options.activation_credits)) return;
    to_pass.pop_front();
    uncredited.insert(number);
    passing.emplace(epoch, number);
    Emit(SendActivations{epoch, number, tokens});
  }
}

void Stage::State::On(const CreditReturned& event, int64_t /*now_us*/) {
  if (!Current(event.epoch) || event.number <= next_stage_done) return;
  if (uncredited.erase(event.number) == 0) {
    return Break(absl::FailedPreconditionError(
        absl::StrCat("credit for plan ", event.number, ", whose activations are not out")));
  }
  PassActivations();
}

void Stage::State::On(const NextStageDone& event, int64_t /*now_us*/) {
  if (!Current(event.epoch) || event.number <= next_stage_done) return;
  Covered<"stage: the next stage is further than its credits">();
  next_stage_done = event.number;
  uncredited.erase(uncredited.begin(), uncredited.upper_bound(event.number));
  PassActivations();
}

void Stage::State::On(const ActivationsSent& event, int64_t now_us) {
  const bool was_passing = passing.erase({event.epoch, event.number}) == 1;
  BATON_CHECK(was_passing) << "activations of plan " << event.number << " were not being sent";
  if (!Current(event.epoch)) return;
  if (!event.status.ok()) {
    return Break(
        Annotate(event.status, absl::StrCat("sending activations of plan ", event.number)));
  }
  ReleaseKv();
  RunNext(now_us);
}

// ---- KV ----

uint64_t Stage::State::NewSend(uint64_t attempt_id, Request& request) {
  ++request.sends;
  sends[next_send_id] = {epoch, attempt_id};
  return next_send_id++;
}

// The request's pages up to `end_token` that have not been sent, if there are any.
std::optional<SendKv> Stage::State::SendUpTo(int end_token, uint64_t attempt_id, Request& request) {
  const int first = request.sent_pages;
  const int end = (end_token + options.page_size - 1) / options.page_size;
  if (end <= first) return std::nullopt;
  SendKv send{epoch, NewSend(attempt_id, request), attempt_id, *request.ticket, first, {}};
  send.pages.assign(request.pages.begin() + first, request.pages.begin() + end);
  request.sent_pages = end;
  return send;
}

// In the order of the plans: a commit covers what went before it. KV does not wait for a plan whose
// activations wait for a credit.
void Stage::State::ReleaseKv() {
  while (!kv_behind.empty() && passing.count({epoch, kv_behind.begin()->first}) == 0) {
    for (KvAction& action : kv_behind.begin()->second) {
      std::visit([this](auto& send) { Emit(std::move(send)); }, action);
    }
    kv_behind.erase(kv_behind.begin());
  }
  if (!kv_behind.empty()) Covered<"stage: KV waits for its plan's activations to leave">();
}

// Drops the attempt's waiting KV actions.
void Stage::State::DropKv(uint64_t attempt_id, Request& request) {
  for (auto& [number, waiting] : kv_behind) {
    request.sends -= static_cast<int>(std::erase_if(waiting, [&](const KvAction& action) {
      return std::visit(
          [&](const auto& send) {
            return send.attempt_id == attempt_id && sends.erase(send.send_id) == 1;
          },
          action);
    }));
  }
  std::erase_if(kv_behind, [](const auto& plan) {
    if (!plan.second.empty()) return false;
    Covered<"stage: an abort meets KV that waits">();
    return true;
  });
}

// Prompt tokens to report for requests still wanted; requests whose tokens are an error fail.
std::vector<PromptTokens> Stage::State::TakePromptTokens(const ComputeFinished& event) {
  std::vector<PromptTokens> told;
  for (const ComputeFinished::Prompt& prompt : event.prompts) {
    const auto found = requests.find(prompt.told.attempt_id);
    if (found == requests.end() || !found->second.sending()) continue;
    if (prompt.status.ok()) {
      told.push_back(prompt.told);
    } else {
      Covered<"stage: prompt tokens fail">();
      found->second.failure = prompt.status;
    }
  }
  return told;
}

// Tokens for stage 0, of requests that the chain decodes and that are still wanted.
std::vector<DrawnToken> Stage::State::TakeDrawn(const Plan& plan,
                                                const ComputeFinished& event) const {
  std::vector<DrawnToken> told;
  if (!Draws(options)) return told;
  size_t drawn = 0;
  for (const PlanItem& item : plan.items) {
    if (!item.final && !item.draws) continue;
    const absl::StatusOr<SampledToken>& token = event.drawn[drawn++];
    if (item.draws && requests.at(item.attempt_id).sending()) {
      told.push_back({item.attempt_id, token});
    }
  }
  return told;
}

void Stage::State::SendComputed(const Plan& plan, const ComputeFinished& event, int64_t now_us) {
  size_t drawn = 0;
  std::vector<KvAction> kv;
  for (const PlanItem& item : plan.items) {
    std::optional<absl::StatusOr<SampledToken>> token;
    if ((item.final || item.draws) && Draws(options)) token = event.drawn[drawn++];
    Request& request = requests.at(item.attempt_id);
    if (item.final) {
      request.final_computed = true;
      request.final_computed_us = now_us;
    }
    if (request.sending() && request.writes_kv) {
      if (token.has_value() && !token->ok()) request.failure = token->status();
      const int end_token = item.token_begin + item.token_count;
      if (request.sending()) {
        if (auto send = SendUpTo(end_token, item.attempt_id, request)) {
          kv.emplace_back(*std::move(send));
        }
      }
      if (request.sending() && item.final) {
        SendCommit commit{epoch, NewSend(item.attempt_id, request), item.attempt_id,
                          *request.ticket, std::nullopt};
        if (token.has_value()) commit.first_token = **token;
        kv.emplace_back(std::move(commit));
      }
    }
    CloseIfSent(item.attempt_id);
  }
  if (!kv.empty()) {
    std::vector<KvAction>& waiting = kv_behind[plan.number];
    std::move(kv.begin(), kv.end(), std::back_inserter(waiting));
  }
  ReleaseKv();
}

// What opened requests have in the cache is handed over while their first chunks are computed: the
// plans that have computed it are through.
void Stage::State::SendCached(const Plan& plan) {
  for (const PlanOpen& open : plan.opens) {
    const auto found = requests.find(open.attempt_id);
    if (open.cached_tokens == 0 || found == requests.end()) continue;
    Request& request = found->second;
    if (!request.sending() || !request.writes_kv) continue;
    if (auto send = SendUpTo(open.cached_tokens, open.attempt_id, request)) {
      kv_behind[plan.number].emplace_back(*std::move(send));
    }
  }
  ReleaseKv();
}

void Stage::State::On(const KvSent& event, int64_t now_us) {
  const auto sent = sends.find(event.send_id);
  BATON_CHECK(sent != sends.end() && sent->second.epoch == event.epoch)
      << "send " << event.send_id << " was not under way";
  const uint64_t attempt_id = sent->second.attempt_id;
  sends.erase(sent);
  if (!Current(event.epoch)) return;
  const auto found = requests.find(attempt_id);
  BATON_CHECK(found != requests.end()) << "attempt " << attempt_id << " closed while sending";
  Request& request = found->second;
  --request.sends;
  request.report.kv_bytes += event.bytes;
  request.report.kv_transfer_us += event.transfer_us;
  if (request.final_computed) request.report.kv_exposed_us = now_us - request.final_computed_us;
  // After an abort sends end early: that is no failure.
  if (!event.status.ok() && request.failure.ok() && !request.aborted) {
    request.failure = event.status;
  }
  CloseIfSent(attempt_id);
}

// Reports the request closed once nothing more of it will be sent, and forgets it once nothing more
// of it will be computed.
void Stage::State::CloseIfSent(uint64_t attempt_id) {
  const auto found = requests.find(attempt_id);
  BATON_CHECK(found != requests.end()) << "attempt " << attempt_id;
  Request& request = found->second;
  const bool computed = request.final_computed || request.aborted;
  const bool over = computed || !request.failure.ok();
  if (request.sends > 0 || !over) return;
  if (!request.closed) {
    request.closed = true;
    request.report.status = request.failure;
    if (request.report.status.ok() && request.aborted && request.ticket.has_value()) {
      request.report.status = absl::CancelledError("aborted by the chain's planner");
    }
    Emit(ReportRequestClosed{epoch, request.report});
  }
  if (computed) Forget(attempt_id);
}

void Stage::State::Forget(uint64_t attempt_id) {
  for (const int page : requests.at(attempt_id).pages) {
    if (--page_users.at(page) == 0) page_users.erase(page);
  }
  requests.erase(attempt_id);
}

}  // namespace baton::prefill
