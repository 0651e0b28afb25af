// The feed-forward layers of the CPU's stage model: dense ones, and sparse ones, whose experts each
// compute the rows that the router sends them.
//
// Every output row is computed by the same sequence of operations, whatever rows stand beside it: a
// product gives each row its bits alone, and a row's experts are added up in the order of their
// ids, the one that all share last.
#ifndef COMMON_ENGINE_NATIVE_FEED_FORWARD_H_
#define COMMON_ENGINE_NATIVE_FEED_FORWARD_H_

#include <span>
#include <vector>

#include "common/engine/kernels/kernels.h"
#include "common/engine/requirements.h"
#include "common/engine/weights/stage_weights.h"
#include "common/model/model_config.h"
#include "common/types/instance.h"

namespace baton {

// An expert that a token goes to, and the weight of what it adds.
struct ExpertShare {
  int expert;
  float weight;
};

// Chooses the experts of tokens. One thread.
class ExpertRouter {
 public:
  explicit ExpertRouter(const Experts& experts);

  // Fills `chosen`, which has experts.active elements, with the experts of the highest scores, best
  // first, the lowest id on a tie, among the groups that are kept, which are chosen the same way.
  // Weights of the softmax are over all experts, or over the chosen ones if they are normalised.
  // `bias` is added to a sigmoid's scores for the choice, not for the weights; it may be empty.
  // Scores that are no numbers give some experts and no usable weights.
  void Route(std::span<const float> scores, std::span<const float> bias,
             std::span<ExpertShare> chosen);

 private:
  void KeepGroups(std::span<float> merits);

  const Experts experts_;
  std::vector<float> merits_;        // By expert; what is compared if it isn't the scores.
  std::vector<float> group_merits_;  // By group.
  std::vector<ExpertShare> groups_;  // Those that are kept.
};

// One thread.
class FeedForward {
 public:
  // `sizes`: the model as this rank computes it, of which it holds `experts`. `kernels` must
  // outlive it.
  FeedForward(const kernels::KernelTable& kernels, const ModelConfig& sizes, IndexRange experts);

  // The most rows that one call takes.
  static int RowsOf(const LayerBlock& block) { return block.sparse ? kSparseRows : kRowBlock; }

  // y = what the layer adds to the residual stream x, or this rank's part of it; both are
  // [rows, hidden].
  void Apply(const LayerBlock& block, const float* x, int rows, float* y);

 private:
  // A row that goes to an expert.
  struct Routed {
    int row;
    float weight;
  };

  // At most kRowBlock rows.
  void Gated(const GatedBlock& block, const float* x, int rows, float* y);
  void Sparse(const LayerBlock& block, int rows, float* y);
  // Fills by_expert_ and expert_ends_ with the rows of each held expert, in their order.
  void GroupByExpert(int rows);
  // Adds what the expert that all tokens share gives.
  void AddShared(const GatedBlock& shared, int rows, float* y);
  void AddExpert(const GatedBlock& expert, std::span<const Routed> routed, float* y);

  const kernels::KernelTable& kernels_;
  void (*const gate_)(const float* gate_up, int rows, int dim, float* y);
  const int hidden_;
  const float eps_;
  const Experts experts_;
  const IndexRange held_;
  ExpertRouter router_;
  std::vector<float> normed_;        // [rows, hidden]; grows with the rows of a sparse layer.
  std::vector<float> gate_up_;       // [kRowBlock, 2 * columns of the widest gated layer]
  std::vector<float> inner_;         // [kRowBlock, columns]
  std::vector<float> gathered_;      // [kRowBlock, hidden], one expert's rows
  std::vector<float> added_;         // [kRowBlock, hidden], and what it adds to them
  std::vector<float> scores_;        // [rows, experts]
  std::vector<ExpertShare> chosen_;  // [rows, active]
  std::vector<Routed> by_expert_;
  std::vector<size_t> expert_ends_;  // In by_expert_, for each held expert.
};

}  // namespace baton

#endif  // COMMON_ENGINE_NATIVE_FEED_FORWARD_H_
