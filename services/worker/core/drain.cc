#include "services/worker/core/drain.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace baton::worker {

void Drain::Begin(int64_t now_us) {
  if (phase_ != DrainPhase::kServing) return;
  phase_ = DrainPhase::kDraining;
  begun_us_ = now_us;
  deadline_us_ = now_us + options_.drain_us;
}

DrainPhase Drain::Update(const DrainFacts& facts, int64_t now_us) {
  if (phase_ == DrainPhase::kServing) return phase_;
  const bool needed = facts.untold_routers > 0 || facts.needed_requests > 0;
  if (facts.at_rest && !needed) return phase_ = DrainPhase::kLeaving;
  if (phase_ == DrainPhase::kDraining && now_us >= deadline_us_) phase_ = DrainPhase::kEnding;
  // Who doesn't come to rest in time, or whom a router needs for what has ended: a core or a router
  // that is stuck. The process that waits for this one (a kubelet) has no more time either.
  if (now_us >= deadline_us_ + options_.ending_us) phase_ = DrainPhase::kLeaving;
  return phase_;
}

int64_t Drain::NextDeadlineUs() const {
  switch (phase_) {
    case DrainPhase::kDraining:
      return deadline_us_;
    case DrainPhase::kEnding:
      return deadline_us_ + options_.ending_us;
    default:
      return kNeverUs;
  }
}

std::string WhatDrainWaitsFor(const DrainFacts& facts) {
  std::vector<std::string> waits;
  if (facts.untold_routers > 0) {
    waits.push_back(absl::StrCat(facts.untold_routers, " routers that do not know of it yet"));
  }
  if (facts.needed_requests > 0) {
    waits.push_back(absl::StrCat(facts.needed_requests, " requests that need it"));
  }
  if (!facts.at_rest) waits.emplace_back("its own work");
  return waits.empty() ? "nothing" : absl::StrJoin(waits, "; ");
}

}  // namespace baton::worker
