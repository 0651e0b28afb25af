// What must be true of a stage after every event.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/prefill/core/stage_state.h"

namespace baton::prefill {

// Each plan is applied once.
absl::Status Stage::State::CheckTurns() const {
  const auto waiting = std::count_if(under_way.begin(), under_way.end(), [this](const UnderWay& p) {
    return p.epoch == epoch && !p.in_effect;
  });
  if (applied + plans.size() + static_cast<uint64_t>(waiting) == last_number) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(last_number, " plans have come, ", applied,
                                          " were applied, ", waiting, " and ", plans.size(),
                                          " wait for it"));
}

// In the current epoch every plan under way, held, or waiting to be passed on has its own buffer.
absl::Status Stage::State::CheckBuffers() const {
  const auto credits = static_cast<size_t>(options.activation_credits);
  if (inputs.size() > credits || uncredited.size() > credits) {
    return absl::InternalError(absl::StrCat(inputs.size(), " inputs and ", uncredited.size(),
                                            " sent outputs with ", credits, " credits"));
  }
  if (WithExecutor() > options.plans_in_flight) {
    return absl::InternalError(absl::StrCat(WithExecutor(), " plans are with the executor"));
  }
  if (epoch == 0 || options.stage + 1 == options.stages) return absl::OkStatus();
  uint64_t newest = 0;
  if (!to_pass.empty()) newest = to_pass.back().first;
  for (const auto& [of_epoch, number] : passing) newest = std::max(newest, number);
  for (const UnderWay& plan : under_way) {
    if (!plan.plan.items.empty()) newest = std::max(newest, plan.plan.number);
  }
  if (newest == 0 || OutputBufferFree(newest)) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("plans ", OldestOutput(newest), " and ", newest, " have one output buffer"));
}

// What waits for activations counts as being sent, and waits for some that are leaving.
absl::Status Stage::State::CheckKv() const {
  if (kv_behind.empty()) return absl::OkStatus();
  const uint64_t first = kv_behind.begin()->first;
  if (passing.count({epoch, first}) == 0) {
    return absl::InternalError(
        absl::StrCat("KV of plan ", first, " waits for activations that are not leaving"));
  }
  for (const auto& [number, waiting] : kv_behind) {
    for (const KvAction& action : waiting) {
      const uint64_t send_id = std::visit([](const auto& send) { return send.send_id; }, action);
      if (sends.count(send_id) == 1) continue;
      return absl::InternalError(
          absl::StrCat("send ", send_id, " of plan ", number, " waits and is not counted"));
    }
  }
  return absl::OkStatus();
}

absl::Status Stage::CheckInvariants() const {
  const State& state = *state_;
  BATON_RETURN_IF_ERROR(state.CheckKv());
  BATON_RETURN_IF_ERROR(state.CheckTurns());
  BATON_RETURN_IF_ERROR(state.CheckBuffers());
  if (!state.under_way.empty() && state.under_way.front().plan.items.empty()) {
    return absl::InternalError("a plan without items waits for none");
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
