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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/chunking/cost_fit.h"
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

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_STAGE_COST_SWEEP_H_
