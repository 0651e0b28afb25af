// The chain's clients, its stage 0, and the deaths of its processes.
#include "tests/sim/one_chain.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::sim {
namespace {

constexpr int32_t kEnd = 3;  // The token that ends a text.
constexpr int kTokens = 50;
constexpr int kMaxSteps = 1'000'000;
constexpr int64_t kPollUs = 20;

}  // namespace

ChainSettings DrawChain(Random& random) {
  ChainSettings settings;
  settings.stages = static_cast<int>(random.Between(1, 6));
  settings.pages = static_cast<int>(random.Between(8, 80));
  settings.credits = static_cast<int>(random.Between(1, 4));
  settings.plans_in_flight = static_cast<int>(random.Between(1, 4));
  settings.window = static_cast<int>(random.Between(1, 8));
  settings.chunk_tokens = kChainPageSize * static_cast<int>(random.Between(1, 12));
  settings.requests = static_cast<int>(random.Between(1, 25));
  return settings;
}

ChainSettings DrawStormyChain(Random& random) {
  ChainSettings settings = DrawChain(random);
  settings.decoded_chance = random.Chance(0.7) ? 1 : 0.6;
  settings.caches = random.Chance(0.7);
  if (random.Chance(0.5)) {
    settings.reserved_decode_tokens = static_cast<int>(random.Between(1, 8));
    settings.pages = static_cast<int>(random.Between(6, 20));
  }
  if (random.Chance(0.4)) settings.extra_slots = static_cast<int>(random.Between(0, 2));
  settings.feeds_ahead = random.Chance(0.7);
  if (random.Chance(0.4)) settings.slot_requests = static_cast<int>(random.Between(1, 3));
  if (random.Chance(0.4)) settings.abort_chance = random.Chance(0.5) ? 0.2 : 0.8;
  if (random.Chance(0.3)) settings.abort_begin_us = random.Between(500, 5000);
  if (random.Chance(0.4)) settings.deaths = static_cast<int>(random.Between(1, 3));
  if (settings.caches && random.Chance(0.3)) {
    settings.flushes = static_cast<int>(random.Between(1, 4));
  }
  return settings;
}

OneChain::OneChain(uint64_t seed, const ChainSettings& settings)
    : random_(seed),
      settings_(settings),
      planner_(std::make_unique<prefill::ChainPlanner>(Limits())) {
  for (int i = 0; i < settings.stages; ++i) stages_.push_back(NewStage(i));
  processes_.resize(stages_.size());
}

prefill::PlannerLimits OneChain::Limits() const {
  constexpr int kMostOpen = 5;
  const int slots = settings_.stages + settings_.extra_slots;
  const bool bounded = settings_.slot_requests < kMostOpen;
  return {.page_size = kChainPageSize,
          .chunk_tokens = settings_.chunk_tokens,
          .plan_window = settings_.window,
          .stage0_lead = std::max(2, settings_.plans_in_flight),
          .max_open_requests =
              bounded ? std::min(kMostOpen, slots * settings_.slot_requests) : kMostOpen,
          .max_queued_requests = 2000,
          .max_context_tokens = settings_.pages * kChainPageSize,
          .decodes = true,
          .extra_slots = settings_.extra_slots,
          .feeds_ahead = settings_.feeds_ahead,
          .slot_requests = settings_.slot_requests,
          .reserved_decode_tokens = settings_.reserved_decode_tokens,
          .caches = settings_.caches};
}

std::unique_ptr<prefill::Stage> OneChain::NewStage(int stage) const {
  return std::make_unique<prefill::Stage>(
      prefill::StageOptions{.stage = stage,
                            .stages = settings_.stages,
                            .page_size = kChainPageSize,
                            .activation_credits = settings_.credits,
                            .plan_limit = settings_.window + 1,
                            .plans_in_flight = settings_.plans_in_flight});
}

void OneChain::Run() {
  BeginEpochWhenQuiet();
  for (int i = 1; i <= settings_.requests; ++i) AddRequest(static_cast<uint64_t>(i));
  for (int i = 0; i < settings_.deaths; ++i) At(random_.Between(0, 6000), [this] { Die(); });
  for (int i = 0; i < settings_.flushes; ++i) {
    At(random_.Between(0, 6000), [this] { ToPlanner(prefill::FlushCache{}); });
  }
  for (int steps = 0; !agenda_.empty() && violation_.empty(); ++steps) {
    if (steps == kMaxSteps) return Complain("it does not end");
    const auto next = agenda_.begin();
    now_us_ = next->first.first;
    const auto task = std::move(next->second);
    agenda_.erase(next);
    task();
  }
  if (violation_.empty()) CheckRest();
}

void OneChain::CheckRest() {
  Holds(planner_->AtRest(), "the planner is not at rest");
  Holds(planner_->load().owned_pages == 0, "pages are owned at rest");
  for (const auto& stage : stages_) Holds(stage->AtRest(), "a stage is not at rest");
  for (const auto& [request, state] : requests_) {
    if (!Holds(state.end.has_value(), absl::StrCat("request ", request, " does not end"))) return;
    const bool allowed =
        state.end->ok() || absl::IsCancelled(*state.end) || settings_.send_error_chance > 0;
    Holds(allowed, absl::StrCat("request ", request, " fails: ", state.end->ToString()));
  }
}

int OneChain::succeeded() const {
  return static_cast<int>(std::count_if(requests_.begin(), requests_.end(), [](const auto& entry) {
    return entry.second.end.has_value() && entry.second.end->ok();
  }));
}

int OneChain::aborted() const {
  return static_cast<int>(std::count_if(requests_.begin(), requests_.end(), [](const auto& entry) {
    return entry.second.end.has_value() && absl::IsCancelled(*entry.second.end);
  }));
}

void OneChain::Complain(const std::string& what) {
  if (violation_.empty()) violation_ = absl::StrCat(what, " (at ", now_us_, " us)");
}

bool OneChain::Holds(bool holds, const std::string& what) {
  if (!holds) Complain(what);
  return holds;
}

// ---- The toy model: a token follows from its request and position, and KV from token and salt
// ----

// The first tokens of a prompt are those of its family.
int32_t OneChain::TokenAt(uint64_t request, int position) const {
  if (position >= requests_.at(request).prompt_tokens) return NextToken(request, position - 1);
  const bool shared = position < static_cast<int>(request * 13 % 200);
  const uint64_t of = shared ? request % 3 : request;
  return static_cast<int32_t>(Mix64(of * 100'003 + static_cast<uint64_t>(position)) % kTokens);
}

int32_t OneChain::NextToken(uint64_t request, int position) {
  return static_cast<int32_t>((request * 31 + static_cast<uint64_t>(position) * 7) % kTokens);
}

std::string OneChain::SaltOf(uint64_t request) const {
  return request % 14 == 0 ? "pepper" : request % 7 == 0 ? "salt" : "";
}

// Who reads KV of another salt reads something else.
int64_t OneChain::KvAt(uint64_t request, int position) const {
  return TokenAt(request, position) + kTokens * static_cast<int64_t>(SaltOf(request).size());
}

std::vector<int32_t> OneChain::RightText(uint64_t request) const {
  const Request& state = requests_.at(request);
  const int room = settings_.pages * kChainPageSize - state.prompt_tokens;
  std::vector<int32_t> text;
  while (static_cast<int>(text.size()) < std::min(state.token_limit, room)) {
    text.push_back(NextToken(request, state.prompt_tokens + static_cast<int>(text.size()) - 1));
    if (text.back() == kEnd) break;
  }
  return text;
}

// ---- Time ----

void OneChain::At(int64_t time_us, std::function<void()> task) {
  agenda_.emplace(std::make_pair(time_us, sequence_++), std::move(task));
}

void OneChain::AtProcess(size_t stage, int64_t time_us, std::function<void()> task) {
  At(time_us, [this, stage, life = processes_[stage].life, task = std::move(task)] {
    if (processes_[stage].life == life) task();
  });
}

void OneChain::ToStageLater(size_t stage, int64_t time_us, prefill::StageEvent event) {
  AtProcess(stage, time_us, [this, stage, event = std::move(event)] { ToStage(stage, event); });
}

int64_t OneChain::InOrder(int64_t& free_us) {
  free_us = std::max(free_us + 1, now_us_ + Delay());
  return free_us;
}

// ---- Clients ----

void OneChain::AddRequest(uint64_t request) {
  Request& state = requests_[request];
  state.attempt = request;
  state.prompt_tokens =
      static_cast<int>(random_.Between(1, int64_t{settings_.pages} * kChainPageSize / 2));
  if (random_.Chance(settings_.decoded_chance)) {
    state.token_limit = static_cast<int>(random_.Between(1, 40));
  }
  const int64_t arrival_us = random_.Between(0, 3000);
  At(arrival_us, [this, request] { Begin(request); });
  if (!random_.Chance(settings_.abort_chance)) return;
  const bool storm = settings_.abort_begin_us != kNeverUs;
  const int64_t abort_us = storm ? settings_.abort_begin_us + random_.Between(0, 10'000)
                                 : arrival_us + random_.Between(0, 2000);
  At(abort_us, [this, request] { Abort(request); });
}

void OneChain::Begin(uint64_t request) {
  const Request& state = requests_.at(request);
  if (state.end.has_value()) return;  // Aborted meanwhile.
  Attempt& attempt = attempts_[state.attempt];
  attempt.told_before = static_cast<int>(state.text.size());
  attempt.prompt_tokens = state.prompt_tokens + attempt.told_before;
  attempt.wants_prompt = request % 3 == 0 && !state.prompt_told;
  prefill::StartRequested start;
  start.attempt_id = state.attempt;
  start.prompt_tokens = attempt.prompt_tokens;
  start.prompt_logprobs = attempt.wants_prompt;
  if (state.decoded()) {
    start.stop = {.max_tokens = state.token_limit - attempt.told_before, .eos_ids = {kEnd}};
  } else {
    start.ticket.emplace();
    start.ticket->prompt_tokens = attempt.prompt_tokens;
    start.ticket->prompt_pages = (attempt.prompt_tokens + kChainPageSize - 1) / kChainPageSize;
  }
  if (settings_.caches) {
    auto ids = std::make_shared<std::vector<int32_t>>();
    for (int i = 0; i < attempt.prompt_tokens; ++i) ids->push_back(TokenAt(request, i));
    start.tokens = std::move(ids);
    start.cache_salt = SaltOf(request);
  }
  ToPlanner(start);
}

// With what was told of its text.
void OneChain::BeginAgain(uint64_t request) {
  Request& state = requests_.at(request);
  state.attempt += kTry;
  if (!state.text.empty()) ++resumes_;
  At(now_us_ + random_.Between(1, 300), [this, request] { Begin(request); });
}

void OneChain::Abort(uint64_t request) {
  Request& state = requests_.at(request);
  if (state.end.has_value()) return;
  const absl::Status cancelled = absl::CancelledError("test");
  if (attempts_.contains(state.attempt)) {
    return ToPlanner(prefill::AbortRequested{state.attempt, cancelled});
  }
  state.end = cancelled;  // It waits to begin.
}

void OneChain::Ends(const prefill::FinishRequest& finish) {
  const uint64_t request = RequestOf(finish.attempt_id);
  Request& state = requests_.at(request);
  cached_tokens_ += finish.outcome.cached_tokens;
  const bool runs = !state.end.has_value() && state.attempt == finish.attempt_id;
  if (!Holds(runs, absl::StrCat("attempt ", finish.attempt_id, " ends twice"))) return;
  if (absl::IsUnavailable(finish.status) && settings_.send_error_chance == 0) {
    if (Holds(settings_.deaths > 0, finish.status.ToString())) BeginAgain(request);
    return;
  }
  state.end = finish.status;
  if (!finish.status.ok()) return;
  if (!state.decoded()) CheckPromptTokens(finish.attempt_id, finish.outcome);
  CheckAnswer(request, finish.attempt_id);
}

// A prompt that was handed over was sent by every stage; a text is the right one.
void OneChain::CheckAnswer(uint64_t request, uint64_t attempt) {
  const Request& state = requests_.at(request);
  if (state.decoded()) {
    Holds(state.text == RightText(request), absl::StrCat("request ", request, ": another text"));
  }
  const Attempt& ended = attempts_.at(attempt);
  const auto pages =
      static_cast<size_t>((ended.prompt_tokens + kChainPageSize - 1) / kChainPageSize);
  for (Process& process : processes_) {
    const bool handed_over = process.committed.contains(attempt);
    Holds(handed_over != state.decoded(), absl::StrCat("attempt ", attempt, ": a wrong commit"));
    const size_t sent = process.sent.contains(attempt) ? process.sent.at(attempt).size() : 0;
    Holds(sent == (state.decoded() ? 0 : pages),
          absl::StrCat("attempt ", attempt, ": ", sent, " pages sent"));
    const int drawn = static_cast<int>(state.text.size()) - ended.told_before;
    const int expected = ended.prompt_tokens + std::max(drawn - 1, 0);
    const int in_vain = process.computed[attempt] - expected;  // Behind a token that ends the text.
    const bool may_be_more = FeedsAhead() && !state.text.empty() && state.text.back() == kEnd;
    Holds(in_vain == 0 || (in_vain == 1 && may_be_more),
          absl::StrCat("attempt ", attempt, ": ", process.computed[attempt], " tokens computed"));
  }
}

// ---- Stage 0 ----

void OneChain::ToPlanner(const prefill::PlannerEvent& event) {
  std::vector<prefill::PlannerAction> actions;
  if (const auto* done = std::get_if<prefill::StagePlanDone>(&event)) {
    const bool last = done->stage + 1 == settings_.stages;
    if (last && done->epoch == epoch_) drawing_.erase(done->done.number);
  }
  planner_->Handle(event, now_us_, actions);
  const absl::Status sound = planner_->CheckInvariants();
  Holds(sound.ok(), sound.ToString());
  for (const prefill::PlannerAction& action : actions) {
    if (!violation_.empty()) return;
    std::visit([this](const auto& a) { Perform(a); }, action);
  }
}

void OneChain::Perform(const prefill::IssuePlan& issue) {
  const prefill::Plan& plan = issue.plan;
  Holds(plan.TokenCount() <= planner_->max_plan_tokens(), "a plan is too large");
  CheckSlots(plan);
  for (size_t i = 0; i < stages_.size(); ++i) {
    ToStageLater(i, InOrder(processes_[i].path_free_us), prefill::PlanArrived{plan});
  }
}

void OneChain::CheckSlots(const prefill::Plan& plan) {
  for (const prefill::PlanOpen& open : plan.opens) reads_[open.attempt_id] = open.read_tokens();
  int rows = 0;
  const bool drawn_by_another = !drawing_.empty();
  for (const prefill::PlanItem& item : plan.items) {
    if (item.token_begin >= reads_[item.attempt_id]) ++rows;
    if (item.token == prefill::kTokenAhead) {
      ++steps_ahead_;
      Holds(drawn_by_another, "a step waits for a token that no plan draws");
    }
    if (item.draws) drawing_.insert(plan.number);
  }
  Holds(rows <= settings_.slot_requests, absl::StrCat(rows, " decode steps in one plan"));
  const auto under_way = static_cast<int>(drawing_.size());
  Holds(under_way <= settings_.stages + settings_.extra_slots + (FeedsAhead() ? 1 : 0),
        absl::StrCat(under_way, " plans that draw are under way"));
}

void OneChain::Perform(const prefill::PromptDone& prompt) {
  cached_tokens_ += prompt.outcome.cached_tokens;
  CheckPromptTokens(prompt.attempt_id, prompt.outcome);
  Holds(!std::exchange(attempts_.at(prompt.attempt_id).prompt_done, true),
        "a prompt is told twice");
  requests_.at(RequestOf(prompt.attempt_id)).prompt_told = true;
}

void OneChain::Perform(const prefill::DeliverToken& token) {
  Request& state = requests_.at(RequestOf(token.attempt_id));
  const bool runs = !state.end.has_value() && state.attempt == token.attempt_id;
  const bool after_prompt = attempts_.at(token.attempt_id).prompt_done;
  Holds(runs && after_prompt, "a token after the end, or before its prompt's");
  state.text.push_back(token.token.token);
}

void OneChain::Perform(const prefill::FailChain& fail) {
  Complain(absl::StrCat("the chain gives stage ", fail.stage, " up: ", fail.status.ToString()));
}

void OneChain::CheckPromptTokens(uint64_t attempt, const prefill::PrefillOutcome& outcome) {
  std::vector<SampledToken> expected;
  const Attempt& of = attempts_.at(attempt);
  for (int i = 1; of.wants_prompt && i < of.prompt_tokens; ++i) {
    expected.push_back(PromptToken(RequestOf(attempt), i));
  }
  Holds(outcome.prompt_tokens == expected,
        absl::StrCat("attempt ", attempt, ": other log-probabilities of its prompt"));
}

// ---- Deaths ----

// A stage dies at any moment. What it has sent arrives, and what is sent to it is lost. Stage 0
// takes the planner with it, and its callers see their connections break.
void OneChain::Die() {
  const auto victim = static_cast<size_t>(random_.Below(stages_.size()));
  const int life = processes_[victim].life + 1;
  stages_[victim] = NewStage(static_cast<int>(victim));
  processes_[victim] = {};
  processes_[victim].life = life;
  if (victim == 0) {
    evicted_pages_ += planner_->load().evicted_pages_total;
    retractions_ += planner_->load().retractions_total;
    planner_ = std::make_unique<prefill::ChainPlanner>(Limits());
    for (const auto& [request, state] : requests_) {
      if (!state.end.has_value() && attempts_.contains(state.attempt)) BeginAgain(request);
    }
  } else {
    ToPlanner(prefill::ChainDown{absl::UnavailableError("a stage died")});
  }
  for (size_t i = 0; i < stages_.size(); ++i) {
    if (i != victim) ToStage(i, prefill::EpochEnded{});
  }
  if (std::exchange(up_, false)) BeginEpochWhenQuiet();
}

void OneChain::BeginEpochWhenQuiet() {
  const bool quiet =
      std::all_of(stages_.begin(), stages_.end(), [](const auto& stage) { return stage->Quiet(); });
  if (!quiet) return At(now_us_ + kPollUs, [this] { BeginEpochWhenQuiet(); });
  up_ = true;
  ++epoch_;
  drawing_.clear();
  for (size_t i = 0; i < stages_.size(); ++i) {
    Process& process = processes_[i];
    process.inputs.clear();
    process.outputs.clear();
    process.last_computed = 0;
    ToStage(i, prefill::EpochBegan{epoch_});
  }
  ToPlanner(prefill::ChainUp{epoch_, settings_.stages, settings_.pages});
}

}  // namespace baton::sim
