// The ranks of a stage measure what chunks cost it, which none of them could alone: when they have
// formed a group, and before their stage is ready. Rank 0, whose times count, leads: it announces
// each chunk beforehand, so that all submit the same steps however fast each of them is, and one
// rank decides how long to go on. A sweep that fails ends the group, and is not tried again.
#ifndef SERVICES_PREFILL_STAGE_RANK_SWEEP_H_
#define SERVICES_PREFILL_STAGE_RANK_SWEEP_H_

#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "common/collective/communicator.h"
#include "services/prefill/stage/cost_sweep.h"

namespace baton::prefill {

// As long as stages wait for one another when a chain is linked (services/links/core), less what
// else they need the time for.
inline constexpr int64_t kLongestRankSweepUs = 4'000'000;

class RankSweep {
 public:
  // `executor` is not owned. Nothing in `limits`: costs are not measured.
  RankSweep(Executor* executor, const std::optional<SweepLimits>& limits)
      : executor_(executor), limits_(limits) {}

  // On every rank of a group that the executors have joined, and that does nothing else meanwhile.
  // Rank 0 leads once in its life. Errors are what ended the group, or will.
  absl::Status Run(Communicator& group);

  // What rank 0 has found. Any thread.
  std::optional<KnownCost> cost() const;

 private:
  Executor* const executor_;
  const std::optional<SweepLimits> limits_;
  bool tried_ = false;  // Used by the thread of Run only.
  mutable Mutex mutex_;
  std::optional<KnownCost> cost_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_STAGE_RANK_SWEEP_H_
