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
// How many cuts per life of a chain are compared with others, which is slow.
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
  // A larger budget shows only as all that is left.
  const IntRange right = {std::min(left, budget.least), std::min(left, budget.most)};
  if (!right.holds(tokens)) {
    return absl::StrCat(tokens, " tokens after ", position.prefix_length, " of ",
                        position.prefix_length + left, " are a plan, not ", right.least, " to ",
                        right.most, ", while ", position.other_tokens, " of others wait");
  }
  if (!cut_now_ || checks_left_ <= 0) return "";
  --checks_left_;
  return CheckOptimal(cut_, costs, most_tokens_, chunks_);
}

IntRange SizesAccount::Unknowing(const ChunkPosition& position) const {
  const int page = topology_.page_size;
  if (position.stages == 1) {
    const int half = most_tokens_ / 2 / page * page;
    const bool whole = position.prefix_length > 0 || position.other_tokens == 0 || half == 0;
    return {whole ? most_tokens_ : half, whole ? most_tokens_ : half};
  }
  const int prompt = position.prefix_length + position.remaining_tokens;
  int tokens = std::max(prompt / (kUnknownChunks * position.stages), kLeastUnknown);
  if (position.prefix_length == 0 && prompt > tokens) tokens /= 2;
  tokens = std::min(std::max(tokens / page, 1) * page, most_tokens_);
  return {tokens, tokens};
}

// As SGLang leaves a hundred tokens of the context free, in whole units; without one it takes the
// base.
IntRange SizesAccount::WithinContext(IntRange tokens, int before) const {
  const int unit = std::max(topology_.page_size, 64);
  const int room = (topology_.max_context_tokens - before - 100) / unit * unit;
  if (room < unit) return {most_tokens_, most_tokens_};
  const int pages = (room + topology_.page_size - 1) / topology_.page_size;
  const int most = std::min(most_tokens_, pages * topology_.page_size);
  return {std::min(tokens.least, most), std::min(tokens.most, most)};
}

IntRange SizesAccount::Expect(const ChunkPosition& position, const std::vector<StageCost>& costs) {
  const int page = topology_.page_size;
  const int before = position.prefix_length;
  cut_now_ = false;
  if (topology_.chunk_rule == ChunkRule::kFixed) return {most_tokens_, most_tokens_};
  if (topology_.chunk_rule == ChunkRule::kSglang) {
    if (before == 0 || costs.empty()) return {most_tokens_, most_tokens_};
    size_t slowest = 0;
    for (size_t stage = 1; stage < costs.size(); ++stage) {
      const bool slower =
          MicrosOf(costs[stage], 0, most_tokens_) > MicrosOf(costs[slowest], 0, most_tokens_);
      if (slower) slowest = stage;
    }
    const IntRange tokens = SglangTokens(before, page, costs[slowest], most_tokens_, kSmooth);
    return WithinContext(tokens, before);
  }
  if (costs.empty()) return Unknowing(position);
  const IntRange efficient = EfficientChunk(before, page, costs, most_tokens_);
  const auto further = static_cast<int64_t>(costs.size()) - 1;
  if (position.other_tokens >= std::max<int64_t>(further * efficient.most, 1)) return efficient;
  const IntRange any = {page, most_tokens_};
  const PromptShape rest = {before, position.remaining_tokens, page};
  const int end = before + rest.tokens;
  if (position.other_tokens >= std::max<int64_t>(further * efficient.least, 1)) {
    perhaps_end_ = end;
    return any;
  }
  if (perhaps_end_ == end) return any;
  if (!Stands(rest, costs)) {
    Cut(rest, costs);
  } else if (perhaps_end_ != 0) {
    return any;  // It is cut anew if the other one was cut.
  }
  const int tokens = PlannedAt(before);
  return {tokens, tokens};
}

// Whether the prompt is still cut as it was.
bool SizesAccount::Stands(const PromptShape& rest, const std::vector<StageCost>& costs) const {
  if (chunks_.empty() || rest.prefix_length < cut_.prefix_length) return false;
  if (rest.prefix_length + rest.tokens != cut_.prefix_length + cut_.tokens) return false;
  const double now_us = SlowestOf(costs, cut_.prefix_length, chunks_.front());
  const double fixed_us = SlowestOf(costs, cut_.prefix_length, 0);
  return std::abs(now_us - cut_us_) <= kDrift * cut_us_ &&
         std::abs(fixed_us - cut_fixed_us_) <= kFixedDrift * cut_fixed_us_;
}

void SizesAccount::Cut(const PromptShape& rest, const std::vector<StageCost>& costs) {
  cut_now_ = true;
  perhaps_end_ = 0;
  cut_ = rest;
  chunks_ = PlanOptimal(rest, costs, most_tokens_);
  cut_us_ = SlowestOf(costs, rest.prefix_length, chunks_.front());
  cut_fixed_us_ = SlowestOf(costs, rest.prefix_length, 0);
}

// The chunk that was to hold the token behind `before`.
int SizesAccount::PlannedAt(int before) const {
  int to = cut_.prefix_length;
  for (const int tokens : chunks_) {
    to += tokens;
    if (before < to) return tokens;
  }
  return 0;
}

}  // namespace baton::sim
