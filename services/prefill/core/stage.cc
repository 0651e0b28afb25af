#include "services/prefill/core/stage.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "common/kv/head_routes.h"
#include "services/prefill/core/stage_state.h"

namespace baton::prefill {

// ---- Epochs ----

void Stage::State::On(const EpochBegan& event, int64_t now_us) {
  DropEpoch();
  BATON_CHECK(under_way.empty() && passing.empty() && sends.empty())
      << "an epoch begins while work of an older one is under way";
  BATON_CHECK(event.epoch > newest_epoch) << event.epoch << " after " << newest_epoch;
  epoch = newest_epoch = event.epoch;
  free_since_us = now_us;
}

void Stage::State::On(const EpochEnded& /*event*/, int64_t /*now_us*/) { DropEpoch(); }

void Stage::State::DropEpoch() {
  if (epoch != 0 && WithExecutor() > 1) Covered<"stage: an epoch ends with several submitted">();
  // The executor tells the end of what it has been given, and of nothing else.
  std::erase_if(under_way, [](const UnderWay& plan) { return plan.plan.items.empty(); });
  for (const auto& [number, waiting] : kv_behind) {
    Covered<"stage: an epoch ends with KV that waits">();
    for (const KvAction& action : waiting) {
      std::visit([this](const auto& send) { sends.erase(send.send_id); }, action);
    }
  }
  kv_behind.clear();
  epoch = 0;
  last_number = 0;
  applied = 0;
  last_input = 0;
  plans.clear();
  requests.clear();
  page_users.clear();
  inputs.clear();
  to_pass.clear();
  uncredited.clear();
  next_stage_done = 0;
}

void Stage::State::Break(absl::Status status) {
  DropEpoch();
  Covered<"stage: an epoch ends for an error">();
  Emit(EndEpoch{std::move(status)});
}

// ---- Plans ----

// Whether the item is the next one of the request: a chunk from where the last one ended, or behind
// the prompt the token that was drawn last.
bool Stage::State::Fits(const PlanItem& item, const Request& request) const {
  const int end = item.token_begin + item.token_count;
  const size_t pages = request.pages.size() + (item.new_page >= 0 ? 1 : 0);
  const bool in_pages = static_cast<size_t>(end) <= pages * static_cast<size_t>(options.page_size);
  if (item.token_begin != request.planned_tokens || item.token_count < 1 || !in_pages) return false;
  const bool decodes = !request.ticket.has_value();
  if (decodes && item.token_begin >= request.read_tokens) {
    const bool alone = options.stages == 1 && options.tensor_rank.size == 1;
    return item.token_count == 1 && item.draws && !item.final &&
           (item.token != kTokenAhead || alone);
  }
  const bool ends = end == request.read_tokens;
  return end <= request.read_tokens && item.new_page < 0 &&
         item.token_begin % options.page_size == 0 && item.final == (ends && !decodes) &&
         item.draws == (ends && decodes);
}

absl::Status Stage::State::CheckItem(const Plan& plan, const PlanItem& item) const {
  const auto found = requests.find(item.attempt_id);
  const auto opened = std::find_if(plan.opens.begin(), plan.opens.end(), [&](const PlanOpen& open) {
    return open.attempt_id == item.attempt_id;
  });
  Request request;
  if (found != requests.end()) {
    if (found->second.abort_arrived) {
      return absl::FailedPreconditionError(absl::StrCat("plan ", plan.number, " names attempt ",
                                                        item.attempt_id, " after its abort"));
    }
  } else if (opened != plan.opens.end()) {
    request = RequestOf(*opened);
  } else {
    return absl::FailedPreconditionError(
        absl::StrCat("plan ", plan.number, " names attempt ", item.attempt_id, ", never opened"));
  }
  const Request& named = found != requests.end() ? found->second : request;
  if (Fits(item, named)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "plan ", plan.number, " has tokens [", item.token_begin, ", ",
      item.token_begin + item.token_count, ") of attempt ", item.attempt_id, " after ",
      named.planned_tokens, " of ", named.read_tokens, " in ", named.pages.size(), " pages"));
}

absl::Status Stage::State::CheckOpen(const Plan& plan, const PlanOpen& open) const {
  if (open.ticket &&
      (open.ticket->first_page < 0 || open.ticket->first_page >= open.ticket->prompt_pages)) {
    return absl::FailedPreconditionError(
        absl::StrCat("plan ", plan.number, " has attempt ", open.attempt_id, " send from page ",
                     open.ticket->first_page, " of ", open.ticket->prompt_pages));
  }
  const int cached = open.cached_tokens;
  if (open.adopted() && open.drawn.empty()) return absl::OkStatus();
  if (cached >= 0 && cached % options.page_size == 0 && cached < open.read_tokens()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("plan ", plan.number, " has ", cached,
                                                    " tokens of attempt ", open.attempt_id,
                                                    " cached, of ", open.read_tokens()));
}

absl::Status Stage::State::CheckPlan(const Plan& plan) const {
  if (plan.epoch != epoch) {
    return absl::FailedPreconditionError(
        absl::StrCat("plan ", plan.number, " is of epoch ", plan.epoch, ", not ", epoch));
  }
  if (plan.number != last_number + 1) {
    Covered<"stage: a plan comes twice or too early">();
    return absl::FailedPreconditionError(absl::StrCat(
        "plan ", plan.number, plan.number <= last_number ? " came twice" : " came too early",
        ": expected ", last_number + 1));
  }
  if (static_cast<int>(plans.size()) >= options.plan_limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat(plans.size(), " plans are held; plan ", plan.number, " is one too many"));
  }
  std::set<uint64_t> opened;
  for (const PlanOpen& open : plan.opens) {
    if (requests.count(open.attempt_id) == 0 && opened.insert(open.attempt_id).second) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("plan ", plan.number, " opens attempt ", open.attempt_id, " again"));
  }
  std::set<uint64_t> named(plan.aborts.begin(), plan.aborts.end());
  for (const PlanItem& item : plan.items) {
    if (!named.insert(item.attempt_id).second) {
      return absl::FailedPreconditionError(
          absl::StrCat("plan ", plan.number, " names attempt ", item.attempt_id, " twice"));
    }
    BATON_RETURN_IF_ERROR(CheckItem(plan, item));
    opened.erase(item.attempt_id);
  }
  if (!opened.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("plan ", plan.number, " opens attempt ",
                                                      *opened.begin(), " without a chunk of it"));
  }
  for (const PlanOpen& open : plan.opens) BATON_RETURN_IF_ERROR(CheckOpen(plan, open));
  return absl::OkStatus();
}

bool Stage::State::WritesTo(const Ticket& ticket) const {
  const TensorRank own = options.tensor_rank;
  const auto sources = SourcesOf(options.kv_heads, own.size, ticket.ranks());
  BATON_CHECK(sources.ok()) << sources.status();
  return std::find(sources->begin(), sources->end(), own.rank) != sources->end();
}

Stage::State::Request Stage::State::RequestOf(const PlanOpen& open) const {
  Request request;
  request.ticket = open.ticket;
  request.prompt_tokens = open.prompt_tokens();
  request.read_tokens = open.read_tokens();
  request.pages = open.pages;
  request.planned_tokens = open.cached_tokens;
  request.adopted = open.adopted();
  request.writes_kv = open.ticket.has_value() && WritesTo(*open.ticket);
  if (open.ticket.has_value()) request.sent_pages = open.ticket->first_page;
  request.report.attempt_id = open.attempt_id;
  return request;
}

void Stage::State::Accept(const Plan& plan) {
  last_number = plan.number;
  for (const PlanOpen& open : plan.opens) {
    requests[open.attempt_id] = RequestOf(open);
    for (const int page : open.pages) ++page_users[page];
  }
  for (const PlanItem& item : plan.items) {
    Request& request = requests[item.attempt_id];
    request.planned_tokens = item.token_begin + item.token_count;
    if (item.new_page < 0) continue;
    request.pages.push_back(item.new_page);
    ++page_users[item.new_page];
  }
  for (const uint64_t attempt_id : plan.aborts) {
    const auto found = requests.find(attempt_id);
    if (found != requests.end()) found->second.abort_arrived = true;
  }
}

void Stage::State::On(const PlanArrived& event, int64_t now_us) {
  const Plan& plan = event.plan;
  if (epoch == 0 || plan.epoch < epoch) return;  // From an ended link.
  if (absl::Status status = CheckPlan(plan); !status.ok()) return Break(std::move(status));
  Accept(plan);
  plans.push_back({plan, now_us});
  RunNext(now_us);
}

// ---- Computing ----

// The oldest plan whose output buffer is in use, `number` if there is none before it.
uint64_t Stage::State::OldestOutput(uint64_t number) const {
  uint64_t oldest = number;
  if (!to_pass.empty()) oldest = std::min(oldest, to_pass.front().first);
  if (!passing.empty()) oldest = std::min(oldest, passing.begin()->second);
  if (!under_way.empty()) oldest = std::min(oldest, under_way.front().plan.number);
  return oldest;
}

bool Stage::State::OutputBufferFree(uint64_t number) const {
  if (options.stage + 1 == options.stages) return true;
  const auto buffers = static_cast<uint64_t>(OutputBuffers(options.plans_in_flight));
  return OldestOutput(number) + buffers > number;
}

bool Stage::State::Ready(const Plan& plan) const {
  const bool input = options.stage == 0 || inputs.count(plan.number) != 0;
  return input && OutputBufferFree(plan.number);
}

int Stage::State::WithExecutor() const {
  return static_cast<int>(std::count_if(under_way.begin(), under_way.end(),
                                        [](const UnderWay& p) { return !p.plan.items.empty(); }));
}

// Gives plans to the executor in order while nothing stands in the way.
void Stage::State::RunNext(int64_t now_us) {
  while (!plans.empty()) {
    const Plan& plan = plans.front().plan;
    std::optional<RunCompute> run;
    UnderWay next;
    if (!plan.items.empty()) {
      const int before = WithExecutor();
      if (before >= options.plans_in_flight || !Ready(plan)) return;
      if (before > 0) Covered<"stage: a plan is submitted ahead">();
      run = Compose(plans.front(), now_us);
      next.wait_us = run->wait_us;
      inputs.erase(plan.number);
      last_input = plan.number;
    } else if (!under_way.empty()) {
      Covered<"stage: a plan without items waits for its turn">();
    }
    next.epoch = epoch;
    next.plan = std::move(plans.front().plan);
    under_way.push_back(std::move(next));
    plans.pop_front();
    TakeTurns();
    if (run.has_value()) Emit(*std::move(run));
  }
}

// The first plan under way takes effect; one without items is done with that.
void Stage::State::TakeTurns() {
  while (!under_way.empty() && !under_way.front().in_effect) {
    UnderWay& next = under_way.front();
    next.in_effect = true;
    ++applied;
    ApplyAborts(next.plan);
    if (next.epoch == epoch) SendCached(next.plan);
    if (!next.plan.items.empty()) return;
    Emit(ReportPlanDone{epoch, {next.plan.number, 0, 0, {}, {}}});
    under_way.pop_front();
  }
}

void Stage::State::ApplyAborts(const Plan& plan) {
  for (const uint64_t attempt_id : plan.aborts) {
    const auto found = requests.find(attempt_id);
    if (found == requests.end()) continue;  // Closed here before the abort came.
    Covered<"stage: an abort meets its request">();
    found->second.aborted = true;
    DropKv(attempt_id, found->second);
    if (found->second.sends > 0) Emit(CancelKv{epoch, attempt_id});
    CloseIfSent(attempt_id);
  }
  ReleaseKv();  // What has waited behind that of these.
}

RunCompute Stage::State::Compose(const HeldPlan& held, int64_t now_us) const {
  // Behind another plan it waits for nothing but its turn.
  const int64_t wait_us =
      under_way.empty() ? now_us - std::max(free_since_us, held.arrived_us) : int64_t{0};
  RunCompute run{epoch, held.plan.number, {}, wait_us};
  for (const PlanItem& item : held.plan.items) {
    const Request& request = requests.at(item.attempt_id);
    const std::vector<int>& pages = request.pages;
    const int tokens = item.token_begin + item.token_count;
    const int count = (tokens + options.page_size - 1) / options.page_size;
    run.items.push_back({item, std::vector<int>(pages.begin(), pages.begin() + count),
                         std::max(tokens - request.prompt_tokens, 0),
                         item.token_begin >= request.read_tokens,
                         request.adopted && item.token_begin == request.read_tokens});
  }
  return run;
}

absl::Status Stage::State::CheckResult(const Plan& plan, const ComputeFinished& event) const {
  if (!event.status.ok())
    return Annotate(event.status, absl::StrCat("computing plan ", plan.number));
  if (!Draws(options)) return absl::OkStatus();
  const auto draws = std::count_if(plan.items.begin(), plan.items.end(),
                                   [](const PlanItem& item) { return item.final || item.draws; });
  if (static_cast<size_t>(draws) == event.drawn.size()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("plan ", plan.number, " draws ", draws,
                                          " tokens and gave ", event.drawn.size()));
}

void Stage::State::On(const ComputeFinished& event, int64_t now_us) {
  BATON_CHECK(!under_way.empty() && under_way.front().epoch == event.epoch &&
              under_way.front().plan.number == event.number)
      << "plan " << event.number << " was not being computed";
  const UnderWay computed = std::move(under_way.front());
  under_way.pop_front();
  free_since_us = now_us;
  if (!Current(event.epoch)) return;
  if (absl::Status status = CheckResult(computed.plan, event); !status.ok()) {
    if (WithExecutor() > 0) Covered<"stage: a plan fails with a successor submitted">();
    return Break(std::move(status));
  }
  const auto first = static_cast<std::ptrdiff_t>(actions->size());
  if (options.stage + 1 < options.stages) {
    to_pass.emplace_back(event.number, computed.plan.TokenCount());
    PassActivations();
  }
  std::vector<PromptTokens> prompt_tokens = TakePromptTokens(event);
  std::vector<DrawnToken> drawn = TakeDrawn(computed.plan, event);
  SendComputed(computed.plan, event, now_us);
  if (options.stage > 0) Emit(ReturnCredit{epoch, event.number});
  Emit(ReportPlanDone{epoch,
                      {event.number, event.compute_us, computed.wait_us, std::move(prompt_tokens),
                       std::move(drawn)}});
  TakeTurns();
  RunNext(now_us);
  // Work for the executor comes first, then what the next stage and decode wait for, and reports
  // last: handing over and reporting take the shell some 0.1 ms each.
  std::stable_partition(actions->begin() + first, actions->end(), [](const StageAction& action) {
    return std::holds_alternative<RunCompute>(action);
  });
}

// ---- The stage ----

Stage::Stage(StageOptions options) : state_(std::make_unique<State>(options)) {
  BATON_CHECK(options.stages > 0 && options.stage >= 0 && options.stage < options.stages)
      << "stage " << options.stage << " of " << options.stages;
  BATON_CHECK(options.page_size > 0 && options.activation_credits > 0 && options.plan_limit > 0 &&
              options.plans_in_flight > 0)
      << "stage options";
}

Stage::~Stage() = default;

void Stage::Handle(const StageEvent& event, int64_t now_us, std::vector<StageAction>& actions) {
  const auto* const arrived = std::get_if<ActivationsArrived>(&event);
  AccountTime(now_us, arrived == nullptr ? kNeverUs : arrived->since_us);
  state_->actions = &actions;
  std::visit([&](const auto& e) { state_->On(e, now_us); }, event);
  state_->actions = nullptr;
}

void Stage::AccountTime(int64_t now_us, int64_t receiving_since_us) {
  state_->times.Add(doing(), state_->accounted_us.value_or(now_us), now_us, receiving_since_us);
  state_->accounted_us = now_us;
}

const StageTimes& Stage::times() const { return state_->times; }

StageDoing Stage::doing() const {
  const State& state = *state_;
  if (!state.under_way.empty()) return StageDoing::kBusy;
  if (AtRest()) return StageDoing::kNoRequest;
  if (state.plans.empty()) return StageDoing::kBubble;
  if (state.OutputBufferFree(state.plans.front().plan.number)) return StageDoing::kInput;
  return state.passing.empty() ? StageDoing::kCredit : StageDoing::kTransfer;
}

bool Stage::Quiet() const {
  return state_->under_way.empty() && state_->passing.empty() && state_->sends.empty();
}

int Stage::held_pages() const { return static_cast<int>(state_->page_users.size()); }

bool Stage::AtRest() const {
  return Quiet() && state_->requests.empty() && state_->plans.empty() && state_->inputs.empty() &&
         state_->to_pass.empty();
}

}  // namespace baton::prefill
