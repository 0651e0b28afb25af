#include "common/chunking/chunk_policy.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/base/coverage.h"
#include "common/chunking/chunk_plan.h"

namespace baton {
namespace {

class FixedChunks final : public ChunkPolicy {
 public:
  explicit FixedChunks(const ChunkOptions& options) : options_(options) {}

  void SetCosts(std::vector<StageCost> /*stages*/) override {}
  int PlanTokens(const ChunkPosition& /*position*/) override { return options_.chunk_tokens; }
  int max_plan_tokens() const override { return options_.chunk_tokens; }

 private:
  const ChunkOptions options_;
};

// SGLang asks its first stage alone what chunks cost; here that is the slowest, which is the same
// where they are equal.
class SglangChunks final : public ChunkPolicy {
 public:
  explicit SglangChunks(const ChunkOptions& options) : options_(options) {}

  void SetCosts(std::vector<StageCost> stages) override { stages_ = std::move(stages); }

  int PlanTokens(const ChunkPosition& position) override {
    const int base = options_.chunk_tokens;
    if (position.prefix_length == 0 || stages_.empty()) return base;
    const auto slowest = std::max_element(stages_.begin(), stages_.end(),
                                          [base](const StageCost& one, const StageCost& other) {
                                            return one.Micros(0, base) < other.Micros(0, base);
                                          });
    const int tokens = SglangChunk(position.prefix_length, options_.page_size, *slowest, base,
                                   options_.smooth_factor);
    const int capped = Capped(tokens, position.prefix_length);
    // Its unit of 64 tokens need not be whole pages.
    return capped == 0 ? base : std::min(base, RoundUp(capped));
  }

  int max_plan_tokens() const override { return options_.chunk_tokens; }

 private:
  static constexpr int kContextReserve = 100;  // Tokens, as there.

  // In whole units; 0: not even one is left.
  int Capped(int tokens, int prefix_length) const {
    const int unit = SglangUnit(options_.page_size);
    const int room = options_.max_context_tokens - prefix_length - kContextReserve;
    return std::max(std::min({tokens, room, options_.later_tokens}), 0) / unit * unit;
  }

  int RoundUp(int tokens) const {
    return (tokens + options_.page_size - 1) / options_.page_size * options_.page_size;
  }

  const ChunkOptions options_;
  std::vector<StageCost> stages_;
};

// A prompt that has the chain for itself is cut once, by PlanOptimal, and its chunks are those; one
// that begins elsewhere, behind a plan that was shared, has the tokens of the planned chunk in
// which it begins. It is cut anew when costs have moved so far that its first chunk would take
// another time. Rejected: to keep the chunks' times and find the sizes by today's costs. A little
// more and each chunk loses a page, and what all have lost is a chunk more.
//
// While others wait, their chunks fill the bubbles, and what counts is throughput: the smallest
// chunk whose overhead is a seventh of it, for a larger one gains little and makes everybody wait
// longer for the next plan. Rejected: a twentieth, with which prompts of a few thousand tokens
// waited twice as long beside long ones, whose own times were no shorter for it.
class OptimalChunks final : public ChunkPolicy {
 public:
  explicit OptimalChunks(const ChunkOptions& options)
      : options_(options), most_tokens_(MostTokens(options)) {}

  void SetCosts(std::vector<StageCost> stages) override { stages_ = std::move(stages); }

  int PlanTokens(const ChunkPosition& position) override {
    if (stages_.empty()) return TokensUnknowing(position);
    const int efficient = EfficientTokens(position.prefix_length);
    const auto bubbles = static_cast<int64_t>(stages_.size() - 1) * efficient;
    if (position.other_tokens >= std::max<int64_t>(bubbles, 1)) {
      Covered<"chunking: others fill the bubbles">();
      return efficient;
    }
    const PromptShape rest = {position.prefix_length, position.remaining_tokens,
                              options_.page_size};
    if (!Holds(rest)) Plan(rest);
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), position.prefix_length);
    return *end - (end == ends_.begin() ? planned_.prefix_length : *std::prev(end));
  }

  int max_plan_tokens() const override { return options_.chunk_tokens; }

 private:
  // How far costs may move before a prompt is cut anew: those of its chunk, and what of it does not
  // depend on its size, of which the best size depends by the root.
  static constexpr double kDrift = 0.1;
  static constexpr double kFixedDrift = 0.3;
  static constexpr int64_t kChunksAStage = 4;
  static constexpr int kLeastUnknowing = 512;        // Smaller ones may be mostly overhead.
  static constexpr double kOverheadShare = 1.0 / 7;  // Share of an efficient chunk's time.

  static int MostTokens(const ChunkOptions& options) {
    const int pages = (options.max_context_tokens + options.page_size - 1) / options.page_size;
    return std::min(options.chunk_tokens, pages * options.page_size);
  }

  // While chunk costs are unknown: as many for each stage as keep a chain's ends, in which
  // not every stage has a chunk, to a fifth of the time. As large as they may be would be the worst
  // choice for a long prompt, which can be as few chunks as there are stages. The first one is half
  // as large, since chunks of one size teach nothing. One stage alone has whole plans, but that one
  // while others wait: who waits for none would only wait longer.
  int TokensUnknowing(const ChunkPosition& position) const {
    if (position.stages == 1) {
      const bool teaches = position.prefix_length == 0 && position.other_tokens > 0;
      const int half = options_.chunk_tokens / 2 / options_.page_size * options_.page_size;
      return teaches && half > 0 ? half : options_.chunk_tokens;
    }
    const int64_t prompt = int64_t{position.prefix_length} + position.remaining_tokens;
    int64_t tokens = std::max<int64_t>(prompt / (kChunksAStage * position.stages), kLeastUnknowing);
    if (position.prefix_length == 0 && prompt > tokens) tokens /= 2;
    const int64_t pages = std::max<int64_t>(tokens / options_.page_size, 1);
    return static_cast<int>(std::min<int64_t>(pages * options_.page_size, most_tokens_));
  }

  // The plan that was made is one for this prompt, which has the tokens of the one it was made for,
  // and costs are still what they were.
  bool Holds(const PromptShape& rest) const {
    if (rest.prefix_length + rest.tokens != planned_.prefix_length + planned_.tokens) return false;
    if (rest.prefix_length < planned_.prefix_length) return false;
    return std::abs(FirstMicros() - planned_us_) <= kDrift * planned_us_ &&
           std::abs(FixedMicros() - planned_fixed_us_) <= kFixedDrift * planned_fixed_us_;
  }

  void Plan(const PromptShape& rest) {
    Covered<"chunking: a prompt is cut anew">();
    planned_ = rest;
    ends_ = PlanOptimal(rest, stages_, most_tokens_);
    ends_.front() += rest.prefix_length;
    std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
    planned_us_ = FirstMicros();
    planned_fixed_us_ = FixedMicros();
  }

  // By today's costs: the planned prompt's first chunk, and any chunk where it begins.
  double FirstMicros() const {
    const int begin = planned_.prefix_length;
    return SlowestMicros(stages_, begin, ends_.front() - begin);
  }
  double FixedMicros() const { return SlowestMicros(stages_, planned_.prefix_length, 0); }

  int EfficientTokens(int prefix_length) const {
    double most = options_.page_size;
    for (const StageCost& stage : stages_) {
      const double fixed_us = stage.overhead_us + stage.prefix_us * prefix_length;
      const double work_us = fixed_us * (1 / kOverheadShare - 1);
      const PromptShape endless = {prefix_length, most_tokens_, options_.page_size};
      StageCost work = stage;
      work.overhead_us = work.prefix_us = 0;
      const int tokens = LargestChunk(endless, {work}, most_tokens_, work_us);
      most = std::max<double>(most, std::max(tokens, stage.floor_tokens));
    }
    const int pages = static_cast<int>(std::ceil(most / options_.page_size));
    return std::min(most_tokens_, pages * options_.page_size);
  }

  const ChunkOptions options_;
  const int most_tokens_;
  std::vector<StageCost> stages_;
  PromptShape planned_;
  std::vector<int> ends_;        // Where its chunks end, in tokens of the prompt.
  double planned_us_ = 0;        // FirstMicros, when it was cut.
  double planned_fixed_us_ = 0;  // FixedMicros.
};

}  // namespace

const char* ChunkRuleName(ChunkRule rule) {
  switch (rule) {
    case ChunkRule::kFixed:
      return "fixed";
    case ChunkRule::kSglang:
      return "sglang";
    case ChunkRule::kOptimal:
      return "optimal";
  }
  return "";
}

std::optional<ChunkRule> ParseChunkRule(const std::string& name) {
  for (const ChunkRule rule : {ChunkRule::kFixed, ChunkRule::kSglang, ChunkRule::kOptimal}) {
    if (name == ChunkRuleName(rule)) return rule;
  }
  return std::nullopt;
}

ChunkOptions WithinContext(ChunkOptions options) {
  if (options.chunk_tokens == INT_MAX) options.rule = ChunkRule::kFixed;
  const int64_t page = options.page_size;
  const int64_t longest = (options.max_context_tokens + page - 1) / page * page;
  options.chunk_tokens = static_cast<int>(std::min<int64_t>(options.chunk_tokens, longest));
  return options;
}

std::unique_ptr<ChunkPolicy> MakeChunkPolicy(const ChunkOptions& options) {
  BATON_CHECK(options.page_size > 0 && options.chunk_tokens >= options.page_size)
      << options.chunk_tokens << " tokens a chunk, pages of " << options.page_size;
  switch (options.rule) {
    case ChunkRule::kSglang:
      BATON_CHECK(options.max_context_tokens > 0) << options.max_context_tokens;
      return std::make_unique<SglangChunks>(options);
    case ChunkRule::kOptimal:
      BATON_CHECK(options.max_context_tokens > 0) << options.max_context_tokens;
      return std::make_unique<OptimalChunks>(options);
    case ChunkRule::kFixed:
      break;
  }
  return std::make_unique<FixedChunks>(options);
}

}  // namespace baton
