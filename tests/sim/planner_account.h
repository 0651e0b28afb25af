// What a chain's planner says of itself and of the ends of prompts: the status of each refusal and
// failure, the report of each prompt, its load, what a drain has ended, when it gives a stage up
// and when it wants to be woken. Held against all that it hears, by an account that shares no code
// with it; planner_witness.h is about what it plans.
#ifndef TESTS_SIM_PLANNER_ACCOUNT_H_
#define TESTS_SIM_PLANNER_ACCOUNT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "services/prefill/core/chain_planner.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

class PlannerAccount {
 public:
  PlannerAccount(World& world, const Topology& topology, std::string self,
                 const prefill::PlannerLimits& limits)
      : world_(world), topology_(topology), self_(std::move(self)), limits_(limits) {}

  // After every Handle.
  void Saw(const prefill::PlannerEvent& event, const std::vector<prefill::PlannerAction>& actions,
           const prefill::ChainPlanner& planner);

 private:
  struct Cause {
    absl::StatusCode code = absl::StatusCode::kOk;
    bool by_drain = false;
  };
  struct Done {
    int ranks = 0;      // Done with it.
    int64_t at_us = 0;  // When the last of them was.
    int64_t compute_us = 0;
    int64_t wait_us = 0;
  };
  struct Chunk {
    uint64_t plan = 0;
    int token_begin = 0;
    int token_count = 0;
  };
  struct Prompt {
    int tokens = 0;
    int planned = 0;
    int64_t arrived_us = 0;
    int64_t opened_us = kNeverUs;
    int64_t deadline_us = kNeverUs;
    int64_t transfer_us = 0;  // The longest of the stages'.
    int64_t exposed_us = 0;
    bool finished = false;
    bool aborted = false;    // In a plan.
    uint64_t last_plan = 0;  // That names it.
    int64_t over_us = kNeverUs;
    std::map<std::pair<int, int>, bool> closed;  // (stage, rank)
    std::vector<Chunk> chunks;
  };

  void Hear(const prefill::ChainUp& event);
  void Hear(const prefill::ChainDown& event);
  void Hear(const prefill::StartRequested& event);
  void Hear(const prefill::AbortRequested& event);
  void Hear(const prefill::StagePlanDone& event);
  void Hear(const prefill::StageRequestClosed& event);
  void Hear(const prefill::DrainBegan& event);
  template <typename Other>
  void Hear(const Other&) {}
  void HearTime();
  void MustEnd(uint64_t attempt_id, Cause cause) { ends_due_.try_emplace(attempt_id, cause); }

  void See(const prefill::IssuePlan& action);
  void See(const prefill::FinishRequest& action);
  void See(const prefill::FailChain& action);
  // What no planner of these does, the other witness complains of.
  template <typename Other>
  void See(const Other&) {}
  void CheckReport(uint64_t attempt_id, const Prompt& prompt,
                   const prefill::PrefillOutcome& outcome);
  bool Timed(const Chunk& chunk, const prefill::ChunkTiming& timing) const;

  uint64_t DoneEverywhere() const;
  // The stage that is overdue first, and when.
  std::pair<int, int64_t> NextOverdue() const;
  // When stages have had their time to close what is over.
  int64_t ClosingDueUs() const;
  void NoteOver();
  const Done* FindDone(uint64_t plan, int stage) const;  // nullptr: some rank is not.
  int CountQueued() const;
  void Forget();
  void CheckLoad(const prefill::ChainPlanner& planner);
  void CheckTimer(const prefill::ChainPlanner& planner);
  void Complain(uint64_t attempt_id, const std::string& what);

  World& world_;
  const Topology& topology_;
  const std::string self_;
  const prefill::PlannerLimits limits_;
  bool up_ = false;
  bool failed_ = false;
  uint64_t epoch_ = 0;
  uint64_t issued_ = 0;
  std::vector<std::vector<uint64_t>> by_rank_;   // By stage and rank: last plan.
  std::vector<uint64_t> done_;                   // By stage: that all its ranks are done with.
  std::vector<int64_t> last_done_us_;            // By stage.
  std::map<std::pair<uint64_t, int>, Done> of_;  // (plan, stage).
  std::map<uint64_t, Prompt> prompts_;           // By attempt.
  bool draining_ = false;
  int64_t drain_ends_us_ = kNeverUs;
  DrainCounts drained_;
  std::map<uint64_t, Cause> ends_due_;  // Due in this event, by attempt.
  std::optional<uint64_t> asked_;       // Attempt.
};

}  // namespace baton::sim

#endif  // TESTS_SIM_PLANNER_ACCOUNT_H_
