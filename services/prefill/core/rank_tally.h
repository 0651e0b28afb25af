// When a stage of several ranks is done with a plan: when all of them are. Plain, for the planner.
#ifndef SERVICES_PREFILL_CORE_RANK_TALLY_H_
#define SERVICES_PREFILL_CORE_RANK_TALLY_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "services/prefill/core/plan.h"

namespace baton::prefill {

class RankTally {
 public:
  explicit RankTally(int ranks) : done_(static_cast<size_t>(ranks), 0) {}

  // `rank` is done with a plan, and so with those before it. Returns what the stage is done with by
  // that, in order. All ranks end a plan together, with its last sum, so it took as long as on the
  // rank that came last: what the others say holds their wait for it, which tells of messages that
  // were late and not of what the plan costs. The stage waited for the plan as long as the first to
  // begin. One that was said before is nothing new.
  std::vector<PlanDone> Add(int rank, const PlanDone& done) {
    uint64_t& last = done_[static_cast<size_t>(rank)];
    if (done.number <= last) return {};
    last = done.number;
    const auto [open, is_first] = open_.try_emplace(done.number);
    PlanDone& plan = open->second;
    plan.number = done.number;
    plan.compute_us = is_first ? done.compute_us : std::min(plan.compute_us, done.compute_us);
    plan.wait_us = is_first ? done.wait_us : std::min(plan.wait_us, done.wait_us);
    if (rank == 0) plan.prompt_tokens = done.prompt_tokens;  // Rank 0 samples.
    std::vector<PlanDone> over;
    const uint64_t by_all = *std::min_element(done_.begin(), done_.end());
    while (!open_.empty() && open_.begin()->first <= by_all) {
      over.push_back(std::move(open_.begin()->second));
      open_.erase(open_.begin());
    }
    return over;
  }

  // The rank furthest behind, the first if there are several.
  int slowest() const {
    return static_cast<int>(std::min_element(done_.begin(), done_.end()) - done_.begin());
  }

 private:
  std::vector<uint64_t> done_;         // By rank: number of the last plan that it is done with.
  std::map<uint64_t, PlanDone> open_;  // That some rank is done with; as many as are in flight.
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CORE_RANK_TALLY_H_
