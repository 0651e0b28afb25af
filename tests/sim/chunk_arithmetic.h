// What common/chunking says of chunks, worked out by other means: sums instead of closed forms,
// halving instead of roots. Slow and plain; costs are taken without floors, as what is learned is.
#ifndef TESTS_SIM_CHUNK_ARITHMETIC_H_
#define TESTS_SIM_CHUNK_ARITHMETIC_H_

#include <string>
#include <vector>

#include "common/chunking/chunk_plan.h"
#include "common/chunking/stage_cost.h"

namespace baton::sim {

// Tolerance between two ways to compute one value; a size at a page's edge may round either way.
inline constexpr double kRounding = 1e-6;
// Smoothing factor of SGLang's rule: SGLang's default and the planner's.
inline constexpr double kSmooth = 0.75;

struct IntRange {
  int least = 0;
  int most = 0;
  bool holds(int value) const { return value >= least && value <= most; }
};

// A chunk's work, and the whole time it takes.
double WorkOf(const StageCost& cost, int before, int tokens);
double MicrosOf(const StageCost& cost, int before, int tokens);
double SlowestOf(const std::vector<StageCost>& stages, int before, int tokens);

// By SGLang's rule, behind a first chunk.
IntRange SglangTokens(int before, int page_size, const StageCost& cost, int base, double smooth);

// The smallest chunk of which a seventh is overhead.
IntRange EfficientChunk(int before, int page_size, const std::vector<StageCost>& stages,
                        int max_tokens);

// Checks the chunks that PlanOptimal cuts a prompt alone on its chain into, and what
// RunChunks and FirstTokenBoundMicros say of them. "": all is right, or no worse than any other.
std::string CheckOptimal(const PromptShape& rest, const std::vector<StageCost>& stages,
                         int max_tokens, const std::vector<int>& chunks);
std::string CheckOtherRules(const PromptShape& rest, const StageCost& cost, int chunk_tokens,
                            double smooth);
std::string CheckPrices(const PromptShape& other, const std::vector<StageCost>& stages, int before,
                        int tokens);
// Costs that are none, by name; and what makes tokens cost nothing.
std::string CheckNonsense(const StageCost& cost);

}  // namespace baton::sim

#endif  // TESTS_SIM_CHUNK_ARITHMETIC_H_
