// The cost model of chunks on a stage, by which plans are made.
#ifndef COMMON_CHUNKING_STAGE_COST_H_
#define COMMON_CHUNKING_STAGE_COST_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/types/kv_layout.h"

namespace baton {

class JsonSection;  // Its header has nlohmann's, and much of the tree includes this one.

// The work of one plan: one chunk, or several of different prompts.
struct PlanWork {
  int64_t prefix_tokens = 0;  // L, summed over the chunks.
  int64_t tokens = 0;         // x
  double pairs = 0;           // 2 L x + x^2

  void Add(int prefix_length, int chunk_tokens);
};

// The limit of a coefficient: eleven days.
inline constexpr double kMaxCostMicros = 1e12;

// The microseconds of x tokens after a prefix of L:
//   overhead + prefix L + token max(x, floor) + attention (2 L x + x^2)
// The last term is the area under the causal mask, so its sum over chunks is the prompt's, wherever
// the prompt is cut. A cut adds overhead, the prefix term (the prefix is read again for each
// chunk), and chunks below the floor, which take as long as one of floor_tokens: weights are read
// for any number of rows.
struct StageCost {
  double overhead_us = 0;
  double prefix_us = 0;     // Per token of the prefix.
  double token_us = 0;      // Per token of the chunk.
  double attention_us = 0;  // Per pair of tokens, in each direction.
  int floor_tokens = 0;

  // `tokens` > 0.
  double Micros(int prefix_length, int tokens) const;
  double Micros(const PlanWork& work) const;
  // The cost of the whole prompt without what cutting adds: no plan takes a stage less.
  double WorkMicros(int prefix_length, int tokens) const;
  // The cost scaled by `factor`.
  StageCost Times(double factor) const;
  // The cost of `layers` times as many layers, which compute `work` times as much beside attention.
  StageCost OfLayers(double layers, double work) const;
  // INVALID_ARGUMENT names a coefficient that is not a number from 0 to kMaxCostMicros; also if all
  // are zero.
  absl::Status Check() const;

  friend bool operator==(const StageCost&, const StageCost&) = default;
};

// What the layers of `range` compute together, of what each does.
double WorkOf(const std::vector<double>& layer_work, LayerRange range);

// The time of the slowest stage. `stages` is not empty.
double SlowestMicros(const std::vector<StageCost>& stages, int prefix_length, int tokens);

// StageCost in files; its fields are named as StageCost's.

// Reads all fields except floor_tokens. "token_us" is required. Other missing fields are
// `otherwise`; with nullopt they are required too. The section fails if the cost does not pass
// Check.
void ReadStageCost(JsonSection& section, std::optional<double> otherwise, StageCost& cost);

}  // namespace baton

#endif  // COMMON_CHUNKING_STAGE_COST_H_
