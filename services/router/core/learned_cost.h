// What prompts take, learned from what they took, and means of the recent past.
#ifndef SERVICES_ROUTER_CORE_LEARNED_COST_H_
#define SERVICES_ROUTER_CORE_LEARNED_COST_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace baton::router {

class RecentMean {
 public:
  // The first few count alike, so that a first one that was held up says no more than the others.
  // What is far above the mean counts as kAtMost means: one stall of a process says little.
  void Add(double value) {
    if (known()) value = std::min(value, kAtMost * mean_ + kAlwaysTaken);
    added_ = std::min(added_ + 1, kAlike);
    mean_ += (value - mean_) / added_;
  }
  // What is not used is forgotten: who was slow once is tried again.
  void Fade(double to) { mean_ += kFaded * (to - mean_); }
  bool known() const { return added_ > 0; }
  double Or(double otherwise) const { return known() ? mean_ : otherwise; }

 private:
  static constexpr int kAlike = 10;
  static constexpr double kAtMost = 4;
  static constexpr double kAlwaysTaken = 1000;  // Microseconds, lest a mean of 0 stays one.
  static constexpr double kFaded = 0.005;

  double mean_ = 0;
  int added_ = 0;
};

// What was measured to what was expected, over the recent past: sums of both, since single ones
// that end together or late say little.
class RecentRatio {
 public:
  void Add(double measured, double expected) {
    measured_ = kKept * measured_ + measured;
    expected_ = kKept * expected_ + expected;
  }
  void Fade() {
    measured_ *= kStays;
    expected_ *= kStays;
  }
  bool known() const { return expected_ > 0; }
  // As many as `doubt` of what is expected are taken to have been as expected.
  double Of(double doubt) const { return (measured_ + doubt) / (expected_ + doubt); }

 private:
  static constexpr double kKept = 0.97;
  static constexpr double kStays = 0.995;

  double measured_ = 0;
  double expected_ = 0;
};

// What a token of a prompt takes, by how many of it are computed: a long prompt takes more for
// each, for what stands before it, and so does a very short one, for what each plan costs. It is
// learned for all chains together, and for each how its times are to that: a chain that has had
// long prompts alone is not taken for a slow one.
class PromptCost {
 public:
  // Microseconds, on a chain whose pace is 1. Fewer tokens take no longer than more: a few prompts
  // of one size that were held up do not make those the dearest.
  double Of(double tokens) const {
    double us = tokens * RateOf(tokens);
    for (size_t size = SizeOf(tokens) + 1; size < kSizes; ++size) {
      if (rates_[size].known())
        us = std::min(us, std::ldexp(rates_[size].Of(0), static_cast<int>(size) - 1));
    }
    return us;
  }

  // How many times as long a chain takes.
  static double PaceOf(const RecentRatio& chain) { return chain.Of(kDoubtUs); }

  // The chain was busy for so long until it was through with so many tokens.
  void Learn(int tokens, double us, RecentRatio& chain) {
    if (tokens < 1) return;
    RecentRatio& rate = rates_[SizeOf(tokens)];
    if (rate.known()) chain.Add(us, Of(tokens));
    rate.Add(us / PaceOf(chain), tokens);
  }

 private:
  static constexpr double kTokenUs = 50;         // While nothing is known.
  static constexpr double kDoubtUs = 1'000'000;  // Work that a chain has to do to show its pace.
  static constexpr size_t kSizes = 33;

  static size_t SizeOf(double tokens) {
    return static_cast<size_t>(std::bit_width(static_cast<uint32_t>(std::max(1.0, tokens))));
  }

  // The nearest size of which something is known counts.
  double RateOf(double tokens) const {
    const size_t size = SizeOf(tokens);
    for (size_t away = 0; away < kSizes; ++away) {
      if (size >= away && rates_[size - away].known()) return rates_[size - away].Of(0);
      if (size + away < kSizes && rates_[size + away].known()) return rates_[size + away].Of(0);
    }
    return kTokenUs;
  }

  std::array<RecentRatio, kSizes> rates_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_LEARNED_COST_H_
