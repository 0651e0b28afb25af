#include "tests/sim/chunk_arithmetic.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/chunking/chunk_plan.h"
#include "common/chunking/flow_shop.h"

namespace baton::sim {
namespace {

// A cut that is found by steps may be so much worse than the best, for the grain of pages and for
// stages that differ (chunk_plan_test.cc).
constexpr double kAsGood = 1.03;
constexpr double kOverheadShare = 1.0 / 7;
constexpr int kSglangUnit = 64;
constexpr double kAsGoodAsOthers = 1.01;
constexpr int kHalvings = 14;  // Bisection steps for a limit: to 1e-4 of it.

bool Near(double one, double other) {
  return std::abs(one - other) <= kRounding * std::max(std::abs(one), std::abs(other));
}

// When each stage is done with each chunk, stage by stage.
double DoneMicros(const std::vector<StageCost>& stages, int before,
                  const std::vector<int>& chunks) {
  std::vector<double> done_us(chunks.size(), 0);
  for (const StageCost& stage : stages) {
    double free_us = 0;
    int begin = before;
    for (size_t i = 0; i < chunks.size(); ++i) {
      free_us = std::max(free_us, done_us[i]) + MicrosOf(stage, begin, chunks[i]);
      done_us[i] = free_us;
      begin += chunks[i];
    }
  }
  return done_us.back();
}

// The longest chunk that takes no stage longer: in whole pages, or all that is left. 0: none.
int LongestWithin(const PromptShape& rest, const std::vector<StageCost>& stages, int max_tokens,
                  double limit_us) {
  const auto fits = [&](int tokens) {
    return SlowestOf(stages, rest.prefix_length, tokens) <= limit_us;
  };
  if (rest.tokens <= max_tokens && fits(rest.tokens)) return rest.tokens;
  int pages = 0;
  int too_many = std::min(rest.tokens, max_tokens) / rest.page_size + 1;
  while (too_many - pages > 1) {
    const int middle = (pages + too_many) / 2;
    (fits(middle * rest.page_size) ? pages : too_many) = middle;
  }
  return pages * rest.page_size;
}

// Chunks as long as the limit allows; empty: more than `most`, or not even a page does.
std::vector<int> CutWithin(const PromptShape& rest, const std::vector<StageCost>& stages,
                           int max_tokens, double limit_us, size_t most) {
  std::vector<int> chunks;
  PromptShape left = rest;
  while (left.tokens > 0) {
    const int tokens = LongestWithin(left, stages, max_tokens, limit_us);
    if (tokens == 0 || chunks.size() == most) return {};
    chunks.push_back(tokens);
    left.prefix_length += tokens;
    left.tokens -= tokens;
  }
  return chunks;
}

// The plan of `count` chunks whose longest chunk takes the least time; empty: there is none.
std::vector<int> BestOfCount(const PromptShape& rest, const std::vector<StageCost>& stages,
                             int max_tokens, size_t count) {
  double high_us = SlowestOf(stages, rest.prefix_length + rest.tokens, rest.tokens);
  double low_us = high_us / 1000;
  std::vector<int> best = CutWithin(rest, stages, max_tokens, high_us, count);
  for (int i = 0; i < kHalvings && !best.empty(); ++i) {
    const double middle_us = std::sqrt(low_us * high_us);
    std::vector<int> chunks = CutWithin(rest, stages, max_tokens, middle_us, count);
    (chunks.empty() ? low_us : high_us) = middle_us;
    if (!chunks.empty()) best = std::move(chunks);
  }
  return best;
}

// As many of the fastest stage, and what the slowest has to do alone: the least over the number of
// chunks, which need not be whole, by sections.
double BoundMicros(const std::vector<StageCost>& stages, const PromptShape& rest) {
  const auto count = static_cast<double>(stages.size());
  double alone_us = 0;
  double fastest_us = std::numeric_limits<double>::infinity();
  for (const StageCost& stage : stages) {
    const double work_us = WorkOf(stage, rest.prefix_length, rest.tokens);
    const double fixed_us = stage.overhead_us + stage.prefix_us * rest.prefix_length;
    alone_us = std::max(alone_us, fixed_us + work_us);
    const auto takes_us = [&](double chunks) {
      return (chunks + count - 1) * (fixed_us + work_us / chunks);
    };
    double low = 1;
    double high = 1e9;
    for (int i = 0; i < 120; ++i) {
      const double third = std::pow(high / low, 1.0 / 3);
      const bool fewer = takes_us(low * third) < takes_us(high / third);
      (fewer ? high : low) *= fewer ? 1 / third : third;
    }
    fastest_us = std::min(fastest_us, takes_us(low));
  }
  return std::max(alone_us, fastest_us);
}

}  // namespace

double WorkOf(const StageCost& cost, int before, int tokens) {
  const double x = tokens;
  return cost.token_us * x + cost.attention_us * x * (x + before + before);
}

double MicrosOf(const StageCost& cost, int before, int tokens) {
  return cost.overhead_us + cost.prefix_us * before + WorkOf(cost, before, tokens);
}

double SlowestOf(const std::vector<StageCost>& stages, int before, int tokens) {
  double slowest_us = 0;
  for (const StageCost& stage : stages) {
    slowest_us = std::max(slowest_us, MicrosOf(stage, before, tokens));
  }
  return slowest_us;
}

IntRange SglangTokens(int before, int page_size, const StageCost& cost, int base, double smooth) {
  const double target_us = WorkOf(cost, 0, base);
  double low = 0;
  double high = base;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    const double takes_us =
        cost.token_us * middle + cost.attention_us * middle * (middle + 2.0 * before);
    (takes_us > target_us ? high : low) = middle;
  }
  const int unit = std::max(page_size, kSglangUnit);
  const auto size = [&](double tokens) {
    const int units = std::max({static_cast<int>(tokens) / unit, base / 4 / unit, 1});
    const int pages = (units * unit + page_size - 1) / page_size;
    return std::min(base, pages * page_size);
  };
  const double smoothed = base + smooth * (low - base);
  return {size(smoothed * (1 - kRounding)), size(smoothed * (1 + kRounding))};
}

IntRange EfficientChunk(int before, int page_size, const std::vector<StageCost>& stages,
                        int max_tokens) {
  IntRange most{page_size, page_size};
  for (const StageCost& stage : stages) {
    const double limit_us = (stage.overhead_us + stage.prefix_us * before) / kOverheadShare;
    const StageCost work = {.token_us = stage.token_us, .attention_us = stage.attention_us};
    const double work_us = limit_us * (1 - kOverheadShare);
    const PromptShape endless = {before, max_tokens, page_size};
    most.least =
        std::max(most.least, LongestWithin(endless, {work}, max_tokens, work_us * (1 - kRounding)));
    most.most =
        std::max(most.most, LongestWithin(endless, {work}, max_tokens, work_us * (1 + kRounding)));
  }
  return most;
}

namespace {

// The earliest first token by the rules that know less.
double OtherRulesMicros(const PromptShape& rest, const std::vector<StageCost>& stages,
                        int max_tokens) {
  double us = DoneMicros(stages, rest.prefix_length, PlanFixed(rest, max_tokens));
  // Its unit may be larger than a chunk may be.
  if (max_tokens < kSglangUnit) return us;
  for (const StageCost& cost : stages) {
    const std::vector<int> chunks = PlanSglang(rest, cost, max_tokens, kSmooth);
    us = std::min(us, DoneMicros(stages, rest.prefix_length, chunks));
  }
  return us;
}

}  // namespace

std::string CheckOptimal(const PromptShape& rest, const std::vector<StageCost>& stages,
                         int max_tokens, const std::vector<int>& chunks) {
  const bool whole = std::all_of(chunks.begin(), chunks.end(), [&](const int& tokens) {
    return tokens > 0 && tokens <= max_tokens &&
           (tokens % rest.page_size == 0 || &tokens == &chunks.back());
  });
  if (!whole || std::accumulate(chunks.begin(), chunks.end(), 0) != rest.tokens) {
    return absl::StrCat(rest.tokens, " tokens are not cut into whole pages up to ", max_tokens);
  }
  const double us = DoneMicros(stages, rest.prefix_length, chunks);
  const Timeline timeline = RunChunks(stages, rest.prefix_length, chunks);
  if (!Near(timeline.first_token_us, us)) return "the first token's time is another";
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    double busy_us = 0;
    double longest_us = 0;
    int begin = rest.prefix_length;
    for (const int tokens : chunks) {
      busy_us += MicrosOf(stages[stage], begin, tokens);
      longest_us = std::max(longest_us, MicrosOf(stages[stage], begin, tokens));
      begin += tokens;
    }
    if (!Near(timeline.busy_us[stage], busy_us) || !Near(timeline.longest_us[stage], longest_us)) {
      return absl::StrCat("stage ", stage, " is busy for another time");
    }
  }
  const double bound_us = FirstTokenBoundMicros(stages, rest.prefix_length, rest.tokens);
  if (!Near(bound_us, BoundMicros(stages, rest))) return "the bound is another";
  // A point in the valley, but not at its bottom, has a better one on one side.
  const size_t count = chunks.size();
  for (const size_t other : {count / 2, count - 1, count, count + 1, 2 * count}) {
    if (other == 0) continue;
    const std::vector<int> better = BestOfCount(rest, stages, max_tokens, other);
    if (better.empty()) continue;
    const double better_us = DoneMicros(stages, rest.prefix_length, better);
    if (us <= kAsGood * better_us) continue;
    return absl::StrCat(rest.tokens, " tokens after ", rest.prefix_length, " are ", count,
                        " chunks and take ", us, " us; ", better.size(), " take ", better_us);
  }
  const double other_us = OtherRulesMicros(rest, stages, max_tokens);
  if (us <= kAsGoodAsOthers * other_us) return "";
  return absl::StrCat(rest.tokens, " tokens after ", rest.prefix_length, " take ", us,
                      " us; by the fixed rule or SGLang's they take ", other_us);
}

std::string CheckOtherRules(const PromptShape& rest, const StageCost& cost, int chunk_tokens,
                            double smooth) {
  int left = rest.tokens;
  for (const int tokens : PlanFixed(rest, chunk_tokens)) {
    if (tokens != std::min(left, chunk_tokens)) return "chunks of one size are not";
    left -= tokens;
  }
  if (left != 0) return "chunks of one size are not the prompt";
  int before = rest.prefix_length;
  const int end = before + rest.tokens;
  bool first = true;
  for (const int tokens : PlanSglang(rest, cost, chunk_tokens, smooth)) {
    const int unit = std::max(rest.page_size, kSglangUnit);
    IntRange right{chunk_tokens, chunk_tokens};
    // In its own units, which may be more than the base.
    if (!first) {
      right = SglangTokens(before, unit, cost, std::max(chunk_tokens, unit), smooth);
      right.least = chunk_tokens < unit ? unit : right.least;
    }
    if (!IntRange{std::min(end - before, right.least), std::min(end - before, right.most)}.holds(
            tokens)) {
      return absl::StrCat("SGLang's rule cuts ", tokens, " tokens after ", before, ", not ",
                          right.least);
    }
    before += tokens;
    first = false;
  }
  return before == end ? "" : "SGLang's rule does not cut the prompt";
}

std::string CheckPrices(const PromptShape& other, const std::vector<StageCost>& stages, int before,
                        int tokens) {
  StageCost work;
  double token_us = 0;
  for (StageCost stage : stages) {
    stage.overhead_us = 0;
    if (MicrosOf(stage, before, tokens) / tokens <= token_us) continue;
    token_us = MicrosOf(stage, before, tokens) / tokens;
    work = stage;
  }
  const auto price = [&](int chunk) {
    if (chunk == 0) return 0.0;
    return token_us == 0 ? chunk : MicrosOf(work, other.prefix_length, chunk) / token_us;
  };
  const TokenPrices prices(stages, before, tokens);
  if (!Near(prices.Of(other.prefix_length, other.tokens), price(other.tokens)) ||
      prices.Of(other.prefix_length, 0) != 0) {
    return absl::StrCat(other.tokens, " tokens after ", other.prefix_length, " cost ",
                        prices.Of(other.prefix_length, other.tokens), ", not ",
                        price(other.tokens));
  }
  if (prices.Affordable(other, 0) != 0 || prices.Affordable({before, 0, 1}, tokens) != 0) {
    return "something is bought for nothing";
  }
  for (const double budget : {static_cast<double>(tokens), price(other.tokens),
                              price(other.tokens) / 3, other.page_size - 0.5}) {
    const int affordable = prices.Affordable(other, budget);
    const int more = std::min(other.tokens, affordable + other.page_size);
    const bool whole = affordable == other.tokens || affordable % other.page_size == 0;
    const bool paid = price(affordable) <= budget * (1 + kRounding) + kRounding;
    const bool all = affordable == other.tokens || price(more) >= budget * (1 - kRounding);
    if (whole && paid && all) continue;
    return absl::StrCat(budget, " tokens buy ", affordable, " of ", other.tokens, " after ",
                        other.prefix_length);
  }
  return "";
}

std::string CheckNonsense(const StageCost& cost) {
  if (!cost.Check().ok()) return absl::StrCat("costs are none: ", cost.Check().message());
  struct Coefficient {
    double StageCost::*field;
    const char* name;
  };
  constexpr Coefficient kCoefficients[] = {{&StageCost::overhead_us, "overhead_us"},
                                           {&StageCost::prefix_us, "prefix_us"},
                                           {&StageCost::token_us, "token_us"},
                                           {&StageCost::attention_us, "attention_us"}};
  const auto refused = [](const StageCost& bad, const char* words) {
    const absl::Status status = bad.Check();
    return absl::IsInvalidArgument(status) && absl::StrContains(status.message(), words);
  };
  for (const Coefficient& coefficient : kCoefficients) {
    StageCost edge = cost;
    edge.*coefficient.field = kMaxCostMicros;
    if (!edge.Check().ok()) return absl::StrCat("the largest ", coefficient.name, " is refused");
    for (const double bad : {-1.0, 1.01 * kMaxCostMicros, std::nan("")}) {
      edge.*coefficient.field = bad;
      if (refused(edge, coefficient.name)) continue;
      return absl::StrCat(coefficient.name, " of ", bad, " is taken");
    }
  }
  const StageCost tokens = {.token_us = 1};
  const StageCost pairs = {.attention_us = 1};
  StageCost floor = cost;
  floor.floor_tokens = -1;
  if (!tokens.Check().ok() || !pairs.Check().ok() || !refused(floor, "floor_tokens") ||
      !refused({.overhead_us = 1, .prefix_us = 1}, "cost nothing")) {
    return "what tokens may cost is something else";
  }
  // With a floor, fewer tokens take as long.
  floor.floor_tokens = 100;
  const StageCost twice = floor.Times(2);
  for (const int tokens_of : {1, 99, 100, 101}) {
    const double extra_us = floor.token_us * std::max(0, 100 - tokens_of);
    const double right_us = MicrosOf(cost, 64, tokens_of) + extra_us;
    if (!Near(floor.Micros(64, tokens_of), right_us)) return "a floor is not as it says";
    if (!Near(twice.Micros(64, tokens_of), 2 * right_us)) return "twice the cost is another";
  }
  return "";
}

}  // namespace baton::sim
