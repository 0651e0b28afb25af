// The legs of a simulated router: the real LegCalls, with calls of the world that break, end late,
// and are given up by either side. Plays services/router/legs.
#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/content.h"
#include "tests/sim/decode_process.h"
#include "tests/sim/prefill_process.h"
#include "tests/sim/router_process.h"

namespace baton::sim {
namespace {

constexpr int64_t kRefusedUs = 100;
constexpr int64_t kBackstopUs = 2'000'000;
// Share of broken calls that report it as if they had been cancelled.
constexpr double kSaysCancelled = 0.2;

// By what words a breach of the protocol is told.
constexpr char kBadTicket[] = "a bad ticket";
constexpr char kNoToken[] = "which is outside the vocabulary";
constexpr char kNoMessage[] = "neither token nor end";
constexpr char kNoReason[] = "for no reason that the router knows";
constexpr char kNoEnd[] = "without Finished";
constexpr char kOtherTokens[] = "other tokens than the prompt's";
constexpr const char* kNonsense[] = {kBadTicket, kNoToken, kNoMessage,
                                     kNoReason,  kNoEnd,   kOtherTokens};

std::vector<int32_t> ExpectedTokens(const Client& client) {
  std::vector<int32_t> expected;
  for (int i = 1; client.prompt_logprobs && i < client.prompt_tokens; ++i) {
    expected.push_back(static_cast<int32_t>(PromptTokenId(client.prompt_id, i) % kVocabulary));
  }
  return expected;
}

}  // namespace

// ---- What becomes of calls ----

void RouterProcess::ChangeLegs(const std::function<void(std::vector<router::LegAction>&)>& change) {
  std::vector<router::LegAction> actions;
  change(actions);
  for (const router::LegAction& action : actions) {
    std::visit([this](const auto& act) { PerformLeg(act); }, action);
  }
  nonsense_ = nullptr;  // It may have come too late for anybody to hear it.
}

void RouterProcess::PerformLeg(const router::TellRouter& act) {
  if (const auto* replied = std::get_if<router::ReserveReplied>(&act.event)) {
    CheckToldRightly(replied->ticket.status());
    HandleRefusable(replied->attempt_id, replied->ticket.status(), act.event);
  } else if (const auto* ended = std::get_if<router::PrefillEnded>(&act.event)) {
    CheckToldRightly(ended->status);
    // Something of it is cached, or nothing: the router must not depend on it.
    router::PrefillEnded told = *ended;
    told.cached_tokens = static_cast<int>(Mix64(told.attempt_id) % 3 * 64);
    HandleRefusable(told.attempt_id, told.status, told);
  } else {
    if (const auto* over = std::get_if<router::DecodeEnded>(&act.event)) {
      CheckToldRightly(over->outcome.status());
    }
    Handle(act.event);
  }
}

// Every failure names its leg and its worker; and only who breaks the protocol is said
// to have done that.
void RouterProcess::CheckToldRightly(const absl::Status& status) {
  const char* const said = std::exchange(nonsense_, nullptr);
  if (status.ok() && said == nullptr) return;
  const bool named = LegOf(status).has_value() && InstanceOf(status).has_value();
  // An invalid message on a link may have ended the epoch, and is reported as that.
  const absl::string_view told_of_itself =
      status.message().substr(0, status.message().find("the epoch is over: "));
  const bool sound = std::none_of(
      std::begin(kNonsense), std::end(kNonsense),
      [&](const char* words) { return words != said && absl::StrContains(told_of_itself, words); });
  const bool told =
      said == nullptr || (absl::IsInternal(status) && absl::StrContains(status.message(), said));
  if (named && sound && told) return;
  world_.Violate(absl::StrCat("a leg is said to fail by ", status.ToString(),
                              said == nullptr ? "" : absl::StrCat(", not for '", said, "'")));
}

// What no worker of ours answers. True: it was said, and the attempt is to end for these words.
bool RouterProcess::StrikeWithNonsense(uint64_t attempt_id, const char* words) {
  if (!world_.Strikes(&NetworkFaults::nonsense)) return false;
  world_.Trace(node_, absl::StrCat("NONSENSE of attempt ", attempt_id, ": ", words));
  nonsense_ = words;
  return true;
}

void RouterProcess::PerformLeg(const router::CancelCall& act) {
  for (auto call = calls_.begin(); call != calls_.end(); ++call) {
    if (call->second.attempt_id != act.attempt_id || call->second.call != act.call) continue;
    const uint64_t cancelled = call->first;
    calls_.erase(call);
    return world_.BreakCall(cancelled);
  }
}

void RouterProcess::PerformLeg(const router::SendAbort& act) {
  const int node = NodeOf(act.worker.id);
  if (!world_.alive(node) || world_.incarnation(node) != act.worker.incarnation) return;
  if (world_.Strikes(&NetworkFaults::control_drop)) return world_.Trace(node_, "abort LOST");
  const uint64_t attempt = act.attempt_id;
  if (topology_.IsDecode(node)) {
    world_.Send<DecodeProcess>(node_, node, "abort",
                               [attempt](DecodeProcess& decode) { decode.Abort(attempt); });
  } else {
    world_.Send<PrefillProcess>(node_, node, "abort",
                                [attempt](PrefillProcess& stage) { stage.Abort(attempt); });
  }
}

bool RouterProcess::EndCall(uint64_t call) {
  world_.CloseCall(call);
  return calls_.erase(call) > 0;
}

void RouterProcess::CallFailed(const OpenCall& open, const absl::Status& status) {
  const uint64_t attempt = open.attempt_id;
  ChangeLegs([&](auto& actions) {
    switch (open.call) {
      case router::LegCall::kReserve:
        return legs_.ReserveEnded(attempt, status, Ticket(), actions);
      case router::LegCall::kGenerate:
      case router::LegCall::kStream:
        return legs_.StreamEnded(attempt, status, actions);
      case router::LegCall::kStart:
        return legs_.StartEnded(attempt, status, {}, {}, actions);
    }
  });
}

void RouterProcess::CallBroken(uint64_t call) {
  if (leases_.erase(call) > 0) return Handle(router::LeaseBroken{call});
  const auto it = calls_.find(call);
  if (it == calls_.end()) return;
  const OpenCall open = it->second;
  calls_.erase(it);
  CallFailed(open, world_.random().Chance(kSaysCancelled)
                       ? absl::CancelledError("somebody gave it up")
                       : absl::UnavailableError("the connection broke"));
}

// ---- From workers ----

void RouterProcess::ReserveReply(uint64_t call, uint64_t attempt_id,
                                 const absl::StatusOr<Ticket>& ticket) {
  if (!EndCall(call)) return;
  const bool nonsense = ticket.ok() && StrikeWithNonsense(attempt_id, kBadTicket);
  ChangeLegs([&](auto& actions) {
    if (nonsense) {
      legs_.ReserveEnded(attempt_id, absl::OkStatus(), absl::InvalidArgumentError("?"), actions);
    } else {
      legs_.ReserveEnded(attempt_id, ticket.status(), ticket, actions);
    }
  });
}

void RouterProcess::Token(uint64_t call, uint64_t attempt_id, const SampledToken& token) {
  if (!calls_.contains(call)) return;
  router::StreamMessage message = token;
  switch (world_.faults().nonsense == 0 ? 0 : world_.random().Between(1, 4)) {
    case 1:
      if (StrikeWithNonsense(attempt_id, kNoToken)) message = SampledToken{-1};
      break;
    case 2:
      if (StrikeWithNonsense(attempt_id, kNoToken)) message = SampledToken{kVocabulary};
      break;
    case 3:
      if (StrikeWithNonsense(attempt_id, kNoMessage)) message = router::StreamMalformed{};
      break;
    case 4:
      if (StrikeWithNonsense(attempt_id, kNoReason)) message = router::StreamFinished{};
      break;
    default:
      break;
  }
  ChangeLegs([&](auto& actions) { legs_.StreamSaid(attempt_id, message, actions); });
}

void RouterProcess::DecodeFinished(uint64_t call, uint64_t attempt_id, FinishReason reason) {
  const auto open = calls_.find(call);
  if (open == calls_.end()) return;
  if (StrikeWithNonsense(attempt_id, kNoEnd)) {
    EndCall(call);
    return ChangeLegs(
        [&](auto& actions) { legs_.StreamEnded(attempt_id, absl::OkStatus(), actions); });
  }
  open->second.answered = true;
  answered_.insert(attempt_id);
  ChangeLegs([&](auto& actions) {
    legs_.StreamSaid(attempt_id, router::StreamFinished{reason}, actions);
  });
}

void RouterProcess::StreamEnd(uint64_t call, uint64_t attempt_id, const absl::Status& status) {
  if (!EndCall(call)) return;
  ChangeLegs([&](auto& actions) { legs_.StreamEnded(attempt_id, status, actions); });
}

std::vector<int32_t> RouterProcess::ExpectedOf(uint64_t call, uint64_t attempt_id) const {
  const auto open = calls_.find(call);
  const std::optional<uint64_t> call_id = CallOf(attempt_id);
  if (open == calls_.end() || !open->second.tells_prompt || !call_id.has_value()) return {};
  return ExpectedTokens(clients_.Get(*call_id));
}

void RouterProcess::PromptTold(uint64_t call, uint64_t attempt_id,
                               const std::vector<SampledToken>& prompt_tokens) {
  if (!calls_.contains(call)) return;
  std::vector<int32_t> expected = ExpectedOf(call, attempt_id);
  if (!expected.empty() && StrikeWithNonsense(attempt_id, kOtherTokens)) ++expected.back();
  ChangeLegs(
      [&](auto& actions) { legs_.PromptTold(attempt_id, prompt_tokens, expected, actions); });
}

void RouterProcess::PrefillEnd(uint64_t call, uint64_t attempt_id, const absl::Status& status,
                               const std::vector<SampledToken>& prompt_tokens) {
  std::vector<int32_t> expected = ExpectedOf(call, attempt_id);
  if (!EndCall(call)) return;
  const bool nonsense =
      status.ok() && !expected.empty() && StrikeWithNonsense(attempt_id, kOtherTokens);
  if (nonsense) ++expected.back();
  ChangeLegs([&](auto& actions) {
    legs_.StartEnded(attempt_id, status, prompt_tokens, expected, actions);
  });
}

// ---- Actions ----

std::string RouterProcess::AddressOf(const InstanceRef& worker) const {
  const router::Worker* known = core_.membership().Find(worker);
  return known == nullptr ? "" : known->info.grpc_address;
}

// The worker is told all the time that the request has; the call outlasts it by little.
void RouterProcess::CheckTimeAllowed(int64_t deadline_us, const router::BeginCall& call) {
  const int64_t ends_us = std::max(deadline_us, world_.now_us());
  const int64_t told_us = world_.now_us() + call.timeout_ms * 1000;
  const bool ends = call.give_up_us > deadline_us && call.give_up_us <= ends_us + kBackstopUs;
  if (ends && told_us >= deadline_us && told_us <= ends_us + 1000) return;
  world_.Violate(absl::StrCat(world_.name(node_), ": a call for a request that has ",
                              deadline_us - world_.now_us(), " us is told ", call.timeout_ms,
                              " ms, and given up after ", call.give_up_us - world_.now_us()));
}

// 0: there is nothing to call, or no process to take it.
template <typename Action>
uint64_t RouterProcess::OpenLeg(const Action& act, const InstanceRef& worker) {
  std::vector<router::LegAction> actions;
  const auto begin = legs_.Open(act, AddressOf(worker), world_.now_us(), actions);
  for (const router::LegAction& action : actions) {  // Not within this step.
    world_.After(node_, 1, "leg without a worker", [this, action] {
      std::visit([this](const auto& leg) { PerformLeg(leg); }, action);
    });
  }
  if (!begin.has_value()) return 0;
  timeout_us_ = begin->timeout_ms * 1000;
  CheckTimeAllowed(act.deadline_us, *begin);
  const OpenCall open{begin->attempt_id, begin->call, worker};
  const uint64_t call = world_.OpenCall(node_, NodeOf(worker.id));
  if (call == 0) {
    world_.After(node_, kRefusedUs, "connection refused",
                 [this, open] { CallFailed(open, absl::UnavailableError("nobody listens")); });
    return 0;
  }
  calls_[call] = open;
  if (begin->give_up_us == kNeverUs) return call;
  world_.After(node_, begin->give_up_us - world_.now_us(), "call gives up", [this, call, open] {
    if (calls_.erase(call) == 0) return;
    world_.BreakCall(call);
    CallFailed(open, absl::DeadlineExceededError("the call's deadline passed"));
  });
  return call;
}

void RouterProcess::PerformLeg(const router::Reserve& act) {
  const uint64_t call = OpenLeg(act, act.decode);
  const Client& client = clients_.Get(act.call_id);
  const SimReserve request{act.attempt_id,
                           ResumedId(client.prompt_id, act.drawn_tokens),
                           client.prompt_tokens + act.drawn_tokens,
                           client.max_tokens - act.drawn_tokens,
                           act.writers,
                           timeout_us_,
                           /*prompt_logprobs=*/false};
  world_.SendOnCall<DecodeProcess>(call, node_, "reserve", [call, request](DecodeProcess& decode) {
    decode.Reserve(call, request);
  });
}

void RouterProcess::PerformLeg(const router::OpenStream& act) {
  const uint64_t call = OpenLeg(act, act.decode);
  world_.SendOnCall<DecodeProcess>(call, node_, "generate", [call, act](DecodeProcess& decode) {
    decode.Generate(call, act.attempt_id, act.generation);
  });
}

void RouterProcess::PerformLeg(const router::StartPrefill& act) {
  const uint64_t call = OpenLeg(act, act.stage0);
  const Client& client = clients_.Get(act.call_id);
  const bool tells_prompt = client.prompt_logprobs && act.drawn_tokens == 0;
  if (call != 0) calls_.at(call).tells_prompt = tells_prompt;
  const SimStart request{act.attempt_id,
                         ResumedId(client.prompt_id, act.drawn_tokens),
                         client.prompt_tokens + act.drawn_tokens,
                         act.ticket,
                         timeout_us_,
                         tells_prompt};
  world_.SendOnCall<PrefillProcess>(call, node_, "start", [call, request](PrefillProcess& prefill) {
    prefill.Start(call, request);
  });
}

void RouterProcess::PerformLeg(const router::StartGeneration& act) {
  const uint64_t call = OpenLeg(act, act.stage0);
  const Client& client = clients_.Get(act.call_id);
  const bool tells_prompt = client.prompt_logprobs && act.drawn_tokens == 0;
  if (call != 0) calls_.at(call).tells_prompt = tells_prompt;
  const SimReserve request{act.attempt_id,
                           ResumedId(client.prompt_id, act.drawn_tokens),
                           client.prompt_tokens + act.drawn_tokens,
                           client.max_tokens - act.drawn_tokens,
                           {},
                           timeout_us_,
                           tells_prompt};
  world_.SendOnCall<DecodeProcess>(call, node_, "generate", [call, request](DecodeProcess& chain) {
    chain.GenerateHere(call, request);
  });
}

}  // namespace baton::sim
