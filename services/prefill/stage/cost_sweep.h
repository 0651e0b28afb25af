// What chunks cost this stage, measured before it serves: the stage's own executor computes the
// chunks of a prompt that nobody sent, of three sizes that take turns, so that both the size and
// the prefix vary. What it finds is where learning begins; every real plan refines it.
//
// It leaves nothing behind: its pages are nobody's, and whoever gets them writes before it reads.
#ifndef SERVICES_PREFILL_STAGE_COST_SWEEP_H_
#define SERVICES_PREFILL_STAGE_COST_SWEEP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/chunking/cost_fit.h"
#include "common/engine/executor.h"

namespace baton::prefill {

struct SweepLimits {
  int max_chunk_tokens = 0;    // Of a plan; chunks of the sweep have at most half as many.
  int max_context_tokens = 0;  // Of its prompt.
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

// Runs on the caller's thread and waits for the executor, which nobody else may use meanwhile.
SweepResult SweepCosts(Executor& executor, const SweepLimits& limits);

// The chunks behind the first page, in order, as far as context and pages reach. Empty: there is
// no room for chunks of different sizes.
std::vector<int> SweepChunks(int page_size, int page_count, const SweepLimits& limits);

// What the samples say, if they agree.
SweepResult FitSamples(std::vector<SweepSample> samples);

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_STAGE_COST_SWEEP_H_
