#include "services/baton/supervisor_core.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton {

std::string Describe(const ChildEnd& end) {
  if (end.signal == 0) return absl::StrCat("ended with exit code ", end.exit_code);
  return absl::StrCat("was ended by signal ", end.signal, " (", strsignal(end.signal), ")");
}

namespace {

std::string WithReason(const std::string& text, const ChildEnd& end) {
  return end.last_words.empty() ? text : absl::StrCat(text, ": ", end.last_words);
}

}  // namespace

SupervisorCore::SupervisorCore(SupervisorLimits limits, std::vector<std::string> names)
    : limits_(std::move(limits)) {
  for (std::string& name : names) children_.push_back({.name = std::move(name)});
}

SupervisorActions SupervisorCore::Begin(int64_t now_us) {
  SupervisorActions actions;
  if (limits_.start_timeout_us != 0) start_deadline_us_ = now_us + limits_.start_timeout_us;
  all_started_ = limits_.leaders == 0;
  const size_t first = all_started_ ? children_.size() : limits_.leaders;
  for (size_t child = 0; child < first; ++child) Start(child, now_us, actions);
  return actions;
}

SupervisorActions SupervisorCore::OnListening(size_t child, int64_t now_us) {
  SupervisorActions actions;
  children_[child].listening = true;
  if (all_started_ || phase_ != Phase::kStarting) return actions;
  for (size_t leader = 0; leader < limits_.leaders; ++leader) {
    if (!children_[leader].listening) return actions;
  }
  all_started_ = true;
  for (size_t other = limits_.leaders; other < children_.size(); ++other) {
    Start(other, now_us, actions);
  }
  return actions;
}

void SupervisorCore::Start(size_t child, int64_t now_us, SupervisorActions& actions) {
  children_[child].running = true;
  children_[child].started_us = now_us;
  children_[child].restart_us = kNever;
  actions.emplace_back(StartChild{child});
}

SupervisorActions SupervisorCore::OnStartFailed(size_t child, const std::string& reason,
                                                int64_t now_us) {
  SupervisorActions actions;
  children_[child].running = false;
  Stop(absl::InternalError(absl::StrCat(children_[child].name, " can't be started: ", reason)),
       now_us, actions);
  FinishIfAlone(actions);
  return actions;
}

SupervisorActions SupervisorCore::OnEnded(size_t child, const ChildEnd& end, int64_t now_us) {
  BATON_CHECK(children_[child].running) << children_[child].name;
  SupervisorActions actions;
  children_[child].running = false;
  switch (phase_) {
    case Phase::kStarting:
      // Whatever it was, the first start is the user's to mend, not a loop's.
      Stop(absl::FailedPreconditionError(WithReason(
               absl::StrCat(children_[child].name, " ", Describe(end), " before ", limits_.until),
               end)),
           now_us, actions);
      break;
    case Phase::kServing:
      DecideOnRestart(child, end, now_us, actions);
      break;
    case Phase::kStopping:
    case Phase::kFinished:
      break;
  }
  FinishIfAlone(actions);
  return actions;
}

void SupervisorCore::DecideOnRestart(size_t index, const ChildEnd& end, int64_t now_us,
                                     SupervisorActions& actions) {
  Child& child = children_[index];
  const std::vector<int>& permanent = limits_.permanent_exit_codes;
  if (end.signal == 0 &&
      std::find(permanent.begin(), permanent.end(), end.exit_code) != permanent.end()) {
    Stop(absl::FailedPreconditionError(
             WithReason(absl::StrCat(child.name, " can't go on and is not started again"), end)),
         now_us, actions);
    return;
  }
  if (now_us - child.started_us >= limits_.stable_us) child.deaths_in_a_row = 0;
  ++child.deaths_in_a_row;
  if (child.deaths_in_a_row > limits_.restarts_in_a_row) {
    Stop(absl::AbortedError(WithReason(
             absl::StrCat(child.name, " ended ", child.deaths_in_a_row, " times in a row, each in ",
                          "less than ", limits_.stable_us / 1'000'000, " s; the last time it ",
                          Describe(end)),
             end)),
         now_us, actions);
    return;
  }
  const int64_t pause_us =
      std::min(limits_.longest_restart_us,
               limits_.first_restart_us << std::min(child.deaths_in_a_row - 1, 20));
  child.restart_us = now_us + pause_us;
  actions.emplace_back(TellOfChild{
      index, absl::StrCat(Describe(end), "; starting it again in ", pause_us / 1000, " ms")});
}

void SupervisorCore::OnReady() {
  if (phase_ == Phase::kStarting) phase_ = Phase::kServing;
  start_deadline_us_ = kNever;
}

SupervisorActions SupervisorCore::OnStopSignal(int64_t now_us) {
  SupervisorActions actions;
  if (phase_ == Phase::kStopping) {
    if (result_.ok()) result_ = absl::CancelledError("killed on a second signal");
    KillAll("", actions);
  } else {
    Stop(absl::OkStatus(), now_us, actions);
    FinishIfAlone(actions);
  }
  return actions;
}

SupervisorActions SupervisorCore::OnTime(int64_t now_us) {
  SupervisorActions actions;
  if (phase_ == Phase::kStarting && now_us >= start_deadline_us_) {
    Stop(absl::DeadlineExceededError(absl::StrCat(
             "not ready after ", limits_.start_timeout_us / 1000,
             " ms (--start-timeout-ms): ", waiting_for_.empty() ? FirstMissing() : waiting_for_)),
         now_us, actions);
  }
  if (phase_ == Phase::kStopping && now_us >= kill_us_) {
    KillAll(
        absl::StrCat("did not stop within ", limits_.stop_timeout_us / 1000, " ms and is killed"),
        actions);
  }
  if (phase_ == Phase::kServing) {
    for (size_t child = 0; child < children_.size(); ++child) {
      if (now_us >= children_[child].restart_us) Start(child, now_us, actions);
    }
  }
  FinishIfAlone(actions);
  return actions;
}

int64_t SupervisorCore::NextTimeUs() const {
  int64_t next_us = std::min(start_deadline_us_, kill_us_);
  for (const Child& child : children_) next_us = std::min(next_us, child.restart_us);
  return next_us;
}

std::string SupervisorCore::FirstMissing() const {
  for (const Child& child : children_) {
    if (!child.listening) return absl::StrCat(child.name, " does not listen");
  }
  return "no process has been asked yet";
}

void SupervisorCore::Stop(absl::Status status, int64_t now_us, SupervisorActions& actions) {
  if (phase_ == Phase::kStopping || phase_ == Phase::kFinished) return;
  phase_ = Phase::kStopping;
  result_ = std::move(status);
  start_deadline_us_ = kNever;
  kill_us_ = now_us + limits_.stop_timeout_us;
  bool any = false;
  for (Child& child : children_) {
    child.restart_us = kNever;
    any = any || child.running;
  }
  if (any) actions.emplace_back(TermChildren{});
}

void SupervisorCore::KillAll(const std::string& why, SupervisorActions& actions) {
  kill_us_ = kNever;
  for (size_t child = 0; child < children_.size(); ++child) {
    if (!children_[child].running) continue;
    if (!why.empty()) actions.emplace_back(TellOfChild{child, why});
    actions.emplace_back(KillChild{child});
  }
}

void SupervisorCore::FinishIfAlone(SupervisorActions& actions) {
  if (phase_ != Phase::kStopping) return;
  for (const Child& child : children_) {
    if (child.running) return;
  }
  phase_ = Phase::kFinished;
  kill_us_ = kNever;
  actions.emplace_back(Finish{result_});
}

}  // namespace baton
