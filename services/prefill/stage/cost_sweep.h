// What chunks cost this stage, measured before it serves: the stage's own executor computes the
// chunks of a made-up prompt. Three chunk sizes alternate, so that chunk size and prefix length
// both vary, and they grow from turn to turn while time allows. The result is the initial cost
// estimate; every real plan refines it.
//
// It leaves nothing behind: its pages are free, and a page's next owner writes before it reads.
#ifndef SERVICES_PREFILL_STAGE_COST_SWEEP_H_
#define SERVICES_PREFILL_STAGE_COST_SWEEP_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "common/chunking/cost_fit.h"
#include "common/collective/communicator.h"
#include "common/engine/executor.h"

namespace baton::prefill {

struct SweepLimits {
  int max_chunk_tokens = 0;    // Per plan; the sweep's chunks have at most half as many.
  int max_context_tokens = 0;  // The sweep's prompt length.
  // No chunk is begun that is not expected to end by then. The first one, a page, which pays for
  // what is done once, cannot be foreseen.
  int64_t budget_us = 0;
};

// What a chunk took.
struct SweepSample {
  int prefix_length = 0;
  int tokens = 0;
  int64_t micros = 0;
};

struct SweepResult {
  std::optional<KnownCost> cost;
  std::string missing;  // Why there is none.
  std::vector<SweepSample> samples;
};

// What the rank that measures says to the other ranks of its stage, which have to compute the same
// steps: first the tokens of the whole prompt and of the largest chunk, then each chunk's begin and
// tokens. No tokens: that was all.
struct SweepWord {
  int prompt_tokens = 0;
  int chunk_tokens = 0;
};

// Runs on the caller's thread and waits for the executor, which no other thread may use meanwhile.
// `tell` sends messages to the other ranks, except the last message, which the caller sends; null:
// there are no other ranks.
SweepResult SweepCosts(Executor& executor, const SweepLimits& limits,
                       const std::function<absl::Status(SweepWord)>& tell = nullptr);
// On another rank: computes the chunks it receives until the last message. Runs on the caller's
// thread too. InvalidArgument for messages that are no sweep of this executor.
absl::Status FollowSweep(Executor& executor,
                         const std::function<absl::StatusOr<SweepWord>()>& hear);

// "measured 9 chunks in 210 ms: what they cost is known to within 3 %"
std::string SweepText(const SweepResult& result, int64_t took_us);

// What the samples say, if they agree.
SweepResult FitSamples(std::vector<SweepSample> samples);

// The ranks of a stage measure what chunks cost it, which none of them could alone: when they have
// formed a group, and before their stage is ready. Rank 0, whose times count, leads: it announces
// each chunk beforehand, so that all submit the same steps however fast each of them is, and one
// rank decides how long to go on. A sweep that fails ends the group, and is not tried again.

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

#endif  // SERVICES_PREFILL_STAGE_COST_SWEEP_H_
