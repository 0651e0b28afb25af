// What a CostFit must have learned of its plans: the rule of its header, worked out by other means.
// It shares no line with the fit: coefficients are found by an active set (Lawson and Hanson), in
// units of its own, where the fit tries all subsets.
#ifndef COMMON_CHUNKING_FIT_ACCOUNT_FIXTURE_H_
#define COMMON_CHUNKING_FIT_ACCOUNT_FIXTURE_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/chunking/cost_fit.h"
#include "common/chunking/stage_cost.h"

namespace baton {

class FitAccount {
 public:
  FitAccount() = default;
  explicit FitAccount(const KnownCost& known);

  // A plan that is told of.
  void Saw(const PlanWork& work, int64_t micros);

  // "" if a fit that was told of the same says this of itself; else what it should say.
  std::string DifferenceOf(const std::optional<StageCost>& cost, double error,
                           uint64_t plans) const;

 private:
  static constexpr int kTerms = 4;
  using Terms = std::array<double, kTerms>;

  static Terms TermsOf(const PlanWork& work);
  double Predicted(const Terms& terms) const;
  double WeightOf(const Terms& terms, double micros);
  void Take(const PlanWork& work, double micros, double weight);
  void Solve();
  bool Trusted() const;
  StageCost Cost() const;

  Terms costs_{};  // For each term.
  bool solved_ = false;
  bool known_ = false;
  bool judged_ = false;
  // Rounding alone decides whether a plan's time counts as news or as held up: from then on what is
  // learned is unpredictable. Seed 1,872 of the simulation: 1,908 us, of which 636 were
  // predicted.
  bool on_edge_ = false;
  double error_ = 0;
  uint64_t plans_ = 0;
  int64_t shortest_ = 0;  // Tokens of a plan.
  int64_t longest_ = 0;
  int64_t farthest_ = 0;  // Tokens before a plan.
  int too_long_ = 0;      // Plans in a row.
  int too_short_ = 0;
  Terms usual_{};                         // Share of a term in a plan's time, by microsecond.
  std::array<Terms, kTerms> together_{};  // Sums of shares of two terms,
  Terms alone_{};                         // and of one.
};

namespace fit_account {

// All as the fit's header says.
inline constexpr double kKept = 0.98;
inline constexpr double kKeptAmiss = 0.85;
inline constexpr double kAmissError = 0.15;
inline constexpr double kErrorKept = 0.9;
inline constexpr double kHeld = 0.02;
inline constexpr double kLeastPredicted = 1e-9;
inline constexpr double kOutlier = 3;
inline constexpr double kNews = 1.3;
inline constexpr int kNewsPlans = 5;
inline constexpr uint64_t kLeastPlans = 8;
inline constexpr double kLeastSpread = 1.5;
inline constexpr double kLargestError = 0.3;
inline constexpr double kLeastSized = 1e-6;
// The plans that stand for what is known from another life.
inline constexpr int kKnownTokens[] = {128, 1024, 8192};
inline constexpr int kKnownPrefixes[] = {0, 4096, 32'768};

// Near one for plans as they are here, other than the fit's.
inline constexpr std::array<double, 4> kUnits = {1, 1000, 100, 100'000};
// How much two ways to solve the same problem may differ. A cost whose term makes the sum of
// squares less by no more than its rounding is zero for the one and not for the other: the square
// root of that rounding, over the weight that holds a term, is 1e-5 of a plan's time (seed 543 of
// the simulation). Of a token alone that is much, and behind a longer prefix than any plan had it
// is more (seed 8,400,722: 0.2 of 173 us), so plans are compared that could have been seen.
inline constexpr double kSame = 1e-3;
inline constexpr double kSameOfPlan = 2e-4;  // Share of the usual plan's time; half of it was seen.
// And of a term that is held by the little that it used to be of plans' times, before the stage
// became thousands of times slower (seed 9,405,418: five ten-millionths).
inline constexpr double kSameOfTerm = 1e-6;
inline constexpr double kEdge = 1e-5;  // Relative margin at a threshold for news or holding.

// x of `matrix` x = `right`, for the terms of `in` alone: Cholesky's decomposition. Others are 0.
inline std::array<double, 4> SolveWithin(const std::array<bool, 4>& in,
                                         const std::array<std::array<double, 4>, 4>& matrix,
                                         const std::array<double, 4>& right) {
  std::array<std::array<double, 4>, 4> lower{};
  std::array<double, 4> x{};
  for (size_t i = 0; i < 4; ++i) {
    if (!in[i]) continue;
    double rest = right[i];
    for (size_t j = 0; j <= i; ++j) {
      if (!in[j]) continue;
      double sum = matrix[i][j];
      for (size_t k = 0; k < j; ++k) sum -= lower[i][k] * lower[j][k];
      lower[i][j] = i == j ? std::sqrt(sum) : sum / lower[j][j];
      if (j < i) rest -= lower[i][j] * x[j];
    }
    x[i] = rest / lower[i][i];
  }
  for (size_t i = 4; i-- > 0;) {
    if (!in[i]) continue;
    for (size_t j = i + 1; j < 4; ++j) x[i] -= lower[j][i] * x[j];
    x[i] /= lower[i][i];
  }
  return x;
}

}  // namespace fit_account

inline FitAccount::FitAccount(const KnownCost& known)
    : costs_{known.cost.overhead_us * fit_account::kUnits[0],
             known.cost.prefix_us * fit_account::kUnits[1],
             known.cost.token_us * fit_account::kUnits[2],
             known.cost.attention_us * fit_account::kUnits[3]},
      solved_(true),
      known_(true) {
  for (const int tokens : fit_account::kKnownTokens) {
    for (const int prefix : fit_account::kKnownPrefixes) {
      PlanWork work;
      work.Add(prefix, tokens);
      Take(work, Predicted(TermsOf(work)), 1);
    }
  }
  judged_ = true;
  error_ = known.error;
}

inline FitAccount::Terms FitAccount::TermsOf(const PlanWork& work) {
  return {1 / fit_account::kUnits[0],
          static_cast<double>(work.prefix_tokens) / fit_account::kUnits[1],
          static_cast<double>(work.tokens) / fit_account::kUnits[2],
          work.pairs / fit_account::kUnits[3]};
}

inline double FitAccount::Predicted(const Terms& terms) const {
  double micros = 0;
  for (int i = 0; i < kTerms; ++i) micros += terms[i] * costs_[i];
  return micros;
}

inline void FitAccount::Saw(const PlanWork& work, int64_t micros) {
  if (work.tokens < 1 || micros < 1) return;
  ++plans_;
  if (plans_ == 1) return;
  const auto took = static_cast<double>(micros);
  Take(work, took, solved_ ? WeightOf(TermsOf(work), took) : 1);
  Solve();
}

inline double FitAccount::WeightOf(const Terms& terms, double micros) {
  const double predicted = Predicted(terms);
  const double off = std::min(std::abs(predicted - micros) / micros, 1.0);
  error_ = judged_ ? fit_account::kErrorKept * error_ + (1 - fit_account::kErrorKept) * off : off;
  judged_ = true;
  // Where nothing was predicted, nothing is off.
  const double times = predicted > fit_account::kLeastPredicted * micros ? micros / predicted : 1;
  for (const double bound : {fit_account::kOutlier, fit_account::kNews}) {
    const double beyond = std::max(times, 1 / times) / bound;
    on_edge_ = on_edge_ || std::abs(beyond - 1) < fit_account::kEdge;
  }
  too_long_ = times > fit_account::kNews ? too_long_ + 1 : 0;
  too_short_ = times * fit_account::kNews < 1 ? too_short_ + 1 : 0;
  const double usual_us = 1 / fit_account::kUnits[0] / usual_[0];
  if (too_long_ == fit_account::kNewsPlans || too_short_ == fit_account::kNewsPlans) {
    too_long_ = too_short_ = 0;
    together_ = {};
    alone_ = {};
    for (double& cost : costs_) cost *= times;
    for (double& share : usual_) share /= times;
    return 1;
  }
  const bool held_up = times >= fit_account::kOutlier || times <= 1 / fit_account::kOutlier;
  const bool matters = std::abs(micros - predicted) > usual_us / 2;
  if (!held_up || !matters || (!known_ && plans_ < fit_account::kLeastPlans)) return 1;
  const double factor = std::max(times, 1 / times);
  return fit_account::kHeld / factor / factor;
}

inline void FitAccount::Take(const PlanWork& work, double micros, double weight) {
  Terms shares = TermsOf(work);
  for (double& share : shares) share /= micros;
  const double kept =
      error_ > fit_account::kAmissError ? fit_account::kKeptAmiss : fit_account::kKept;
  for (int i = 0; i < kTerms; ++i) {
    alone_[i] = kept * alone_[i] + weight * shares[i];
    for (int j = 0; j < kTerms; ++j) {
      together_[i][j] = kept * together_[i][j] + weight * shares[i] * shares[j];
    }
    if (shares[i] == 0) continue;
    const double part = usual_[i] == 0 ? 1 : (1 - fit_account::kKept) * weight;
    usual_[i] += part * (shares[i] - usual_[i]);
  }
  shortest_ = longest_ == 0 ? work.tokens : std::min(shortest_, work.tokens);
  longest_ = std::max(longest_, work.tokens);
  farthest_ = std::max(farthest_, work.prefix_tokens);
}

// The least sum of squares without a negative cost. A term joins while that makes the sum less, the
// one that does most first; one that would become negative leaves.
inline void FitAccount::Solve() {
  std::array<Terms, kTerms> matrix = together_;
  Terms right = alone_;
  for (int i = 0; i < kTerms; ++i) {
    const double hold = fit_account::kHeld * usual_[i] * usual_[i];
    matrix[i][i] += hold;
    if (solved_) right[i] += hold * costs_[i];
  }
  std::array<bool, kTerms> in{};
  Terms x{};
  // Every round but the last makes the sum less, so none comes twice.
  for (int round = 0; round < 64; ++round) {
    int joins = -1;
    double most = 0;
    for (int i = 0; i < kTerms; ++i) {
      if (in[i] || matrix[i][i] == 0) continue;
      double slope = right[i];
      for (int j = 0; j < kTerms; ++j) slope -= matrix[i][j] * x[j];
      const double gain = slope / std::sqrt(matrix[i][i]);
      if (slope > 1e-12 * right[i] && gain > most) {
        most = gain;
        joins = i;
      }
    }
    if (joins < 0) break;
    in[joins] = true;
    while (true) {
      const Terms next = fit_account::SolveWithin(in, matrix, right);
      double part = 1;  // Share of the way until the first term is zero.
      int leaves = -1;
      for (int i = 0; i < kTerms; ++i) {
        if (!in[i] || next[i] >= 0 || x[i] / (x[i] - next[i]) >= part) continue;
        part = x[i] / (x[i] - next[i]);
        leaves = i;
      }
      for (int i = 0; i < kTerms; ++i) x[i] += part * (next[i] - x[i]);
      if (leaves < 0) break;
      in[leaves] = false;
      x[leaves] = 0;
    }
  }
  costs_ = x;
  solved_ = true;
}

inline StageCost FitAccount::Cost() const {
  return {.overhead_us = costs_[0] / fit_account::kUnits[0],
          .prefix_us = costs_[1] / fit_account::kUnits[1],
          .token_us = costs_[2] / fit_account::kUnits[2],
          .attention_us = costs_[3] / fit_account::kUnits[3]};
}

inline bool FitAccount::Trusted() const {
  if (!known_ && plans_ < fit_account::kLeastPlans) return false;
  if (static_cast<double>(longest_) < fit_account::kLeastSpread * static_cast<double>(shortest_))
    return false;
  const StageCost cost = Cost();
  const auto tokens = static_cast<double>(longest_);
  const double of_size = tokens * (cost.token_us + tokens * cost.attention_us);
  return error_ <= fit_account::kLargestError && solved_ &&
         of_size > fit_account::kLeastSized * (cost.overhead_us + of_size);
}

inline std::string FitAccount::DifferenceOf(const std::optional<StageCost>& cost, double error,
                                            uint64_t plans) const {
  using fit_account::kSame;
  using fit_account::kSameOfPlan;
  if (on_edge_) return "";
  if (plans != plans_) return absl::StrCat("was learned from ", plans, " plans, not ", plans_);
  if (std::abs(error - error_) > kSame) {
    return absl::StrCat("predictions are off by ", error, ", not ", error_);
  }
  if (cost.has_value() != Trusted()) {
    return absl::StrCat("is ", Trusted() ? "" : "not ", "to be trusted after ", plans_,
                        " plans of ", shortest_, " to ", longest_, " tokens");
  }
  const StageCost right = Cost();
  const double usual_us = usual_[0] == 0 ? 0 : 1 / fit_account::kUnits[0] / usual_[0];
  for (const auto prefix : {0, static_cast<int>(farthest_ / 2), static_cast<int>(farthest_)}) {
    for (const auto tokens : {1, static_cast<int>(longest_)}) {
      const double told_us = Trusted() ? cost->Micros(prefix, tokens) : 0;
      const double right_us = Trusted() ? right.Micros(prefix, tokens) : 0;
      PlanWork work;
      work.Add(prefix, tokens);
      double rounding_us = 0;
      const Terms terms = TermsOf(work);
      for (int i = 0; i < kTerms; ++i) {
        if (usual_[i] > 0) rounding_us += fit_account::kSameOfTerm * terms[i] / usual_[i];
      }
      const double allowed_us = kSame * right_us + kSameOfPlan * usual_us + rounding_us;
      if (std::abs(told_us - right_us) <= allowed_us) continue;
      return absl::StrCat(tokens, " tokens after ", prefix, " take ", told_us, " us, not ",
                          right_us);
    }
  }
  return "";
}

}  // namespace baton

#endif  // COMMON_CHUNKING_FIT_ACCOUNT_FIXTURE_H_
