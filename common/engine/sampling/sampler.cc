#include "common/engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "common/base/status.h"

namespace baton {
namespace {

constexpr size_t kBlock = 4096;

// Changed logits are clamped to this range, so that differences between logits stay finite even
// with extreme penalties.
constexpr float kMaxLogit = 1e30F;

// Uniform in [0, 1); an independent value for each (seed, position).
double UniformAt(uint64_t seed, int position) {
  return Random(Mix64(seed) + static_cast<uint64_t>(position)).Uniform();
}

uint64_t Share(double uniform, uint64_t whole) {
  return std::min(static_cast<uint64_t>(uniform * static_cast<double>(whole)), whole - 1);
}

bool Masks(const SamplingParams& params, int position) { return position < params.min_tokens; }

bool ChangesLogits(const SamplingParams& params, int position) {
  return !params.logit_bias.empty() || params.NeedsHistory() || Masks(params, position);
}

void Penalise(const SamplingParams& params, const TokenHistory& history, std::span<float> logits) {
  const auto repetition = static_cast<float>(params.repetition_penalty);
  const auto repeat = [&](int32_t token) {
    float& logit = logits[static_cast<size_t>(token)];
    logit = logit > 0 ? logit / repetition : logit * repetition;
  };
  if (params.NeedsPrompt()) {
    for (const int32_t token : history.prompt()) repeat(token);
  }
  for (const auto& [token, count] : history.counts()) {
    if (params.NeedsPrompt() && !history.InPrompt(token)) repeat(token);
    logits[static_cast<size_t>(token)] -=
        static_cast<float>(params.frequency_penalty * count + params.presence_penalty);
  }
}

// The `count` most probable tokens, in one pass: few logits enter the list.
std::vector<TokenLogprob> MostProbable(std::span<const float> logits, size_t count) {
  std::vector<TokenLogprob> top;
  top.reserve(count + 1);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (top.size() == count && !(logits[i] > top.back().logprob)) continue;
    // After equal logits, whose ids are lower.
    const auto at = std::upper_bound(
        top.begin(), top.end(), logits[i],
        [](float logit, const TokenLogprob& other) { return logit > other.logprob; });
    top.insert(at, {static_cast<int32_t>(i), logits[i]});
    if (top.size() > count) top.pop_back();
  }
  return top;
}

}  // namespace

Sampler::Sampler(int vocab_size, const kernels::KernelTable& kernels)
    : kernels_(kernels),
      weights_(vocab_size, kernels),
      block_max_((static_cast<size_t>(vocab_size) + kBlock - 1) / kBlock),
      adjusted_(static_cast<size_t>(vocab_size)) {}

std::optional<RowDraw> Sampler::RowDrawOf(const SamplingParams& params, uint64_t seed,
                                          int position) {
  if (params.logprobs || ChangesLogits(params, position)) return std::nullopt;
  if (params.temperature == 0) return RowDraw();
  return RowDraw{TokenWeights::ScaleOf(params.temperature), params.top_k, params.top_p,
                 TokenWeights::LeastWeight(params.min_p), UniformAt(seed, position)};
}

bool Sampler::Scan(std::span<const float> logits, float& max) {
  BATON_CHECK(logits.size() == adjusted_.size()) << logits.size() << " logits";
  bool finite = true;
  for (size_t block = 0; block < block_max_.size(); ++block) {
    const size_t at = block * kBlock;
    const size_t count = std::min(kBlock, logits.size() - at);
    finite = kernels_.max_of(&logits[at], count, &block_max_[block]) && finite;
  }
  max = *std::max_element(block_max_.begin(), block_max_.end());
  return finite;
}

absl::StatusOr<float> Sampler::FindMax(std::span<const float> logits) {
  float max = 0;
  if (Scan(logits, max)) return max;
  const auto bad = std::find_if_not(logits.begin(), logits.end(),
                                    [](float logit) { return std::isfinite(logit); });
  return absl::InternalError(absl::StrCat("logit of token ", bad - logits.begin(), " is ", *bad));
}

int32_t Sampler::FirstOf(std::span<const float> logits, float max) const {
  const auto block = std::find(block_max_.begin(), block_max_.end(), max) - block_max_.begin();
  const auto first =
      std::find(logits.begin() + block * static_cast<ptrdiff_t>(kBlock), logits.end(), max);
  return static_cast<int32_t>(first - logits.begin());
}

// The logits to draw from, changed by bias, penalties and masks.
absl::StatusOr<std::span<const float>> Sampler::Adjust(const Row& row) {
  const SamplingParams& params = *row.params;
  std::copy(row.logits.begin(), row.logits.end(), adjusted_.begin());
  for (const auto& [token, bias] : params.logit_bias) adjusted_[static_cast<size_t>(token)] += bias;
  BATON_CHECK(row.history != nullptr || !params.NeedsHistory()) << "a draw without its history";
  if (params.HasPenalties()) {
    Penalise(params, *row.history, adjusted_);
  }
  for (float& logit : adjusted_) logit = std::clamp(logit, -kMaxLogit, kMaxLogit);
  if (params.constraint != nullptr) {
    BATON_RETURN_IF_ERROR(Constrain(row));
  } else if (Masks(params, row.position)) {
    ForbidEnds(params);
  }
  return adjusted_;
}

void Sampler::Forbid(int32_t token) {
  adjusted_[static_cast<size_t>(token)] = -std::numeric_limits<float>::infinity();
}

void Sampler::ForbidEnds(const SamplingParams& params) {
  for (const int32_t id : params.stop_token_ids) Forbid(id);
  if (params.ignore_eos) return;
  for (const int32_t id : params.eos_token_ids) Forbid(id);
}

absl::Status Sampler::Constrain(const Row& row) {
  const SamplingParams& params = *row.params;
  absl::StatusOr<std::shared_ptr<const grammar::TokenMask>> found = row.history->NextMask();
  if (!found.ok()) return Annotate(found.status(), "structured output");
  if (*found == nullptr) {
    if (Masks(params, row.position)) ForbidEnds(params);
    return absl::OkStatus();
  }
  const grammar::TokenMask& mask = **found;
  std::vector<std::pair<int32_t, float>> ends;
  const auto add = [&](int32_t id) { ends.emplace_back(id, adjusted_[static_cast<size_t>(id)]); };
  for (const int32_t id : params.stop_token_ids) {
    if (row.history->vocabulary().IsText(id)) continue;
    add(id);
  }
  // Where nothing else could end it, text that must end is filled up with what shows nothing.
  if (!params.ignore_eos || ends.empty()) {
    for (const int32_t id : params.eos_token_ids) add(id);
  }
  for (size_t word = 0; word * 64 < adjusted_.size(); ++word) {
    const uint64_t allowed = word < mask.words.size() ? mask.words[word] : 0;
    if (allowed == ~uint64_t{0}) continue;
    const size_t end = std::min(adjusted_.size(), word * 64 + 64);
    for (size_t i = word * 64; i < end; ++i) {
      if ((allowed >> (i % 64) & 1) == 0) Forbid(static_cast<int32_t>(i));
    }
  }
  for (const int32_t id : params.eos_token_ids) Forbid(id);
  if (Masks(params, row.position)) ForbidEnds(params);
  // min_tokens does not keep a text from its end when there is nothing else: such ends don't stop
  // it, and show nothing.
  if (mask.ends && (!mask.any || !Masks(params, row.position))) {
    for (const auto& [id, logit] : ends) adjusted_[static_cast<size_t>(id)] = logit;
  }
  if (mask.any || mask.ends) return absl::OkStatus();
  return absl::InternalError("structured output: no token of the vocabulary continues the text");
}

int32_t Sampler::Draw(std::span<const float> logits, float max, const Row& row) {
  const SamplingParams& params = *row.params;
  const double uniform = UniformAt(row.seed, row.position);
  const auto top_k = params.top_k > 0 ? static_cast<size_t>(params.top_k) : logits.size();
  weights_.Weigh(logits, max, params.temperature);
  if (params.top_p < 1) {
    uint64_t kept = weights_.OfNucleus(params.top_p, weights_.OfFirst(top_k));
    if (params.min_p > 0) kept = std::min(kept, weights_.OfAtLeast(params.min_p));
    return weights_.ByRank(Share(uniform, kept));
  }
  weights_.KeepFirst(top_k);
  if (params.min_p > 0) weights_.KeepAtLeast(params.min_p);
  return weights_.ById(Share(uniform, weights_.total()));
}

void Sampler::AddLogprobs(std::span<const float> logits, float max, int top, SampledToken& token) {
  const double normalizer = max + std::log(kernels_.sum_exp(logits.data(), logits.size(), max));
  const auto logprob = [&](float logit) { return static_cast<float>(logit - normalizer); };
  token.logprob = logprob(logits[static_cast<size_t>(token.token)]);
  if (top == 0) return;
  token.top = MostProbable(logits, std::min(logits.size(), static_cast<size_t>(top)));
  for (TokenLogprob& entry : token.top) entry.logprob = logprob(entry.logprob);
}

absl::StatusOr<SampledToken> Sampler::Sample(const Row& row) {
  const SamplingParams& params = *row.params;
  BATON_ASSIGN_OR_RETURN(float max, FindMax(row.logits));
  SampledToken result;
  const float model_max = max;
  std::span<const float> logits = row.logits;
  if (ChangesLogits(params, row.position)) {
    BATON_ASSIGN_OR_RETURN(logits, Adjust(row));
    Scan(logits, max);
    if (!std::isfinite(max)) return absl::InternalError("no token is left to draw");
  }
  result.token = params.temperature == 0 ? FirstOf(logits, max) : Draw(logits, max, row);
  if (params.logprobs) AddLogprobs(row.logits, model_max, params.top_logprobs, result);
  return result;
}

absl::StatusOr<SampledToken> Sampler::Report(std::span<const float> logits, int32_t token,
                                             int top) {
  BATON_ASSIGN_OR_RETURN(const float max, FindMax(logits));
  SampledToken result;
  result.token = token;
  AddLogprobs(logits, max, top, result);
  return result;
}

}  // namespace baton
