// Requests that the chain decodes itself: their rows in plans, and what becomes of drawn tokens.
//
// Plans that draw tokens have slots: one for each stage to compute, and extra_slots. So many are
// under way at most, and each has at most its part of the requests that decode. Those whose token
// has been known the longest go first. Rejected: as many plans ahead as without decoding; they
// begin when the tokens of those before them are known, have none of them, and are read for few
// rows.
//
// A chain of one process feeds ahead: while a plan runs, the next one has the steps behind those
// that it draws, so the process need not wait for the planner between two plans. A text that a stop
// token ends has had a step in vain. SGLang's overlap scheduler does the same.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "services/prefill/core/planner_state.h"

namespace baton::prefill {
namespace {

// How much of a prompt goes beside decode steps while it is not known what it costs.
constexpr int kPagesOfUnknownCost = 2;

// How much longer than with one page a plan may take where no time is enough.
constexpr double kLeastOverAPage = 1.25;

}  // namespace

int ChainPlanner::State::TokenLimitOf(const StartRequested& event) const {
  if (event.ticket.has_value()) return 0;
  return std::min(event.stop.max_tokens, limits.max_context_tokens - event.prompt_tokens);
}

absl::Status ChainPlanner::State::CheckDecoded(const StartRequested& event) const {
  if (!limits.decodes) {
    return absl::FailedPreconditionError("this prefill chain does not decode; a ticket is missing");
  }
  if (!event.writers.empty() && limits.granting.id.empty()) {
    return absl::FailedPreconditionError("this chain is granted no KV");
  }
  if (event.stop.max_tokens < 1) {
    return InvalidField("sampling.max_tokens",
                        absl::StrCat(event.stop.max_tokens, " is not positive"));
  }
  if (event.prompt_tokens < limits.max_context_tokens) return absl::OkStatus();
  return InvalidField("prompt_token_ids",
                      absl::StrCat(event.prompt_tokens, " tokens leave no room for a new one in a ",
                                   "context of ", limits.max_context_tokens));
}

void ChainPlanner::State::AddRows(Plan& plan, int64_t now_us) {
  row_work = {};
  row_waits_us.clear();
  const auto decoding = static_cast<int>(std::count_if(
      open.begin(), open.end(), [this](uint64_t id) { return requests.at(id).decoding(); }));
  decodes_now = decoding > 0 || !ready.empty();
  const auto most = static_cast<size_t>(limits.slot_requests);
  const auto share =
      FeedsAhead()
          ? most
          : static_cast<size_t>(limits.RowsOfSlot(decoding, static_cast<int>(done.size())));
  std::vector<uint64_t> fed;
  for (auto next = ready.begin(); next != ready.end() && plan.items.size() < most;) {
    const uint64_t attempt_id = *next;
    Request& request = requests.at(attempt_id);
    const bool overdue =
        limits.decode_max_wait_us > 0 && now_us - request.drawn_us >= limits.decode_max_wait_us;
    if (plan.items.size() >= share && !overdue) break;  // Nor is any behind it.
    if (!HasPageForRow(request)) {
      ++next;
      continue;
    }
    next = ready.erase(next);
    if (!request.told) Tell(attempt_id, request, plan);
    const bool known = request.next_fed() < request.text.size();
    if (!known) Covered<"planner: a step is issued before its token is drawn">();
    plan.items.push_back({.attempt_id = attempt_id,
                          .token_begin = request.planned_tokens,
                          .token_count = 1,
                          .draws = true,
                          .token = known ? request.text.back() : kTokenAhead,
                          .new_page = std::exchange(request.new_page, -1)});
    row_work.Add(request.planned_tokens, 1);
    row_waits_us.push_back(known ? now_us - request.drawn_us : 0);
    ++request.planned_tokens;
    request.last_plan = plan.number;
    fed.push_back(attempt_id);
  }
  for (const uint64_t attempt_id : fed) FeedAhead(attempt_id);
}

// A plan draws the request's next token: the plan behind it feeds that, unless the text is as long
// as it may be by then.
void ChainPlanner::State::FeedAhead(uint64_t attempt_id) {
  if (!FeedsAhead()) return;
  const Request& request = requests.at(attempt_id);
  if (static_cast<int>(request.next_fed()) + 1 < request.token_limit) ready.push_back(attempt_id);
}

size_t ChainPlanner::State::PlansThatDraw() const {
  return static_cast<size_t>(std::count_if(
      plans.begin(), plans.end(),
      [this](const IssuedPlan& plan) { return plan.number > done.back() && !plan.draws.empty(); }));
}

// What stage 0 has yet to compute before a plan that is issued now. At most, if costs are known.
double ChainPlanner::State::AheadMicros() const {
  double micros = 0;
  for (const IssuedPlan& plan : plans) {
    if (plan.number > done.front() && !plan.predicted_us.empty()) micros += plan.predicted_us[0];
  }
  return micros;
}

// On the stage that takes longest. Costs are known.
double ChainPlanner::State::MicrosOf(const PlanWork& work) const {
  double micros = 0;
  for (const StageCost& cost : costs) micros = std::max(micros, cost.Micros(work));
  return micros;
}

// How many pages behind the prefix no stage is predicted to take longer for, with the plan's rows.
int ChainPlanner::State::PagesWithin(double micros, int prefix_length, int most) const {
  const auto fits = [&](int pages) {
    PlanWork work = row_work;
    work.Add(prefix_length, pages * limits.page_size);
    return MicrosOf(work) <= micros;
  };
  int fitting = 0;
  int above = most + 1;
  while (above - fitting > 1) {
    const int middle = fitting + (above - fitting) / 2;
    (fits(middle) ? fitting : above) = middle;
  }
  return fitting;
}

// At most `tokens` of the prompt that leads, in whole pages: as many as the time allows that the
// plan may take. Where that is little beside what any chunk costs, plans take somewhat longer than
// one with a page would: beside many rows, prompts would hardly get on by pages. A plan without
// rows waits for stage 0, if it would have to be smaller for what is ahead of it.
//
// Rejected: every second plan with rows alone, and the others larger. Rows are then computed twice
// for what one plan reads, and the largest gap between tokens is the larger plan's.
int ChainPlanner::State::BoundByTime(int prefix_length, int tokens) const {
  double micros = limits.target_itl_us > 0 && row_work.tokens > 0
                      ? static_cast<double>(limits.target_itl_us)
                      : kMaxCostMicros;
  const bool waits = limits.decode_max_wait_us > 0 && decodes_now;
  if (waits) micros = std::min(micros, static_cast<double>(limits.decode_max_wait_us));
  if (micros == kMaxCostMicros) return tokens;
  const bool ahead = waits && row_work.tokens == 0 && issued > done.front();
  if (costs.empty()) {
    return ahead ? 0 : std::min(tokens, kPagesOfUnknownCost * limits.page_size);
  }
  PlanWork page = row_work;
  page.Add(prefix_length, limits.page_size);
  micros = std::max(micros, kLeastOverAPage * MicrosOf(page));
  const int most = PagesFor(std::min(tokens, limits.max_context_tokens));
  const int fitting = PagesWithin(micros, prefix_length, most);
  if (ahead && PagesWithin(micros - AheadMicros(), prefix_length, fitting) < fitting) return 0;
  return fitting >= most ? tokens : fitting * limits.page_size;
}

// The tokens come in the order of the draws; those of requests that ended on the stage are left
// out.
void ChainPlanner::State::TakeDrawn(const std::vector<uint64_t>& draws, const PlanDone& plan_done,
                                    int64_t now_us) {
  auto next = plan_done.drawn.begin();
  for (const uint64_t attempt_id : draws) {
    const bool came = next != plan_done.drawn.end() && next->attempt_id == attempt_id;
    const auto drawn = came ? next++ : plan_done.drawn.end();
    Request* request = FindUnfinished(attempt_id);
    if (request == nullptr) continue;
    if (!came) {
      Fail(attempt_id,
           absl::InternalError(absl::StrCat("plan ", plan_done.number, " gave no token")));
    } else if (!drawn->token.ok()) {
      Fail(attempt_id, drawn->token.status());
    } else if (drawn->token->token < 0 || drawn->token->token >= limits.vocab_size) {
      Fail(attempt_id,
           absl::InternalError(absl::StrCat("drawn token ", drawn->token->token,
                                            " is outside the vocabulary of ", limits.vocab_size)));
    } else {
      request->drawn_us = now_us;
      if (TakeToken(attempt_id, *request, *drawn->token) && !FeedsAhead()) {
        ready.push_back(attempt_id);
      }
    }
  }
}

// Whether the text goes on behind it.
bool ChainPlanner::State::TakeToken(uint64_t attempt_id, Request& request,
                                    const SampledToken& token) {
  if (request.text.empty()) {
    if (absl::Status status = request.CheckPromptTokens(); !status.ok()) {
      Fail(attempt_id, std::move(status));
      return false;
    }
    Emit(PromptDone{attempt_id, std::exchange(request.outcome, {})});
  }
  const bool stops = request.stop.Stops(request.drawn(), token.token);
  request.text.push_back(token.token);
  Emit(DeliverToken{attempt_id, token});
  if (!stops && request.drawn() < request.token_limit) return !request.retracting;
  Finish(attempt_id, request, absl::OkStatus(),
         stops ? FinishReason::kStop : FinishReason::kLength);
  // The stages have nothing to do for it, and are told so.
  if (!request.retracting) Close(attempt_id, request);
  return false;
}

}  // namespace baton::prefill
