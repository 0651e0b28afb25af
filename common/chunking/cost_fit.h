// Learns what plans cost one stage from how long they took: StageCost's four coefficients, by
// non-negative least squares over relative errors, refined with every plan.
//
// Old plans count less and less, by half after some thirty, sooner while predictions fail; so a
// stage that has become slower is seen. What the plans of late say nothing about (all of one size,
// all without a prefix) stays as it was learned before. A plan that took several times what was
// predicted counts little, unless others follow it: one that was held up says nothing of the next.
// The first plan of all is left out, since it pays for what is done once.
//
// The rule, to the number (fit_account_fixture.h works by it, too):
// - A plan of new weighs 1, and by every later one 0.98 of what it did, 0.85 while error() is above
//   0.15. error() is 0.9 of what it was and 0.1 of how far the plan's prediction was off, as a
//   share of its time and at most all of it; the first prediction's is taken as it is.
// - Each term's share of plans' times (an average, in which those that have the term count 0.02 and
//   what they said before 0.98) is held with a weight of 0.02 where it was solved last; at zero
//   before that.
// - Once a fit is from another life or has kLeastPlans, a plan that took three times its prediction
//   (or a third), and is off by more than half of what plans usually take, weighs 0.02, and by the
//   square of its times less. A prediction of less than 1e-9 of the time is none: nothing is held
//   up by it, nor news.
// - Five in a row that are off by more than a factor of 1.3, on one side, are news: costs are
//   scaled by what the fifth says, and only it and what comes then is remembered.
//
// Deterministic; it has no clock. Not thread-safe.
#ifndef COMMON_CHUNKING_COST_FIT_H_
#define COMMON_CHUNKING_COST_FIT_H_

#include <array>
#include <cstdint>
#include <optional>

#include "common/chunking/stage_cost.h"

namespace baton {

// What is known of a stage's costs from elsewhere.
struct KnownCost {
  StageCost cost;
  double error = 0;  // CostFit::error, where it was learned.
};

class CostFit {
 public:
  CostFit() = default;
  // Begins with what another life has learned, as if it had seen the plans; that is trusted until
  // predictions fail. `known` passes Check.
  explicit CostFit(const KnownCost& known);

  // `work` took `micros`. What is no measurement (no tokens, no time) is ignored.
  void Add(const PlanWork& work, int64_t micros);

  // Why it is not to be trusted, for people: too few plans were seen, or of too equal sizes, or
  // predictions fail, or what they took did not depend on their sizes. nullptr: it is.
  const char* missing() const;
  // nullopt unless it is.
  std::optional<StageCost> cost() const;

  // How far predictions lie from the times, as a share of these, lately. 0: none was made.
  double error() const { return error_; }
  uint64_t plans() const { return plans_; }
  uint64_t outliers() const { return outliers_; }

  // Plans before a fit is trusted, how much the largest must exceed the smallest, the largest
  // error, and how much of the largest plan's time its size must make: less is the solution's
  // rounding, 2e-14 us a token of plans that all took the same (seed 8,416,507 of the simulation).
  static constexpr uint64_t kLeastPlans = 8;
  static constexpr double kLeastSpread = 1.5;
  static constexpr double kLargestError = 0.3;
  static constexpr double kLeastSized = 1e-6;

 private:
  static constexpr int kTerms = 4;
  using Terms = std::array<double, kTerms>;

  static Terms TermsOf(const PlanWork& work);
  double WeightOf(const Terms& terms, double micros);
  void Remember(const PlanWork& work, double micros, double weight);
  void BeginAnew(double ratio);
  void Solve();
  StageCost Cost() const;  // As it is solved, to be trusted or not.

  Terms solution_{};  // Of scaled terms.
  bool solved_ = false;
  bool known_ = false;  // From another life.
  // Sums over plans of weight * term * term / micros^2, and of weight * term / micros.
  std::array<Terms, kTerms> products_{};
  Terms sums_{};
  Terms typical_{};  // Each term over the time, lately.
  int64_t least_tokens_ = 0;
  int64_t most_tokens_ = 0;
  uint64_t plans_ = 0;
  uint64_t outliers_ = 0;
  int one_side_ = 0;  // Plans in a row that took longer than predicted; negative: shorter.
  bool judged_ = false;
  double error_ = 0;
};

}  // namespace baton

#endif  // COMMON_CHUNKING_COST_FIT_H_
