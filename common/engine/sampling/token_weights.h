// The weight of every token of a row of logits, and selection by weight without sorting the
// vocabulary.
//
// Tokens are ranked by logit, equal logits by id, the lower first. Every sampling filter keeps a
// prefix of the ranking, so one number, its weight, describes what is kept. Sums are of integers
// and therefore exact: in any order they give the token that a full sort would give.
#ifndef COMMON_ENGINE_SAMPLING_TOKEN_WEIGHTS_H_
#define COMMON_ENGINE_SAMPLING_TOKEN_WEIGHTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/engine/kernels/kernels.h"

namespace baton {

// One thread. Allocates nothing after construction: 18 bytes for each token of the vocabulary.
class TokenWeights {
 public:
  TokenWeights(int vocab_size, const kernels::KernelTable& kernels);

  // Computes the weights of a row of vocab_size logits whose largest is `max`; the weight of
  // -infinity is 0. `logits` must outlive the other calls. temperature > 0.
  void Weigh(std::span<const float> logits, float max, double temperature);

  // The scale of KernelTable::weigh. temperature > 0.
  static float ScaleOf(double temperature);
  // The least weight of a token whose weight is at least `share` of the largest.
  static uint32_t LeastWeight(double share);

  uint64_t total() const { return total_; }

  // The weight of the first `count` tokens of the ranking.
  uint64_t OfFirst(size_t count);
  // The weight of the shortest prefix of the ranking that reaches `share` of `whole`.
  uint64_t OfNucleus(double share, uint64_t whole);
  // The weight of all tokens whose weight is at least `share` of the largest.
  uint64_t OfAtLeast(double share) const;

  // The token at `at` < total(), when the tokens' weights are laid side by side in the order of the
  // ranking (ByRank) or of the ids (ById). Tokens without weight are never returned.
  int32_t ByRank(uint64_t at);
  int32_t ById(uint64_t at) const;

  // Sets the weight to 0 of all tokens but the first `count` of the ranking, or of those whose
  // weight is below `share` of the largest.
  void KeepFirst(size_t count);
  void KeepAtLeast(double share);

 private:
  static constexpr size_t kBlock = 4096;

  struct Entry {
    float logit;
    int32_t token;
    uint32_t weight;
  };
  // A token and the weight of the ranking up to and including it.
  struct Place {
    int32_t token;
    uint64_t weight;
  };

  void SumBuckets();
  Place Locate(uint64_t at);
  // Fills entries_ with the tokens of a bucket, unordered.
  void Gather(size_t bucket);
  // Moves those of entries_ [begin, end) that rank before the nth to the front of the range.
  void Select(size_t begin, size_t nth, size_t end);
  // Where the first `count` of the ranking end: the last bucket, and how many of them are in it.
  std::pair<size_t, size_t> Boundary(size_t count) const;
  template <typename Keep>
  void Retain(const Keep& keep);

  const kernels::KernelTable& kernels_;
  std::span<const float> logits_;
  std::vector<uint32_t> weights_;
  std::vector<uint16_t> buckets_;
  std::vector<uint64_t> block_sums_;  // The weight of each kBlock tokens.
  uint64_t total_ = 0;
  std::array<uint64_t, kernels::kWeightBuckets> bucket_sums_{};
  bool buckets_summed_ = false;
  std::vector<Entry> entries_;
};

}  // namespace baton

#endif  // COMMON_ENGINE_SAMPLING_TOKEN_WEIGHTS_H_
