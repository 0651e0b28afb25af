// What must be true of a stage after every event, for tests.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/prefill/core/stage_state.h"

namespace baton::prefill {
namespace {

// Each plan is applied once.
template <class State>
absl::Status CheckTurns(const State& state) {
  const auto waiting =
      std::count_if(state.under_way.begin(), state.under_way.end(),
                    [&state](const auto& p) { return p.epoch == state.epoch && !p.in_effect; });
  if (state.applied + state.plans.size() + static_cast<uint64_t>(waiting) == state.last_number) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(state.last_number, " plans have come, ", state.applied,
                                          " were applied, ", waiting, " and ", state.plans.size(),
                                          " wait for it"));
}

// In the current epoch every plan under way, held, or waiting to be passed on has its own buffer.
template <class State>
absl::Status CheckBuffers(const State& state) {
  const auto credits = static_cast<size_t>(state.options.activation_credits);
  if (state.inputs.size() > credits || state.uncredited.size() > credits) {
    return absl::InternalError(absl::StrCat(state.inputs.size(), " inputs and ",
                                            state.uncredited.size(), " sent outputs with ", credits,
                                            " credits"));
  }
  if (state.WithExecutor() > state.options.plans_in_flight) {
    return absl::InternalError(absl::StrCat(state.WithExecutor(), " plans are with the executor"));
  }
  if (state.epoch == 0 || state.options.stage + 1 == state.options.stages) return absl::OkStatus();
  uint64_t newest = 0;
  if (!state.to_pass.empty()) newest = state.to_pass.back().first;
  for (const auto& [of_epoch, number] : state.passing) newest = std::max(newest, number);
  for (const auto& plan : state.under_way) {
    if (!plan.plan.items.empty()) newest = std::max(newest, plan.plan.number);
  }
  if (newest == 0 || state.OutputBufferFree(newest)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("plans ", state.OldestOutput(newest), " and ", newest,
                                          " have one output buffer"));
}

// What waits for activations counts as being sent, and waits for some that are leaving.
template <class State>
absl::Status CheckKv(const State& state) {
  if (state.kv_behind.empty()) return absl::OkStatus();
  const uint64_t first = state.kv_behind.begin()->first;
  if (state.passing.count({state.epoch, first}) == 0) {
    return absl::InternalError(
        absl::StrCat("KV of plan ", first, " waits for activations that are not leaving"));
  }
  for (const auto& [number, waiting] : state.kv_behind) {
    for (const auto& action : waiting) {
      const uint64_t send_id = std::visit([](const auto& send) { return send.send_id; }, action);
      if (state.sends.count(send_id) == 1) continue;
      return absl::InternalError(
          absl::StrCat("send ", send_id, " of plan ", number, " waits and is not counted"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Stage::CheckInvariants() const {
  const State& state = *state_;
  BATON_RETURN_IF_ERROR(CheckKv(state));
  BATON_RETURN_IF_ERROR(CheckTurns(state));
  BATON_RETURN_IF_ERROR(CheckBuffers(state));
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
