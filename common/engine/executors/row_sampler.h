// Draws the tokens of a step, with the rows spread over the threads that compute.
#ifndef COMMON_ENGINE_EXECUTORS_ROW_SAMPLER_H_
#define COMMON_ENGINE_EXECUTORS_ROW_SAMPLER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/sampling/sampler.h"
#include "common/engine/stage_model.h"
#include "common/types/sampled_token.h"

namespace baton {

// Used by the thread that calls the model. Allocates all of its memory in the constructor, except
// for the results.
class RowSampler {
 public:
  explicit RowSampler(StageModel* model);  // Not owned.

  // One result for each row, in order. An error concerns that row alone.
  std::vector<absl::StatusOr<SampledToken>> Draw(const std::vector<Sampler::Row>& rows);

  // For each of `tokens`: its log-probability in its row of `logits` [tokens, vocab], and the `top`
  // most probable tokens of that row.
  std::vector<absl::StatusOr<SampledToken>> Report(std::span<const float> logits,
                                                   std::span<const int32_t> tokens, int top);

 private:
  using Result = absl::StatusOr<SampledToken>;
  std::vector<Result> ForEach(size_t rows, const std::function<Result(Sampler&, size_t)>& row);

  StageModel* const model_;
  std::vector<Sampler> samplers_;  // One for each of the model's threads.
};

}  // namespace baton

#endif  // COMMON_ENGINE_EXECUTORS_ROW_SAMPLER_H_
