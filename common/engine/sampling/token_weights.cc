#include "common/engine/sampling/token_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "common/base/check.h"

namespace baton {
namespace {

// Beyond this scale, differences between logits overflow. A temperature that small is greedy
// anyway.
constexpr double kMaxScale = 1e30;

// Tokens that are checked together: most blocks of so many have no token of a given bucket.
constexpr size_t kGatherBlock = 64;

// Whether one of the kGatherBlock buckets at `p` is `wanted`. Uses vector types, since the compiler
// does not vectorize the plain loop.
bool AnyIs(const uint16_t* p, size_t wanted) {
  using Lanes = uint16_t __attribute__((vector_size(16)));
  constexpr size_t kLanes = sizeof(Lanes) / sizeof(uint16_t);
  const Lanes same = Lanes{} + static_cast<uint16_t>(wanted);
  Lanes any{};
  for (size_t i = 0; i < kGatherBlock; i += kLanes) {
    Lanes some;
    std::memcpy(&some, p + i, sizeof(some));
    any |= some == same;
  }
  std::array<uint64_t, 2> halves{};
  std::memcpy(halves.data(), &any, sizeof(any));
  return (halves[0] | halves[1]) != 0;
}

}  // namespace

float TokenWeights::ScaleOf(double temperature) {
  return static_cast<float>(std::min(std::numbers::log2e / temperature, kMaxScale));
}

uint32_t TokenWeights::LeastWeight(double share) {
  return static_cast<uint32_t>(std::ceil(share * kernels::kUnitWeight));
}

TokenWeights::TokenWeights(int vocab_size, const kernels::KernelTable& kernels)
    : kernels_(kernels),
      weights_(static_cast<size_t>(vocab_size)),
      buckets_(static_cast<size_t>(vocab_size)),
      block_sums_((static_cast<size_t>(vocab_size) + kBlock - 1) / kBlock) {
  entries_.reserve(weights_.size());  // All may be equal.
}

void TokenWeights::Weigh(std::span<const float> logits, float max, double temperature) {
  BATON_CHECK(logits.size() == weights_.size()) << logits.size() << " logits";
  logits_ = logits;
  buckets_summed_ = false;
  total_ = 0;
  const float scale = ScaleOf(temperature);
  for (size_t block = 0; block < block_sums_.size(); ++block) {
    const size_t at = block * kBlock;
    block_sums_[block] = kernels_.weigh(&logits[at], std::min(kBlock, logits.size() - at), max,
                                        scale, &weights_[at], &buckets_[at]);
    total_ += block_sums_[block];
  }
}

void TokenWeights::SumBuckets() {
  if (std::exchange(buckets_summed_, true)) return;
  // Two tables, so that two neighbours in the same bucket don't wait for each other's addition.
  std::array<uint64_t, kernels::kWeightBuckets> odd{};
  bucket_sums_.fill(0);
  for (size_t block = 0; block < block_sums_.size(); ++block) {
    if (block_sums_[block] == 0) continue;
    const size_t end = std::min((block + 1) * kBlock, weights_.size());
    size_t i = block * kBlock;
    for (; i + 2 <= end; i += 2) {
      bucket_sums_[buckets_[i]] += weights_[i];
      odd[buckets_[i + 1]] += weights_[i + 1];
    }
    if (i < end) bucket_sums_[buckets_[i]] += weights_[i];
  }
  for (size_t bucket = 0; bucket < odd.size(); ++bucket) bucket_sums_[bucket] += odd[bucket];
}

void TokenWeights::Gather(size_t bucket) {
  entries_.clear();
  const auto take = [&](size_t i) {
    if (buckets_[i] != bucket) return;
    entries_.push_back({logits_[i], static_cast<int32_t>(i), weights_[i]});
  };
  size_t begin = 0;
  for (; begin + kGatherBlock <= buckets_.size(); begin += kGatherBlock) {
    if (!AnyIs(&buckets_[begin], bucket)) continue;
    for (size_t i = begin; i < begin + kGatherBlock; ++i) take(i);
  }
  for (; begin < buckets_.size(); ++begin) take(begin);
}

void TokenWeights::Select(size_t begin, size_t nth, size_t end) {
  if (nth >= end) return;
  const auto at = [this](size_t i) { return entries_.begin() + static_cast<ptrdiff_t>(i); };
  std::nth_element(at(begin), at(nth), at(end), [](const Entry& a, const Entry& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  });
}

// Halves the entries of the bucket that contains `at`, by rank, until one is left.
TokenWeights::Place TokenWeights::Locate(uint64_t at) {
  BATON_CHECK(at < total_) << at << " of " << total_;
  SumBuckets();
  uint64_t before = 0;
  size_t bucket = 0;
  while (before + bucket_sums_[bucket] <= at) before += bucket_sums_[bucket++];
  Gather(bucket);
  size_t begin = 0;
  size_t end = entries_.size();
  while (end - begin > 1) {
    const size_t middle = begin + (end - begin) / 2;
    Select(begin, middle, end);
    uint64_t half = 0;
    for (size_t i = begin; i < middle; ++i) half += entries_[i].weight;
    if (before + half > at) {
      end = middle;
    } else {
      before += half;
      begin = middle;
    }
  }
  return {entries_[begin].token, before + entries_[begin].weight};
}

std::pair<size_t, size_t> TokenWeights::Boundary(size_t count) const {
  // Two tables, as in SumBuckets.
  std::array<uint32_t, kernels::kWeightBuckets> counts{};
  std::array<uint32_t, kernels::kWeightBuckets> odd{};
  size_t i = 0;
  for (; i + 2 <= buckets_.size(); i += 2) {
    ++counts[buckets_[i]];
    ++odd[buckets_[i + 1]];
  }
  if (i < buckets_.size()) ++counts[buckets_[i]];
  size_t bucket = 0;
  for (; counts[bucket] + odd[bucket] < count; ++bucket) count -= counts[bucket] + odd[bucket];
  return {bucket, count};
}

uint64_t TokenWeights::OfFirst(size_t count) {
  if (count >= weights_.size()) return total_;
  SumBuckets();
  const auto [last, inside] = Boundary(count);
  uint64_t sum = 0;
  for (size_t bucket = 0; bucket < last; ++bucket) sum += bucket_sums_[bucket];
  Gather(last);
  Select(0, inside, entries_.size());
  for (size_t i = 0; i < inside; ++i) sum += entries_[i].weight;
  return sum;
}

uint64_t TokenWeights::OfNucleus(double share, uint64_t whole) {
  const double needed = std::ceil(share * static_cast<double>(whole));
  return Locate(std::clamp(static_cast<uint64_t>(needed), uint64_t{1}, whole) - 1).weight;
}

uint64_t TokenWeights::OfAtLeast(double share) const {
  const uint32_t least = LeastWeight(share);
  uint64_t sum = 0;
  for (const uint32_t weight : weights_) sum += weight >= least ? weight : 0;
  return sum;
}

int32_t TokenWeights::ByRank(uint64_t at) { return Locate(at).token; }

int32_t TokenWeights::ById(uint64_t at) const {
  BATON_CHECK(at < total_) << at << " of " << total_;
  size_t block = 0;
  while (block_sums_[block] <= at) at -= block_sums_[block++];
  size_t token = block * kBlock;
  while (weights_[token] <= at) at -= weights_[token++];
  return static_cast<int32_t>(token);
}

template <typename Keep>
void TokenWeights::Retain(const Keep& keep) {
  buckets_summed_ = false;
  total_ = 0;
  for (size_t block = 0; block < block_sums_.size(); ++block) {
    uint64_t sum = 0;
    const size_t end = std::min((block + 1) * kBlock, weights_.size());
    for (size_t i = block * kBlock; i < end; ++i) {
      weights_[i] = keep(i) ? weights_[i] : 0;
      sum += weights_[i];
    }
    block_sums_[block] = sum;
    total_ += sum;
  }
}

void TokenWeights::KeepFirst(size_t count) {
  if (count >= weights_.size()) return;
  const auto [last, inside] = Boundary(count);
  Gather(last);
  Select(0, inside, entries_.size());
  for (size_t i = inside; i < entries_.size(); ++i) {
    weights_[static_cast<size_t>(entries_[i].token)] = 0;
  }
  Retain([this, last = last](size_t i) { return buckets_[i] <= last; });
}

void TokenWeights::KeepAtLeast(double share) {
  const uint32_t least = LeastWeight(share);
  Retain([this, least](size_t i) { return weights_[i] >= least; });
}

}  // namespace baton
