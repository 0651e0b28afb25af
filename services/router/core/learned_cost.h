// What prompts take, learned from what they took, and means of the recent past.
#ifndef SERVICES_ROUTER_CORE_LEARNED_COST_H_
#define SERVICES_ROUTER_CORE_LEARNED_COST_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace baton::router {

class RecentMean {
 public:
  void Add(double value) {
    mean_ = known_ ? mean_ + kShare * (value - mean_) : value;
    known_ = true;
  }
  // What is not used is forgotten: who was slow once is tried again.
  void Fade(double to) { mean_ += kFaded * (to - mean_); }
  bool known() const { return known_; }
  double Or(double otherwise) const { return known_ ? mean_ : otherwise; }

 private:
  static constexpr double kShare = 0.1;
  static constexpr double kFaded = 0.005;

  double mean_ = 0;
  bool known_ = false;
};

// What a token of a prompt takes, by how many of it are computed: a long prompt takes more for
// each, for what stands before it, and so does a very short one, for what each plan costs. It is
// learned for all chains together, and for each how its times are to that: a chain that has had
// long prompts alone is not taken for a slow one.
class PromptCost {
 public:
  // Microseconds, on a chain whose pace is 1.
  double Of(double tokens) const { return tokens * RateOf(tokens); }

  // A chain of this pace took so long.
  void Learn(int tokens, double us, RecentMean& pace) {
    if (tokens < 1) return;
    RecentMean& rate = rates_[SizeOf(tokens)];
    const double before = pace.Or(1);
    if (rate.known()) pace.Add(std::clamp(us / Of(tokens), before / kJump, before * kJump));
    rate.Add(us / tokens / pace.Or(1));
  }

 private:
  static constexpr double kTokenUs = 50;  // While nothing is known.
  static constexpr double kJump = 8;      // One time that differs by more proves no more.
  static constexpr size_t kSizes = 33;

  static size_t SizeOf(double tokens) {
    return static_cast<size_t>(std::bit_width(static_cast<uint32_t>(std::max(1.0, tokens))));
  }

  // The nearest size of which something is known counts.
  double RateOf(double tokens) const {
    const size_t size = SizeOf(tokens);
    for (size_t away = 0; away < kSizes; ++away) {
      if (size >= away && rates_[size - away].known()) return rates_[size - away].Or(0);
      if (size + away < kSizes && rates_[size + away].known()) return rates_[size + away].Or(0);
    }
    return kTokenUs;
  }

  std::array<RecentMean, kSizes> rates_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_LEARNED_COST_H_
