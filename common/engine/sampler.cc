#include "common/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"

namespace baton {
namespace {

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// Uniform in [0, 1), one independent value for each (seed, position).
double UniformAt(uint64_t seed, int position) {
  return Random(Mix64(seed) + static_cast<uint64_t>(position)).Uniform();
}

// A strict total order, so that equal logits sort alike everywhere.
auto MoreProbable(std::span<const float> logits) {
  return [logits](int32_t a, int32_t b) {
    const float la = logits[static_cast<size_t>(a)];
    const float lb = logits[static_cast<size_t>(b)];
    return la != lb ? la > lb : a < b;
  };
}

struct Candidate {
  int32_t token;
  double weight;  // Probability relative to the best candidate's.
};

double TotalWeight(const std::vector<Candidate>& candidates) {
  return std::accumulate(candidates.begin(), candidates.end(), 0.0,
                         [](double sum, const Candidate& c) { return sum + c.weight; });
}

// The fewest of `ids`, most probable first, whose weights reach `share` of `total`. Sorts no more
// than it must: a vocabulary has 150,000 ids and the answer mostly a few dozen.
std::vector<Candidate> Nucleus(std::span<const float> logits, std::vector<int32_t> ids,
                               double share, double total, const auto& weight_of) {
  std::vector<Candidate> kept;
  double sum = 0;
  size_t sorted = 0;
  while (sorted < ids.size()) {
    const size_t end = std::min(ids.size(), std::max<size_t>(64, 4 * sorted));
    std::partial_sort(ids.begin() + static_cast<ptrdiff_t>(sorted),
                      ids.begin() + static_cast<ptrdiff_t>(end), ids.end(), MoreProbable(logits));
    for (; sorted < end; ++sorted) {
      kept.push_back({ids[sorted], weight_of(ids[sorted])});
      sum += kept.back().weight;
      if (sum >= share * total) return kept;
    }
  }
  return kept;
}

std::vector<Candidate> Filter(std::span<const float> logits, std::vector<int32_t> ids,
                              const SamplingParams& params) {
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < ids.size()) {
    std::nth_element(ids.begin(), ids.begin() + params.top_k - 1, ids.end(), MoreProbable(logits));
    ids.resize(static_cast<size_t>(params.top_k));
    std::sort(ids.begin(), ids.end());  // One order of candidates, however they were chosen.
  }
  const int32_t best = *std::min_element(ids.begin(), ids.end(), MoreProbable(logits));
  const double max = logits[static_cast<size_t>(best)];
  const auto weight_of = [&](int32_t id) {
    return std::exp((logits[static_cast<size_t>(id)] - max) / params.temperature);
  };
  std::vector<Candidate> candidates;
  candidates.reserve(ids.size());
  for (const int32_t id : ids) candidates.push_back({id, weight_of(id)});
  if (params.top_p < 1) {
    candidates = Nucleus(logits, std::move(ids), params.top_p, TotalWeight(candidates), weight_of);
  }
  std::erase_if(candidates, [&](const Candidate& c) { return c.weight < params.min_p; });
  return candidates;
}

int32_t Draw(const std::vector<Candidate>& candidates, double uniform) {
  double rest = uniform * TotalWeight(candidates);
  for (const Candidate& candidate : candidates) {
    rest -= candidate.weight;
    if (rest < 0) return candidate.token;
  }
  // Rounding can leave a crumb; it belongs to the last token that has any weight.
  const auto last = std::find_if(candidates.rbegin(), candidates.rend(),
                                 [](const Candidate& c) { return c.weight > 0; });
  return last->token;
}

// log(sum(exp(logits))), or Internal when a logit is not finite.
absl::StatusOr<double> LogNormalizer(std::span<const float> logits) {
  double max = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      return absl::InternalError(absl::StrCat("logit of token ", i, " is ", logits[i]));
    }
    max = std::max<double>(max, logits[i]);
  }
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  return max + std::log(sum);
}

std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, int count, double normalizer) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto kept = std::min(logits.size(), static_cast<size_t>(count));
  std::partial_sort(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(kept), ids.end(),
                    MoreProbable(logits));
  std::vector<TokenLogprob> top;
  for (size_t i = 0; i < kept; ++i) {
    const float logit = logits[static_cast<size_t>(ids[i])];
    top.push_back({ids[i], static_cast<float>(logit - normalizer)});
  }
  return top;
}

absl::Status ValidateIds(const char* field, const std::vector<int32_t>& ids, int vocab_size) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      return InvalidField(
          field, absl::StrCat("token id ", id, " is outside the vocabulary of ", vocab_size));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateSamplingParams(const SamplingParams& params, int vocab_size) {
  // Written so that NaN fails.
  if (!(params.temperature >= 0 && std::isfinite(params.temperature))) {
    return InvalidField("temperature",
                        absl::StrCat("must be finite and not negative, is ", params.temperature));
  }
  if (params.top_k < 0) {
    return InvalidField("top_k", absl::StrCat("must not be negative, is ", params.top_k));
  }
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    return InvalidField("top_p", absl::StrCat("must be in (0, 1], is ", params.top_p));
  }
  if (!(params.min_p >= 0 && params.min_p <= 1)) {
    return InvalidField("min_p", absl::StrCat("must be in [0, 1], is ", params.min_p));
  }
  if (params.min_tokens < 0) {
    return InvalidField("min_tokens", absl::StrCat("must not be negative, is ", params.min_tokens));
  }
  if (params.top_logprobs < 0 || params.top_logprobs > kMaxTopLogprobs) {
    return InvalidField("top_logprobs", absl::StrCat("must be between 0 and ", kMaxTopLogprobs,
                                                     ", is ", params.top_logprobs));
  }
  BATON_RETURN_IF_ERROR(ValidateIds("eos_token_ids", params.eos_token_ids, vocab_size));
  return ValidateIds("stop_token_ids", params.stop_token_ids, vocab_size);
}

bool EndsGeneration(const SamplingParams& params, int32_t token) {
  return Contains(params.stop_token_ids, token) ||
         (!params.ignore_eos && Contains(params.eos_token_ids, token));
}

absl::StatusOr<SampledToken> Sample(std::span<const float> logits, const SamplingParams& params,
                                    uint64_t seed, int position) {
  BATON_ASSIGN_OR_RETURN(const double normalizer, LogNormalizer(logits));
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (position < params.min_tokens) {
    std::erase_if(ids, [&](int32_t id) { return EndsGeneration(params, id); });
  }
  if (ids.empty()) return absl::InternalError("no token is left to draw");

  SampledToken result;
  if (params.temperature == 0) {
    result.token = *std::min_element(ids.begin(), ids.end(), MoreProbable(logits));
  } else {
    result.token = Draw(Filter(logits, std::move(ids), params), UniformAt(seed, position));
  }
  result.logprob = static_cast<float>(logits[static_cast<size_t>(result.token)] - normalizer);
  if (params.top_logprobs > 0) result.top = TopLogprobs(logits, params.top_logprobs, normalizer);
  return result;
}

}  // namespace baton
