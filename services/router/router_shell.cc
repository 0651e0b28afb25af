#include "services/router/router_shell.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "services/router/core/context_overflow.h"

namespace baton::router {
namespace {

constexpr int64_t kRefreshUs = 50'000;    // Gauges and readiness follow changes this closely.
constexpr int64_t kBeatUs = 1'000'000;    // The loop wakes at least this often.
constexpr int64_t kStuckUs = 10'000'000;  // A loop that hasn't woken for this long is stuck.

// Calls of one request that may have an event in the mailbox at the same time: submission,
// cancellation, abort, reservation, start, a token or the stream's end.
constexpr size_t kEventsPerRequest = 8;
constexpr size_t kClusterEvents = 1 << 16;
constexpr int64_t kAbortsLeaveMs = 500;

size_t MailboxLimit(const RouterConfig& config) {
  return kClusterEvents +
         kEventsPerRequest * static_cast<size_t>(config.options.max_concurrent_streams());
}

RouterLimits MakeLimits(const RouterConfig& config, uint64_t incarnation) {
  RouterLimits limits;
  limits.incarnation = incarnation;
  limits.seed = EntropySeed();
  limits.beat_us = config.options.lease_ms() * 1000 / 4;
  limits.max_waiting = static_cast<int>(config.options.max_queued_requests());
  limits.max_queue_us = config.options.max_queue_ms() * 1000;
  limits.pairing_timeout_us = config.options.pairing_timeout_ms() * 1000;
  limits.membership.pair_grace_us = limits.pairing_timeout_us;
  limits.max_requests = static_cast<int>(config.options.max_concurrent_streams());
  limits.max_resumes = static_cast<int>(config.options.max_resumes());
  limits.rate_limits = {config.options.tenant_requests_per_minute(),
                        config.options.tenant_tokens_per_minute()};
  limits.policy = ParsePolicy(config.options.load_balance_policy());
  limits.tells_decisions = config.decision_log != nullptr;
  limits.membership.lease_us = config.options.lease_ms() * 1000;
  // As in a cluster that is too large for that.
  if (!Failpoint("router.tells_few").ok()) limits.membership.told_of_all = 0;
  return limits;
}

size_t LongestToken(const Tokenizer& tokenizer) {
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max(longest, tokenizer.TokenBytes(id).size());
  }
  return longest;
}

RequestLimits MakeRequestLimits(const RouterConfig& config, const Tokenizer& tokenizer) {
  RequestLimits limits;
  limits.served_model_name = config.served_model_name;
  limits.vocab_size = config.vocab_size;
  limits.max_context_tokens = config.max_context_tokens;
  limits.longest_token_bytes = LongestToken(tokenizer);
  limits.default_max_tokens = config.options.default_max_tokens() > 0
                                  ? static_cast<int>(config.options.default_max_tokens())
                                  : config.defaults.max_new_tokens.value_or(0);
  limits.defaults = config.defaults;
  limits.end_ids = config.end_ids;
  limits.request_timeout_ms = config.options.request_timeout_ms();
  return limits;
}

v1::GetModelInfoResponse MakeModelInfo(const RouterConfig& config) {
  v1::GetModelInfoResponse info;
  info.set_served_model_name(config.served_model_name);
  info.set_model_type(config.model_type);
  info.set_vocab_size(config.vocab_size);
  info.set_max_context_tokens(config.max_context_tokens);
  for (const int32_t id : config.eos_token_ids) info.add_eos_token_ids(id);
  info.set_version(kBatonVersion);
  return info;
}

std::unique_ptr<tracing::Tracing> StartTracing(const RouterConfig& config, RouterMetrics& metrics) {
  auto tracing = tracing::Tracing::FromOptions(
      config.options, {"router", config.instance_id},
      [&metrics](tracing::SpanFate fate, size_t spans) { metrics.CountSpans(fate, spans); });
  if (tracing.ok()) return *std::move(tracing);
  LOG(kError) << "requests are not traced: " << tracing.status().message();
  return nullptr;
}

}  // namespace

RouterShell::RouterShell(RouterConfig config, std::unique_ptr<Tokenizer> tokenizer,
                         std::unique_ptr<ChatTemplate> chat_template)
    : config_(std::move(config)),
      incarnation_(std::max<uint64_t>(1, EntropySeed())),
      limits_(MakeRequestLimits(config_, *tokenizer)),
      tokenizer_(std::move(tokenizer)),
      chat_template_(std::move(chat_template)),
      model_info_(MakeModelInfo(config_)),
      metrics_(std::make_unique<RouterMetrics>(config_.served_model_name, config_.instance_id)),
      tracing_(StartTracing(config_, *metrics_)),
      traffic_(config_.options.log_requests() != "off"),
      readiness_{false, "starting"},
      largest_request_tokens_(config_.max_context_tokens),
      loop_("router", MailboxLimit(config_)),
      core_(MakeLimits(config_, incarnation_)),
      legs_(std::make_unique<Legs>(
          loop_, incarnation_, config_.vocab_size,
          Legs::Callbacks{[this](Event event) { HearLeg(std::move(event)); },
                          [this](uint64_t attempt_id, v1::PrefillReport report) {
                            Session* session = SessionOfAttempt(attempt_id);
                            if (session != nullptr) session->OnPrefillReport(std::move(report));
                          },
                          [this](const InstanceRef& instance) { return AddressOf(instance); }},
          config_.cluster_security)) {}

RouterShell::~RouterShell() { Stop(0); }

void RouterShell::Start(std::function<void(bool)> on_readiness) {
  on_readiness_ = std::move(on_readiness);
  last_wake_us_ = NowUs();
  loop_.SetWakeHandler([this](int64_t now_us) { return OnWake(now_us); });
  loop_.Start();
}

void RouterShell::BeginStop() {
  MutexLock lock(&mutex_);
  stopping_ = true;
  readiness_ = {false, "the router is shutting down"};
}

void RouterShell::Stop(int64_t grace_ms) {
  BeginStop();
  const auto wait_idle = [this](std::chrono::milliseconds timeout) {
    MutexLock lock(&mutex_);
    return mutex_.AwaitFor(
        timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return in_flight_ == 0; });
  };
  if (!wait_idle(std::chrono::milliseconds(grace_ms))) {
    const bool posted = loop_.Post([this] {
      std::vector<uint64_t> call_ids;
      for (const auto& [call_id, session] : sessions_) call_ids.push_back(call_id);
      LOG(kWarning) << "ending " << call_ids.size() << " requests that have not finished in time";
      for (const uint64_t call_id : call_ids) DropCall(call_id, Stopping(), /*tell=*/true);
    });
    if (posted) wait_idle(std::chrono::seconds(1));
  }
  // Also the aborts of the legs should leave before the channels are closed.
  legs_->WaitIdle(kAbortsLeaveMs);
  if (!loop_.Post([this] { EndLeases(); })) {
    LOG(kDebug) << "the router's loop has stopped already";
  }
  loop_.Stop();
}

// ---- The loop ----

void RouterShell::Begin(std::unique_ptr<Session> session) {
  const SessionRequest& request = session->request();
  CallSubmitted event;
  event.call_id = request.call_id;
  event.request_id = request.request_id;
  event.prompt_tokens = static_cast<int>(request.prompt_ids.size());
  event.max_tokens = request.sampling.max_tokens();
  event.deadline_us = request.deadline_us;
  event.prompt_logprobs = request.sampling.prompt_logprobs();
  event.clip = request.clip;
  event.priority = request.priority;
  event.prefix = request.prefix;
  event.routing_key = request.routing_key;
  event.tenant = request.tenant;
  sessions_.emplace(request.call_id, std::move(session));
  Dispatch(std::move(event));
}

// Actions may cause events (a stop string in a token's text): they are handled after the actions
// that stand before them.
void RouterShell::Dispatch(Event event) {
  changed_ = true;
  events_.Raise(std::move(event));
}

void RouterShell::HandleOne(const Event& event) {
  core_.Handle(event, NowUs(), actions_);
  for (Action& action : actions_) {
    std::visit([this](auto& a) { Perform(a); }, action);
  }
  actions_.clear();
}

void RouterShell::Perform(FinishCall& action) {
  Session* session = SessionOf(action.call_id);
  if (session == nullptr) return;
  const SessionRequest& request = session->request();
  if (IsContextOverflow(action.outcome.status()) &&
      FitsWhenReady(static_cast<int>(request.prompt_ids.size()), request)) {
    action.outcome =
        WithLeg(absl::UnavailableError(absl::StrCat(
                    "the workers whose KV caches could hold the request are not ready: ",
                    core_.membership().WhatIsMissing(), "; send it again")),
                "router", "");
  }
  LogDecisions(request, action);
  traffic_.LogEnd(session->Finish(action, NowUs()));
  EndSession(action.call_id);
}

void RouterShell::LogDecisions(const SessionRequest& request, const FinishCall& finish) {
  if (config_.decision_log == nullptr) return;
  config_.decision_log->Write(request.request_id, finish, NowUs(), absl::ToUnixMillis(absl::Now()));
}

bool RouterShell::FitsWhenReady(int prompt_tokens, const SessionRequest& request) const {
  const int64_t wanted = request.clip ? 1 : request.sampling.max_tokens();
  const std::vector<Pair> pairs = core_.membership().WholePairs();
  return std::any_of(pairs.begin(), pairs.end(),
                     [&](const Pair& pair) { return OutputRoom(pair, prompt_tokens) >= wanted; });
}

// Ends a request that the core has not ended; `tell` its sink, or let it go silently.
void RouterShell::DropCall(uint64_t call_id, const absl::Status& outcome, bool tell) {
  Session* session = SessionOf(call_id);
  if (session == nullptr) return;
  const FinishCall finish = core_.EndOf(call_id, outcome);
  Dispatch(ClientGone{call_id});
  LogDecisions(session->request(), finish);
  if (tell) {
    traffic_.LogEnd(session->Finish(finish, NowUs()));
  } else {
    metrics_->CountRefused(session->request().endpoint, outcome);
    traffic_.LogEnd(session->Drop(finish, NowUs()));
  }
  EndSession(call_id);
}

void RouterShell::EndSession(uint64_t call_id) {
  const auto entry = sessions_.find(call_id);
  call_of_attempt_.erase(entry->second->attempt_id());
  legs_->Forget(call_id);
  sessions_.erase(entry);
  ReturnSlot();
}

Session* RouterShell::SessionOf(uint64_t call_id) {
  const auto entry = sessions_.find(call_id);
  return entry == sessions_.end() ? nullptr : entry->second.get();
}

// ---- Time ----

int64_t RouterShell::OnWake(int64_t now_us) {
  last_wake_us_ = now_us;
  if (core_.NextDeadlineUs() <= now_us) Dispatch(Tick{});
  const int64_t refresh_us = refreshed_us_ + (changed_ ? kRefreshUs : kBeatUs);
  if (refresh_us <= now_us) Refresh(now_us);
  return std::min({core_.NextDeadlineUs(), refreshed_us_ + (changed_ ? kRefreshUs : kBeatUs),
                   now_us + kBeatUs});
}

void RouterShell::Refresh(int64_t now_us) {
  refreshed_us_ = now_us;
  changed_ = false;
  const Membership& members = core_.membership();
  const size_t pairs = members.CountReadyPairs();
  // What a request would meet: it is served, or waits for a pair that is expected.
  const bool open = core_.outlook(now_us) != Outlook::kRefused;
  const std::string missing = pairs > 0 ? "" : members.WhatIsMissing();
  const std::vector<Worker> workers = members.Workers();
  const int64_t fits = members.LargestContext();
  bool draining = false;
  bool was_ready = false;
  bool ready = false;
  {
    MutexLock lock(&mutex_);
    was_ready = readiness_.ready;
    draining = draining_;
    // While no pair is ready, what fitted last is the best guess.
    if (fits > 0) largest_request_tokens_ = std::min<int64_t>(fits, config_.max_context_tokens);
    if (!stopping_ && !draining_) readiness_ = {open, open ? "" : missing};
    ready = readiness_.ready;
  }
  const RouterLoad load = core_.load();
  metrics_->SetLoad(load, workers, pairs, ready, draining);
  metrics_->SetRefused(members.applicants());
  LogTroubles(load);
  traffic_.Wake(now_us, load, pairs);
  if (ready != was_ready) {
    LOG(kInfo) << (ready ? "ready" : "not ready: " + missing);
    on_readiness_(ready);
  }
  if (channels_version_ != members.version()) {
    channels_version_ = members.version();
    std::vector<InstanceRef> here;
    here.reserve(workers.size());
    for (const Worker& worker : workers) here.push_back(worker.info.instance);
    legs_->KeepWorkers(here);
  }
}

void RouterShell::LogTroubles(const RouterLoad& load) {
  if (told_.accounting_errors_total < load.accounting_errors_total) {
    LOG(kError) << "by the router's accounting more work has ended on a worker than had begun; "
                   "requests don't suffer, but this is a bug: please report it with the log so far";
  }
  if (told_.pauses_total < load.pauses_total) {
    LOG(kWarning) << "the router itself stood still, or had more to do than it can: its loop came "
                     "more than "
                  << config_.options.lease_ms() / 4
                  << " ms late; it waits for workers' heartbeats for " << config_.options.lease_ms()
                  << " ms more";
  }
  told_ = load;
}

bool RouterShell::alive() const { return NowUs() - last_wake_us_.load() < kStuckUs; }

}  // namespace baton::router
