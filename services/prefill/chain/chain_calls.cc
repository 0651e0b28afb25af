// ChainShell's calls: from the arrival of a request until the planner has it, and their early ends.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "services/prefill/chain/chain_shell.h"

namespace baton::prefill {

void ChainShell::Call::Refuse(const absl::Status& status) const {
  if (start != nullptr) return start->Reply(status);
  if (reservation != nullptr) return reservation->OnEnd(status);
  stream->Conclude(status);
}

absl::Status ChainShell::Named(const absl::Status& status) const {
  if (status.ok() || LegOf(status).has_value()) return status;
  return WithLeg(status, RoleName(options_.place.role), options_.place.self.instance.id);
}

void ChainShell::Start(prefill::Start start, std::shared_ptr<StartCall> call) {
  Ask({std::move(start), {std::move(call), nullptr, nullptr, nullptr, NowUs()}});
}

void ChainShell::Generate(prefill::Start start, std::shared_ptr<worker::TokenStream> stream) {
  Ask({std::move(start), {nullptr, std::move(stream), nullptr, nullptr, NowUs()}});
}

void ChainShell::Ask(Asked asked) {
  const uint64_t attempt_id = asked.start.attempt_id;
  absl::Status refusal;
  if (asked.call.reservation == nullptr) refusal = Failpoint("prefill.start");
  // Asked here too, for the planner's answer could not tell the two calls apart.
  if (calls_.count(attempt_id) != 0 || compiling_.Find(Is(attempt_id)) != nullptr) {
    refusal = absl::AlreadyExistsError(
        absl::StrCat("attempt ", attempt_id, " is in the ", options_.limits.name, " already"));
  }
  if (!refusal.ok()) {
    asked.call.Refuse(Named(refusal));
    return;
  }
  const std::shared_ptr<const PendingConstraint> constraint =
      asked.start.prompt->sampler.params().constraint;
  if (planner_.draining() || (!compiling_.Hold(constraint, asked) && !HoldForLastStage(asked))) {
    Begin(std::move(asked));
  }
}

// Where a later stage draws, and there is a structure that it may have to compile.
bool ChainShell::HoldForLastStage(Asked& asked) {
  const links::ChainPlace& place = options_.place;
  const v1::SamplingParams& sampling = asked.start.prompt->sampling;
  if (place.stages == 1 || !sampling.has_structure() || !planner_.up()) return false;
  v1::LinkRequest request;
  request.mutable_compile()->set_attempt_id(asked.start.attempt_id);
  *request.mutable_compile()->mutable_sampling() = sampling;
  // Rejected: to begin it before, uncompiled. The plan that draws it would take too long, and end
  // the epoch.
  const int64_t deadline_us = asked.call.begun_us + asked.start.timeout_ms * 1000;
  if (!compiling_.HoldUntil(deadline_us, asked)) return false;
  Send((place.stages - 1) * place.ranks(), std::move(request));  // Its rank 0 draws.
  return true;
}

void ChainShell::OnCompiled(uint64_t attempt_id, const absl::Status& status) {
  if (!status.ok()) {
    EndHeld(Is(attempt_id), status);
  } else if (std::optional<Asked> asked = compiling_.Remove(Is(attempt_id))) {
    Begin(*std::move(asked));
  }
}

void ChainShell::Begin(Asked asked) {
  prefill::Start& start = asked.start;
  Call& call = asked.call;
  StartRequested event;
  event.attempt_id = start.attempt_id;
  event.prompt_tokens = static_cast<int>(start.prompt->tokens.size());
  event.ticket = std::move(start.ticket);
  event.deadline_us = call.begun_us + start.timeout_ms * 1000;
  event.prompt_logprobs = start.prompt->sampler.prompt_logprobs();
  event.stop = start.prompt->sampler.stop_rule();
  event.writers = std::move(start.writers);
  event.tokens = {start.prompt, &start.prompt->tokens};
  event.cache_salt = std::move(start.cache_salt);
  event.priority = start.priority;
  event.head_start_us = start.head_start_us;
  call.prompt = std::move(start.prompt);
  calls_[start.attempt_id] = std::move(call);
  Handle(std::move(event));
}

void ChainShell::BeginCompiled(int64_t now_us) {
  for (Asked& asked : compiling_.Take(now_us)) Begin(std::move(asked));
}

void ChainShell::BeginDrain(int64_t deadline_us) {
  Handle(DrainBegan{deadline_us});
  BeginCompiled(kNeverUs);  // They are refused.
}

void ChainShell::Cancel(const std::shared_ptr<StartCall>& call) {
  const absl::Status reason = absl::CancelledError("the caller has gone away");
  if (EndHeld([&](const Asked& asked) { return asked.call.start == call; }, reason)) return;
  const auto found = std::find_if(calls_.begin(), calls_.end(),
                                  [&](const auto& entry) { return entry.second.start == call; });
  if (found == calls_.end()) return;
  Handle(AbortRequested{found->first, reason});
}

void ChainShell::Cancel(const std::shared_ptr<worker::TokenStream>& stream) {
  if (stream == nullptr) return;  // It has ended meanwhile.
  const absl::Status reason = absl::CancelledError("the stream was cancelled");
  if (EndHeld([&](const Asked& asked) { return asked.call.stream == stream; }, reason)) return;
  const auto found = std::find_if(calls_.begin(), calls_.end(),
                                  [&](const auto& entry) { return entry.second.stream == stream; });
  if (found == calls_.end()) return;
  Handle(AbortRequested{found->first, reason});
}

void ChainShell::Abort(uint64_t attempt_id, const std::string& reason) {
  Abort(attempt_id, absl::CancelledError(reason.empty() ? "aborted" : reason));
}

void ChainShell::Abort(uint64_t attempt_id, const absl::Status& status) {
  if (!EndHeld(Is(attempt_id), status)) Handle(AbortRequested{attempt_id, status});
}

}  // namespace baton::prefill
