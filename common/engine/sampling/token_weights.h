// What tokens are drawn by: the weight of every token of a row, and selection by weight without
// sorting a vocabulary.
//
// Tokens are ranked by logit, equal ones by id, the lower first. Every filter of sampling keeps a
// prefix of the ranking, so what is kept is told by one number: its weight. Sums are of integers
// and thus exact: in whatever order they are taken, the token is that which a full sort would give.
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

// One thread. Allocates nothing after its construction; 18 bytes for each token of the vocabulary.
class TokenWeights {
 public:
  TokenWeights(int vocab_size, const kernels::KernelTable& kernels);

  // Weighs a row of vocab_size logits whose largest is `max`; -infinity weighs nothing. `logits`
  // must outlive the other calls. temperature > 0.
  void Weigh(std::span<const float> logits, float max, double temperature);

  uint64_t total() const { return total_; }

  // The weight of the `count` first of the ranking.
  uint64_t OfFirst(size_t count);
  // The least weight of a prefix of the ranking that reaches `share` of `whole`.
  uint64_t OfNucleus(double share, uint64_t whole);
  // The weight of all tokens that weigh at least `share` of the best.
  uint64_t OfAtLeast(double share) const;

  // The token on which the weight `at` < total() falls, all tokens being laid side by side in the
  // ranking's order, or in that of their ids. Only tokens with a weight.
  int32_t ByRank(uint64_t at);
  int32_t ById(uint64_t at) const;

  // Takes the weight of all but the `count` first of the ranking, or of those that weigh less than
  // `share` of the best.
  void KeepFirst(size_t count);
  void KeepAtLeast(double share);

 private:
  static constexpr size_t kBlock = 4096;

  struct Entry {
    float logit;
    int32_t token;
    uint32_t weight;
  };
  // A token with the weight of the ranking up to and with it.
  struct Place {
    int32_t token;
    uint64_t weight;
  };

  void SumBuckets();
  Place Locate(uint64_t at);
  // Fills entries_ with the tokens of a bucket, unordered.
  void Gather(size_t bucket);
  // Brings those of entries_ [begin, end) that rank before the nth to its front.
  void Select(size_t begin, size_t nth, size_t end);
  // Where the ranking's first `count` end: their last bucket, and how many of them are in it.
  std::pair<size_t, size_t> Boundary(size_t count) const;
  template <typename Keep>
  void Retain(const Keep& keep);

  const kernels::KernelTable& kernels_;
  std::span<const float> logits_;
  std::vector<uint32_t> weights_;
  std::vector<uint16_t> buckets_;
  std::vector<uint64_t> block_sums_;  // Of kBlock tokens each.
  uint64_t total_ = 0;
  std::array<uint64_t, kernels::kWeightBuckets> bucket_sums_{};
  bool buckets_summed_ = false;
  std::vector<Entry> entries_;
};

}  // namespace baton

#endif  // COMMON_ENGINE_SAMPLING_TOKEN_WEIGHTS_H_
