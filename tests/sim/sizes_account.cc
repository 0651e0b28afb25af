#include "tests/sim/sizes_account.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace baton::sim {
namespace {

// As the header says of kOptimal.
constexpr double kDrift = 0.1;
constexpr double kFixedDrift = 0.3;
constexpr int kUnknownChunks = 4;
constexpr int kLeastUnknown = 512;
constexpr double kSmooth = 0.75;  // SGLang's own, and the planner's.
// Of the cuts of a chain's life that are compared with others, which takes a while.
constexpr int kChecks = 6;

}  // namespace

SizesAccount::SizesAccount(const Topology& topology)
    : topology_(topology),
      most_tokens_(std::min(
          topology.chunk_tokens,
          static_cast<int>(
              std::ceil(static_cast<double>(topology.max_context_tokens) / topology.page_size)) *
              topology.page_size)),
      checks_left_(kChecks) {}

std::string SizesAccount::See(const ChunkPosition& position, const std::vector<StageCost>& costs,
                              int tokens, bool alone) {
  const IntRange budget = Expect(position, costs);
  if (!alone) return "";
  const int left = position.remaining_tokens;
  const PromptShape rest = {position.prefix_length, left, topology_.page_size};
  if (alone_) Observe(rest, costs, tokens);
  // Of a larger one nobody sees more than what is left.
  const IntRange right = {std::min(left, budget.least), std::min(left, budget.most)};
  if (!right.holds(tokens)) {
    return absl::StrCat(tokens, " tokens after ", position.prefix_length, " of ",
                        position.prefix_length + left, " are a plan, not ", right.least, " to ",
                        right.most, ", while ", position.other_tokens, " of others wait");
  }
  if (!alone_ || !cut_now_ || checks_left_ <= 0) return "";
  --checks_left_;
  const int first = PlanOptimal(rest, costs, most_tokens_).front();
  if (first != tokens) {
    return absl::StrCat("a prompt is to begin with ", first, " tokens, and does with ", tokens);
  }
  return CheckPlanOptimal(rest, costs, most_tokens_);
}

IntRange SizesAccount::Unknowing(const ChunkPosition& position) const {
  const int page = topology_.page_size;
  if (position.stages == 1) return {most_tokens_, most_tokens_};
  const int prompt = position.prefix_length + position.remaining_tokens;
  int tokens = std::max(prompt / (kUnknownChunks * position.stages), kLeastUnknown);
  if (position.prefix_length == 0 && prompt > tokens) tokens /= 2;
  tokens = std::min(std::max(tokens / page, 1) * page, most_tokens_);
  return {tokens, tokens};
}

IntRange SizesAccount::Expect(const ChunkPosition& position, const std::vector<StageCost>& costs) {
  const int page = topology_.page_size;
  const int before = position.prefix_length;
  alone_ = cut_now_ = false;
  if (topology_.chunk_rule == ChunkRule::kFixed) return {most_tokens_, most_tokens_};
  if (topology_.chunk_rule == ChunkRule::kSglang) {
    if (before == 0 || costs.empty()) return {most_tokens_, most_tokens_};
    size_t slowest = 0;
    for (size_t stage = 1; stage < costs.size(); ++stage) {
      const bool slower =
          MicrosOf(costs[stage], 0, most_tokens_) > MicrosOf(costs[slowest], 0, most_tokens_);
      if (slower) slowest = stage;
    }
    return SglangTokens(before, page, costs[slowest], most_tokens_, kSmooth);
  }
  if (costs.empty()) return Unknowing(position);
  const IntRange efficient = EfficientChunk(before, page, costs, most_tokens_);
  const auto further = static_cast<int64_t>(costs.size()) - 1;
  if (position.other_tokens >= std::max<int64_t>(further * efficient.most, 1)) return efficient;
  const IntRange any = {page, most_tokens_};
  if (position.other_tokens >= std::max<int64_t>(further * efficient.least, 1)) return any;
  alone_ = true;
  const PromptShape rest = {before, position.remaining_tokens, page};
  if (!Stands(rest, costs)) {
    cut_now_ = true;
    cut_from_ = before;
    cut_end_ = before + rest.tokens;
    cut_tokens_ = 0;
    cut_fixed_us_ = SlowestOf(costs, before, 0);
    limit_least_us_ = 0;
    limit_most_us_ = kEndless;
    return any;
  }
  if (cut_tokens_ == 0) return any;
  const int least = LongestWithin(rest, costs, most_tokens_, limit_least_us_ * (1 - kRounding));
  const int most = LongestWithin(rest, costs, most_tokens_, limit_most_us_ * (1 + kRounding));
  return {std::max(least, page), std::max(most, page)};
}

// Whether the prompt is still cut as it was.
bool SizesAccount::Stands(const PromptShape& rest, const std::vector<StageCost>& costs) const {
  if (rest.prefix_length + rest.tokens != cut_end_ || rest.prefix_length < cut_from_) return false;
  if (cut_tokens_ == 0) return true;  // Nobody can tell.
  const double now_us = SlowestOf(costs, cut_from_, cut_tokens_);
  const double fixed_us = SlowestOf(costs, cut_from_, 0);
  return std::abs(now_us - cut_us_) <= kDrift * cut_us_ &&
         std::abs(fixed_us - cut_fixed_us_) <= kFixedDrift * cut_fixed_us_;
}

// What a chunk's size tells of the limit that it was cut by.
void SizesAccount::Observe(const PromptShape& rest, const std::vector<StageCost>& costs,
                           int tokens) {
  const int before = rest.prefix_length;
  if (cut_now_) {
    cut_tokens_ = tokens;
    cut_us_ = SlowestOf(costs, before, tokens);
  } else if (cut_tokens_ == 0) {
    return;
  }
  const int page = rest.page_size;
  if (tokens > page) {  // Which is taken whatever the limit.
    limit_least_us_ = std::max(limit_least_us_, SlowestOf(costs, before, tokens));
  }
  if (tokens == rest.tokens || tokens + page > most_tokens_) return;
  const int more = std::min(tokens + page, rest.tokens);
  limit_most_us_ = std::min(limit_most_us_, SlowestOf(costs, before, more));
}

}  // namespace baton::sim
