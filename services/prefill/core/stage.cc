#include "services/prefill/core/stage.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/coverage.h"
#include "common/base/planted_bug.h"
#include "common/base/status.h"
#include "services/prefill/core/stage_state.h"

namespace baton::prefill {

// ---- Epochs ----

void Stage::State::On(const EpochBegan& event, int64_t now_us) {
  DropEpoch();
  BATON_CHECK(!computing.has_value() && passing.empty() && sends.empty())
      << "an epoch begins while work of an older one is under way";
  BATON_CHECK(event.epoch > newest_epoch) << event.epoch << " after " << newest_epoch;
  epoch = newest_epoch = event.epoch;
  free_since_us = now_us;
}

void Stage::State::On(const EpochEnded& /*event*/, int64_t /*now_us*/) { DropEpoch(); }

void Stage::State::DropEpoch() {
  epoch = 0;
  last_number = 0;
  last_applied = 0;
  last_input = 0;
  plans.clear();
  requests.clear();
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

absl::Status Stage::State::CheckItem(const Plan& plan, const PlanItem& item) const {
  int planned = 0;
  size_t pages = 0;
  const auto found = requests.find(item.attempt_id);
  const auto opened = std::find_if(plan.opens.begin(), plan.opens.end(), [&](const PlanOpen& open) {
    return open.attempt_id == item.attempt_id;
  });
  int prompt_tokens = 0;
  if (found != requests.end()) {
    planned = found->second.planned_tokens;
    pages = found->second.pages.size();
    prompt_tokens = found->second.ticket.prompt_tokens;
  } else if (opened != plan.opens.end()) {
    pages = opened->pages.size();
    prompt_tokens = opened->ticket.prompt_tokens;
  } else {
    return absl::FailedPreconditionError(
        absl::StrCat("plan ", plan.number, " names attempt ", item.attempt_id, ", never opened"));
  }
  const int end = item.token_begin + item.token_count;
  if (item.token_begin != planned || item.token_count < 1 || end > prompt_tokens ||
      item.token_begin % options.page_size != 0 || item.final != (end == prompt_tokens) ||
      static_cast<size_t>(end) > pages * static_cast<size_t>(options.page_size)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "plan ", plan.number, " has tokens [", item.token_begin, ", ", end, ") of attempt ",
        item.attempt_id, " after ", planned, " of ", prompt_tokens, " in ", pages, " pages"));
  }
  return absl::OkStatus();
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
  if (opened.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("plan ", plan.number, " opens attempt ",
                                                    *opened.begin(), " without a chunk of it"));
}

void Stage::State::Accept(const Plan& plan) {
  last_number = plan.number;
  for (const PlanOpen& open : plan.opens) {
    Request& request = requests[open.attempt_id];
    request.ticket = open.ticket;
    request.pages = open.pages;
    request.report.attempt_id = open.attempt_id;
  }
  for (const PlanItem& item : plan.items) {
    requests[item.attempt_id].planned_tokens = item.token_begin + item.token_count;
  }
}

void Stage::State::On(const PlanArrived& event, int64_t now_us) {
  const Plan& plan = event.plan;
  const bool takes_old = PlantedBug(Bug::kStageTakesOldPlan) && plan.number == last_number + 1;
  if (epoch == 0 || (plan.epoch < epoch && !takes_old)) return;  // Of a link that is gone.
  const bool planted =
      (takes_old && plan.epoch < epoch) || (PlantedBug(Bug::kStageAppliesPlanTwice) &&
                                            plan.epoch == epoch && plan.number == last_number);
  if (!planted) {
    if (absl::Status status = CheckPlan(plan); !status.ok()) {
      Break(std::move(status));
      return;
    }
  }
  Accept(plan);
  plans.push_back({plan, now_us});
  RunNext(now_us);
}

// ---- Computing ----

bool Stage::State::OutputBufferFree(uint64_t number) const {
  if (options.stage + 1 == options.stages) return true;
  uint64_t oldest = number;
  if (!to_pass.empty()) oldest = std::min(oldest, to_pass.front().first);
  if (!passing.empty()) oldest = std::min(oldest, passing.begin()->second);
  return oldest + kOutputBuffers > number;
}

bool Stage::State::Ready(const Plan& plan) const {
  const bool input = options.stage == 0 || inputs.count(plan.number) != 0;
  return input && OutputBufferFree(plan.number);
}

// Starts plans in order while nothing stands in the way; those without items are done at once.
void Stage::State::RunNext(int64_t now_us) {
  while (!computing.has_value() && !plans.empty()) {
    if (!plans.front().plan.items.empty() && !Ready(plans.front().plan)) return;
    HeldPlan held = std::move(plans.front());
    plans.pop_front();
    out_of_turn = out_of_turn || held.plan.number != last_applied + 1;
    last_applied = held.plan.number;
    ApplyAborts(held.plan);
    if (held.plan.items.empty()) {
      Emit(ReportPlanDone{epoch, {held.plan.number, 0, 0}});
    } else {
      Start(std::move(held), now_us);
    }
  }
}

void Stage::State::ApplyAborts(const Plan& plan) {
  for (const uint64_t attempt_id : plan.aborts) {
    const auto found = requests.find(attempt_id);
    if (found == requests.end()) continue;  // Closed here before the abort came.
    Covered<"stage: an abort meets its request">();
    found->second.aborted = true;
    if (found->second.sends > 0) Emit(CancelKv{epoch, attempt_id});
    CloseIfSent(attempt_id);
  }
}

void Stage::State::Start(HeldPlan held, int64_t now_us) {
  const int64_t wait_us = now_us - std::max(free_since_us, held.arrived_us);
  RunCompute run{epoch, held.plan.number, {}, wait_us};
  for (const PlanItem& item : held.plan.items) {
    const std::vector<int>& pages = requests[item.attempt_id].pages;
    const int tokens = item.token_begin + item.token_count;
    const auto count = static_cast<size_t>((tokens + options.page_size - 1) / options.page_size);
    run.items.push_back(
        {item, std::vector<int>(pages.begin(), pages.begin() + static_cast<int64_t>(std::min(
                                                                   count, pages.size())))});
  }
  inputs.erase(held.plan.number);
  last_input = held.plan.number;
  computing = Computing{epoch, std::move(held.plan), wait_us};
  Emit(std::move(run));
}

absl::Status Stage::State::CheckResult(const Plan& plan, const ComputeFinished& event) const {
  if (!event.status.ok())
    return Annotate(event.status, absl::StrCat("computing plan ", plan.number));
  if (options.stage + 1 < options.stages) return absl::OkStatus();
  const auto finals = std::count_if(plan.items.begin(), plan.items.end(),
                                    [](const PlanItem& item) { return item.final; });
  if (static_cast<size_t>(finals) == event.first_tokens.size()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("plan ", plan.number, " ends ", finals,
                                          " prompts and gave ", event.first_tokens.size(),
                                          " tokens"));
}

void Stage::State::On(const ComputeFinished& event, int64_t now_us) {
  BATON_CHECK(computing.has_value() && computing->epoch == event.epoch &&
              computing->plan.number == event.number)
      << "plan " << event.number << " was not being computed";
  const Computing computed = *std::exchange(computing, std::nullopt);
  free_since_us = now_us;
  if (!Current(event.epoch)) return;
  if (absl::Status status = CheckResult(computed.plan, event); !status.ok()) {
    Break(std::move(status));
    return;
  }
  // The next computation starts first: handing over what this one has made takes the shell longer.
  std::vector<StageAction> later;
  std::vector<StageAction>* const sooner = std::exchange(actions, &later);
  if (options.stage + 1 < options.stages) {
    to_pass.emplace_back(event.number, computed.plan.TokenCount());
    PassActivations();
  }
  std::vector<PromptTokens> prompt_tokens = TakePromptTokens(event);
  SendComputed(computed.plan, event, now_us);
  actions = sooner;
  if (options.stage > 0) Emit(ReturnCredit{epoch, event.number});
  Emit(ReportPlanDone{
      epoch, {event.number, event.compute_us, computed.wait_us, std::move(prompt_tokens)}});
  RunNext(now_us);
  std::move(later.begin(), later.end(), std::back_inserter(*actions));
}

// ---- The stage ----

Stage::Stage(StageOptions options) : state_(std::make_unique<State>(options)) {
  BATON_CHECK(options.stages > 0 && options.stage >= 0 && options.stage < options.stages)
      << "stage " << options.stage << " of " << options.stages;
  BATON_CHECK(options.page_size > 0 && options.activation_credits > 0 && options.plan_limit > 0)
      << "stage options";
}

Stage::~Stage() = default;

void Stage::Handle(const StageEvent& event, int64_t now_us, std::vector<StageAction>& actions) {
  state_->actions = &actions;
  std::visit([&](const auto& e) { state_->On(e, now_us); }, event);
  state_->actions = nullptr;
}

IdleReason Stage::idle_reason() const {
  const State& state = *state_;
  if (state.computing.has_value()) return IdleReason::kNone;
  if (state.plans.empty()) return IdleReason::kBubble;
  const uint64_t number = state.plans.front().plan.number;
  if (state.OutputBufferFree(number)) return IdleReason::kInput;
  return state.passing.empty() ? IdleReason::kCredit : IdleReason::kTransfer;
}

bool Stage::Quiet() const {
  return !state_->computing.has_value() && state_->passing.empty() && state_->sends.empty();
}

int Stage::held_pages() const {
  size_t pages = 0;
  for (const auto& [attempt_id, request] : state_->requests) pages += request.pages.size();
  return static_cast<int>(pages);
}

bool Stage::AtRest() const {
  return Quiet() && state_->requests.empty() && state_->plans.empty() && state_->inputs.empty() &&
         state_->to_pass.empty();
}

absl::Status Stage::CheckInvariants() const {
  const State& state = *state_;
  if (state.out_of_turn) {
    return absl::InternalError(
        absl::StrCat("plan ", state.last_applied, " or one before it was applied out of turn"));
  }
  const auto credits = static_cast<size_t>(state.options.activation_credits);
  if (state.inputs.size() > credits || state.uncredited.size() > credits) {
    return absl::InternalError(absl::StrCat(state.inputs.size(), " inputs and ",
                                            state.uncredited.size(), " sent outputs with ", credits,
                                            " credits"));
  }
  if (state.to_pass.size() + state.passing.size() > kOutputBuffers) {
    return absl::InternalError("more outputs than buffers");
  }
  std::map<uint64_t, int> sends;
  for (const auto& [send_id, send] : state.sends) {
    if (send.epoch == state.epoch) ++sends[send.attempt_id];
  }
  for (const auto& [attempt_id, request] : state.requests) {
    if (request.sends != sends[attempt_id]) {
      return absl::InternalError(absl::StrCat("I5: attempt ", attempt_id, " counts ", request.sends,
                                              " sends, ", sends[attempt_id], " are under way"));
    }
    if (request.closed && request.sends > 0) {
      return absl::InternalError(absl::StrCat("I1: attempt ", attempt_id, " closed while sending"));
    }
    sends.erase(attempt_id);
  }
  if (sends.empty()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("I1: attempt ", sends.begin()->first, " is gone and its KV is being sent"));
}

}  // namespace baton::prefill
