#include "services/prefill/core/stage.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/planted_bug.h"
#include "common/base/status.h"

namespace baton::prefill {
namespace {

constexpr uint64_t kOutputBuffers = 2;  // One is computed into while the other is sent.

struct Request {
  Ticket ticket;
  std::vector<int> pages;
  int planned_tokens = 0;  // Of the plans that have arrived.
  int sends = 0;           // Under way, the commit's included.
  bool final_computed = false;
  bool aborted = false;
  bool closed = false;   // Reported.
  absl::Status failure;  // Not OK: sends nothing any more.
  int64_t final_computed_us = 0;
  RequestClosed report;

  bool sending() const { return !aborted && failure.ok(); }
};

struct HeldPlan {
  Plan plan;
  int64_t arrived_us = 0;
};

struct Computing {
  uint64_t epoch = 0;
  Plan plan;
  int64_t wait_us = 0;
};

struct Send {
  uint64_t epoch = 0;
  uint64_t attempt_id = 0;
};

}  // namespace

struct Stage::State {
  explicit State(StageOptions stage_options) : options(stage_options) {}

  using Actions = std::vector<StageAction>;

  void On(const EpochBegan& event, int64_t now_us, Actions& actions);
  void On(const EpochEnded& event, int64_t now_us, Actions& actions);
  void On(const PlanArrived& event, int64_t now_us, Actions& actions);
  void On(const ActivationsArrived& event, int64_t now_us, Actions& actions);
  void On(const CreditReturned& event, int64_t now_us, Actions& actions);
  void On(const ComputeFinished& event, int64_t now_us, Actions& actions);
  void On(const ActivationsSent& event, int64_t now_us, Actions& actions);
  void On(const KvSent& event, int64_t now_us, Actions& actions);

  bool Current(uint64_t event_epoch) const { return epoch != 0 && event_epoch == epoch; }
  void DropEpoch();
  void Break(absl::Status status, Actions& actions);

  absl::Status CheckPlan(const Plan& plan) const;
  absl::Status CheckItem(const Plan& plan, const PlanItem& item) const;
  void Accept(const Plan& plan);

  void RunNext(int64_t now_us, Actions& actions);
  bool Ready(const Plan& plan) const;
  bool OutputBufferFree(uint64_t number) const;
  void ApplyAborts(const Plan& plan, Actions& actions);
  void Start(HeldPlan held, int64_t now_us, Actions& actions);
  void PassActivations(Actions& actions);

  absl::Status CheckResult(const Plan& plan, const ComputeFinished& event) const;
  void SendComputed(const Plan& plan, const ComputeFinished& event, int64_t now_us,
                    Actions& actions);
  void SendItem(const PlanItem& item, Request& request, Actions& actions);
  uint64_t NewSend(uint64_t attempt_id, Request& request);
  void CloseIfSent(uint64_t attempt_id, Actions& actions);

  const StageOptions options;

  uint64_t epoch = 0;  // 0: none.
  uint64_t newest_epoch = 0;
  uint64_t last_number = 0;  // Of the plans that have arrived.
  std::deque<HeldPlan> plans;
  std::map<uint64_t, Request> requests;
  int64_t free_since_us = 0;  // End of the last computation.

  std::set<uint64_t> inputs;                     // Plans whose activations are here.
  uint64_t last_input = 0;                       // Number of the last plan started.
  std::deque<std::pair<uint64_t, int>> to_pass;  // Plan, tokens: computed, waits for a credit.
  std::set<uint64_t> uncredited;                 // Passed, not yet consumed by the next stage.

  // Under way, of whatever epoch: the memory that it reads or writes is in use.
  std::optional<Computing> computing;
  std::set<std::pair<uint64_t, uint64_t>> passing;  // (epoch, plan) activations being sent.
  std::map<uint64_t, Send> sends;
  uint64_t next_send_id = 1;
};

// ---- Epochs ----

void Stage::State::On(const EpochBegan& event, int64_t now_us, Actions& /*actions*/) {
  DropEpoch();
  BATON_CHECK(!computing.has_value() && passing.empty() && sends.empty())
      << "an epoch begins while work of an older one is under way";
  BATON_CHECK(event.epoch > newest_epoch) << event.epoch << " after " << newest_epoch;
  epoch = newest_epoch = event.epoch;
  free_since_us = now_us;
}

void Stage::State::On(const EpochEnded& /*event*/, int64_t /*now_us*/, Actions& /*actions*/) {
  DropEpoch();
}

void Stage::State::DropEpoch() {
  epoch = 0;
  last_number = 0;
  last_input = 0;
  plans.clear();
  requests.clear();
  inputs.clear();
  to_pass.clear();
  uncredited.clear();
}

void Stage::State::Break(absl::Status status, Actions& actions) {
  DropEpoch();
  actions.push_back(EndEpoch{std::move(status)});
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

void Stage::State::On(const PlanArrived& event, int64_t now_us, Actions& actions) {
  const Plan& plan = event.plan;
  if (epoch == 0 || plan.epoch < epoch) return;  // Of a link that is gone.
  const bool planted =
      PlantedBug(Bug::kStageAppliesPlanTwice) && plan.epoch == epoch && plan.number == last_number;
  if (!planted) {
    if (absl::Status status = CheckPlan(plan); !status.ok()) {
      Break(std::move(status), actions);
      return;
    }
  }
  Accept(plan);
  plans.push_back({plan, now_us});
  RunNext(now_us, actions);
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
void Stage::State::RunNext(int64_t now_us, Actions& actions) {
  while (!computing.has_value() && !plans.empty()) {
    if (!plans.front().plan.items.empty() && !Ready(plans.front().plan)) return;
    HeldPlan held = std::move(plans.front());
    plans.pop_front();
    ApplyAborts(held.plan, actions);
    if (held.plan.items.empty()) {
      actions.push_back(ReportPlanDone{epoch, {held.plan.number, 0, 0}});
    } else {
      Start(std::move(held), now_us, actions);
    }
  }
}

void Stage::State::ApplyAborts(const Plan& plan, Actions& actions) {
  for (const uint64_t attempt_id : plan.aborts) {
    const auto found = requests.find(attempt_id);
    if (found == requests.end()) continue;  // Closed here before the abort came.
    found->second.aborted = true;
    CloseIfSent(attempt_id, actions);
  }
}

void Stage::State::Start(HeldPlan held, int64_t now_us, Actions& actions) {
  RunCompute run{epoch, held.plan.number, {}};
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
  const int64_t idle_since_us = std::max(free_since_us, held.arrived_us);
  computing = Computing{epoch, std::move(held.plan), now_us - idle_since_us};
  actions.push_back(std::move(run));
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

void Stage::State::On(const ComputeFinished& event, int64_t now_us, Actions& actions) {
  BATON_CHECK(computing.has_value() && computing->epoch == event.epoch &&
              computing->plan.number == event.number)
      << "plan " << event.number << " was not being computed";
  const Computing computed = *std::exchange(computing, std::nullopt);
  free_since_us = now_us;
  if (!Current(event.epoch)) return;
  if (absl::Status status = CheckResult(computed.plan, event); !status.ok()) {
    Break(std::move(status), actions);
    return;
  }
  // The next computation starts first: handing over what this one has made takes the shell longer.
  Actions later;
  if (options.stage + 1 < options.stages) {
    to_pass.emplace_back(event.number, computed.plan.TokenCount());
    PassActivations(later);
  }
  SendComputed(computed.plan, event, now_us, later);
  if (options.stage > 0) actions.push_back(ReturnCredit{epoch, event.number});
  actions.push_back(ReportPlanDone{epoch, {event.number, event.compute_us, computed.wait_us}});
  RunNext(now_us, actions);
  std::move(later.begin(), later.end(), std::back_inserter(actions));
}

// ---- Activations ----

void Stage::State::On(const ActivationsArrived& event, int64_t now_us, Actions& actions) {
  if (!Current(event.epoch)) return;
  const auto credits = static_cast<uint64_t>(options.activation_credits);
  const bool fresh = event.number > last_input && inputs.insert(event.number).second;
  uint64_t oldest = inputs.empty() ? 0 : *inputs.begin();
  if (computing.has_value()) oldest = computing->plan.number;
  if (!fresh || *inputs.rbegin() >= oldest + credits) {
    Break(absl::FailedPreconditionError(absl::StrCat("activations of plan ", event.number,
                                                     " after plan ", last_input,
                                                     " break the credit of ", credits)),
          actions);
    return;
  }
  RunNext(now_us, actions);
}

// A buffer of the next stage is number % credits, so the credit that counts is that of the plan
// which had the same buffer: plans without items leave holes, and a plain counter would not see
// them.
void Stage::State::PassActivations(Actions& actions) {
  while (!to_pass.empty()) {
    const auto [number, tokens] = to_pass.front();
    const uint64_t oldest = uncredited.empty() ? number : *uncredited.begin();
    if (number >= oldest + static_cast<uint64_t>(options.activation_credits)) return;
    to_pass.pop_front();
    uncredited.insert(number);
    passing.emplace(epoch, number);
    actions.push_back(SendActivations{epoch, number, tokens});
  }
}

void Stage::State::On(const CreditReturned& event, int64_t now_us, Actions& actions) {
  if (!Current(event.epoch)) return;
  if (uncredited.erase(event.number) == 0) {
    Break(absl::FailedPreconditionError(
              absl::StrCat("credit for plan ", event.number, ", whose activations are not out")),
          actions);
    return;
  }
  PassActivations(actions);
  RunNext(now_us, actions);
}

void Stage::State::On(const ActivationsSent& event, int64_t now_us, Actions& actions) {
  const bool was_passing = passing.erase({event.epoch, event.number}) == 1;
  BATON_CHECK(was_passing || PlantedBug(Bug::kStageAppliesPlanTwice))
      << "activations of plan " << event.number << " were not being sent";
  if (!Current(event.epoch)) return;
  if (!event.status.ok()) {
    Break(Annotate(event.status, absl::StrCat("sending activations of plan ", event.number)),
          actions);
    return;
  }
  RunNext(now_us, actions);
}

// ---- KV ----

uint64_t Stage::State::NewSend(uint64_t attempt_id, Request& request) {
  ++request.sends;
  sends[next_send_id] = {epoch, attempt_id};
  return next_send_id++;
}

void Stage::State::SendItem(const PlanItem& item, Request& request, Actions& actions) {
  const int first = item.token_begin / options.page_size;
  const int end = (item.token_begin + item.token_count + options.page_size - 1) / options.page_size;
  SendKv send{epoch, NewSend(item.attempt_id, request), item.attempt_id, request.ticket, first, {}};
  send.pages.assign(request.pages.begin() + first, request.pages.begin() + end);
  actions.push_back(std::move(send));
}

void Stage::State::SendComputed(const Plan& plan, const ComputeFinished& event, int64_t now_us,
                                Actions& actions) {
  const bool last_stage = options.stage + 1 == options.stages;
  size_t finals = 0;
  for (const PlanItem& item : plan.items) {
    std::optional<absl::StatusOr<SampledToken>> token;
    if (item.final && last_stage) token = event.first_tokens[finals++];
    const auto found = requests.find(item.attempt_id);
    if (found == requests.end()) continue;
    Request& request = found->second;
    if (item.final) {
      request.final_computed = true;
      request.final_computed_us = now_us;
    }
    if (request.sending()) {
      if (token.has_value() && !token->ok()) request.failure = token->status();
      if (request.sending()) SendItem(item, request, actions);
      if (request.sending() && item.final) {
        SendCommit commit{epoch, NewSend(item.attempt_id, request), item.attempt_id, request.ticket,
                          std::nullopt};
        if (token.has_value()) commit.first_token = **token;
        actions.push_back(std::move(commit));
      }
    }
    CloseIfSent(item.attempt_id, actions);
  }
}

void Stage::State::On(const KvSent& event, int64_t now_us, Actions& actions) {
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
  if (!event.status.ok() && request.failure.ok()) request.failure = event.status;
  CloseIfSent(attempt_id, actions);
}

// Reports the request closed once nothing more of it will be sent, and forgets it once nothing more
// of it will be computed.
void Stage::State::CloseIfSent(uint64_t attempt_id, Actions& actions) {
  const auto found = requests.find(attempt_id);
  BATON_CHECK(found != requests.end()) << "attempt " << attempt_id;
  Request& request = found->second;
  const bool computed = request.final_computed || request.aborted;
  const bool over = computed || !request.failure.ok();
  if (request.sends > 0 || !over) return;
  if (!request.closed) {
    request.closed = true;
    request.report.status = request.failure;
    if (request.report.status.ok() && request.aborted) {
      request.report.status = absl::CancelledError("aborted by the chain's planner");
    }
    actions.push_back(ReportRequestClosed{epoch, request.report});
  }
  if (computed) requests.erase(found);
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
  std::visit([&](const auto& e) { state_->On(e, now_us, actions); }, event);
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
