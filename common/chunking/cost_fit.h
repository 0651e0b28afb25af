// Learns the costs of one stage from the times of its plans: StageCost's four coefficients, by
// non-negative least squares over relative errors, refined with every plan.
//
// Old plans lose weight, by half after some thirty plans, and sooner while predictions fail, so
// that a slower stage is noticed. Where recent plans carry no information (all of one size, all
// without a prefix), what was learned before stays. A plan that took several times its prediction
// counts little unless others follow it: one delayed plan says nothing about the next. The first
// plan of all is ignored, since it includes one-time work.
//
// The exact rule (fit_account_fixture.h follows it too):
// - A new plan has weight 1. With every later plan the weight is multiplied by 0.98, or by 0.85
//   while error() is above 0.15. error() is a moving average: 0.9 of its old value plus 0.1 of the
//   distance between the plan's prediction and its time, as a fraction of its time, at most 1. The
//   first prediction sets it.
// - Each term is held, with a weight of 0.02, at its last solution (at zero before the first). The
//   weight is relative to the term's share of the plans' times: a moving average, in which a plan
//   with the term counts 0.02 times its weight and the old value the rest.
// - Once a fit is from an earlier process or has kLeastPlans, outliers lose weight. An outlier took
//   three times its prediction (or a third), and is off by more than half of a usual plan's time.
//   Its weight is 0.02 divided by the square of the factor that it is off by. A prediction below
//   1e-9 of the time does not count: it makes no outlier and no change.
// - Five plans in a row that are off by more than a factor of 1.3 in one direction are a change:
//   costs are scaled by the fifth one's factor, and only it and later plans are remembered.
//
// Deterministic; it has no clock. Not thread-safe.
#ifndef COMMON_CHUNKING_COST_FIT_H_
#define COMMON_CHUNKING_COST_FIT_H_

#include <array>
#include <cstdint>
#include <optional>

#include "common/chunking/stage_cost.h"

namespace baton {

// Costs of a stage that were learned elsewhere.
struct KnownCost {
  StageCost cost;
  double error = 0;  // CostFit::error of the fit that learned it.
};

class CostFit {
 public:
  CostFit() = default;
  // Starts with what an earlier process has learned, as if this one had seen the plans. It is
  // trusted until predictions fail. `known` passes Check.
  explicit CostFit(const KnownCost& known);

  // `work` took `micros`. A measurement without tokens or time is ignored.
  void Add(const PlanWork& work, int64_t micros);

  // Why the fit is not trusted, for people: too few plans, plans of too equal sizes, failing
  // predictions, or times that did not depend on sizes. nullptr if it is trusted.
  const char* missing() const;
  // nullopt unless the fit is trusted.
  std::optional<StageCost> cost() const;

  // The recent distance between predictions and times, as a fraction of the times. 0 before the
  // first prediction.
  double error() const { return error_; }
  uint64_t plans() const { return plans_; }
  uint64_t outliers() const { return outliers_; }

  // A fit is trusted after so many plans, if the largest exceeds the smallest by this factor, if
  // its error is below this, and if size makes up at least this fraction of the largest plan's
  // time. Less is the rounding of the solution: 2e-14 us per token when all plans took the same
  // time (seed 8,416,507 of the simulation).
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
  StageCost Cost() const;  // The solution, trusted or not.

  Terms solution_{};  // For the scaled terms.
  bool solved_ = false;
  bool known_ = false;  // Learned by an earlier process.
  // Sums over plans of weight * term * term / micros^2, and of weight * term / micros.
  std::array<Terms, kTerms> products_{};
  Terms sums_{};
  Terms typical_{};  // Recent average of each term over the time.
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
