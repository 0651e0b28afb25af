#include "common/chunking/cost_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace baton {
namespace {

// The factor on a plan's weight with each later plan, while predictions are right, and while they
// are wrong: older plans are then probably obsolete.
constexpr double kKept = 0.98;
constexpr double kKeptAmiss = 0.85;
constexpr double kAmissError = 0.15;
constexpr double kErrorKept = 0.9;        // The kept fraction of the error.
constexpr double kLeastPredicted = 1e-9;  // Times the time; less is the solution's rounding.
constexpr double kOutlier = 3;            // Times the prediction, or a third of it.
constexpr double kLargeShare = 0.5;       // Times a usual plan's time: an outlier's distance.
constexpr double kAmiss = 1.3;            // Times the prediction, or less than 1 / kAmiss.
constexpr int kAmissIsNews = 5;           // In a row, all too long or all too short.
constexpr double kStay = 0.02;            // Weight of what was learned before.
constexpr uint64_t kColdPlans = 1;

// Terms of a like size keep the equations well conditioned.
constexpr std::array<double, 4> kScale = {1, 65536, 1024, 1024.0 * 65536};

// Solves the equations of the terms in `chosen` (a bit each), a symmetric positive definite system,
// by Gaussian elimination. False: it is singular, or a coefficient comes out negative.
bool SolveFor(unsigned chosen, const std::array<std::array<double, 4>, 4>& products,
              const std::array<double, 4>& sums, std::array<double, 4>& solution) {
  std::array<std::array<double, 5>, 4> rows{};
  std::array<size_t, 4> terms{};
  size_t count = 0;
  for (size_t i = 0; i < 4; ++i) {
    if ((chosen >> i & 1) != 0) terms[count++] = i;
  }
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < count; ++j) rows[i][j] = products[terms[i]][terms[j]];
    rows[i][count] = sums[terms[i]];
  }
  for (size_t i = 0; i < count; ++i) {
    if (rows[i][i] <= 1e-12 * products[terms[i]][terms[i]]) return false;
    for (size_t below = i + 1; below < count; ++below) {
      const double factor = rows[below][i] / rows[i][i];
      for (size_t j = i; j <= count; ++j) rows[below][j] -= factor * rows[i][j];
    }
  }
  solution = {};
  for (size_t i = count; i-- > 0;) {
    double rest = rows[i][count];
    for (size_t j = i + 1; j < count; ++j) rest -= rows[i][j] * solution[terms[j]];
    solution[terms[i]] = rest / rows[i][i];
    if (!(solution[terms[i]] >= 0)) return false;
  }
  return true;
}

double Dot(const std::array<double, 4>& a, const std::array<double, 4>& b) {
  return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3];
}

}  // namespace

// Plans of several sizes after several prefixes, with the weight of real ones, so that they are
// forgotten like these.
CostFit::CostFit(const KnownCost& known)
    : solution_{known.cost.overhead_us * kScale[0], known.cost.prefix_us * kScale[1],
                known.cost.token_us * kScale[2], known.cost.attention_us * kScale[3]},
      solved_(true),
      known_(true) {
  for (const int tokens : {128, 1024, 8192}) {
    for (const int prefix_length : {0, 4096, 32'768}) {
      PlanWork work;
      work.Add(prefix_length, tokens);
      Remember(work, known.cost.Micros(work), 1);
    }
  }
  judged_ = true;
  error_ = known.error;
}

CostFit::Terms CostFit::TermsOf(const PlanWork& work) {
  return {1 / kScale[0], static_cast<double>(work.prefix_tokens) / kScale[1],
          static_cast<double>(work.tokens) / kScale[2], work.pairs / kScale[3]};
}

// Compares the plan with its prediction.
double CostFit::WeightOf(const Terms& terms, double micros) {
  if (!solved_) return 1;
  const double predicted = Dot(terms, solution_);
  const double off = std::abs(predicted - micros) / micros;
  const double kept = judged_ ? kErrorKept : 0;
  error_ = kept * error_ + (1 - kept) * std::min(off, 1.0);
  judged_ = true;
  const double ratio = predicted > kLeastPredicted * micros ? micros / predicted : 1;
  if (ratio > kAmiss) {
    one_side_ = std::max(one_side_, 0) + 1;
  } else if (ratio < 1 / kAmiss) {
    one_side_ = std::min(one_side_, 0) - 1;
  } else {
    one_side_ = 0;
  }
  // A plan that is much shorter than usual is a small one, about which little is known, delayed or
  // not.
  const double usual = terms[0] / typical_[0];
  const bool judges = known_ || plans_ >= kLeastPlans;
  const bool outlier = judges && (ratio >= kOutlier || ratio <= 1 / kOutlier) &&
                       std::abs(micros - predicted) > kLargeShare * usual;
  outliers_ += outlier ? 1 : 0;
  if (std::abs(one_side_) == kAmissIsNews) {
    BeginAnew(ratio);
    return 1;
  }
  // The sums hold terms as fractions of the time. So a time that is a thousandth of its prediction,
  // as of a step that its thread was late to begin, would count a million times.
  return outlier ? kStay * std::min(ratio * ratio, 1 / (ratio * ratio)) : 1;
}

// The stage has become slower or faster, most likely in everything. So costs are scaled, and
// learned again from there.
void CostFit::BeginAnew(double ratio) {
  one_side_ = 0;
  products_ = {};
  sums_ = {};
  for (int i = 0; i < kTerms; ++i) {
    solution_[i] *= ratio;
    typical_[i] /= ratio;
  }
}

void CostFit::Add(const PlanWork& work, int64_t micros) {
  if (work.tokens <= 0 || micros <= 0) return;
  if (++plans_ <= kColdPlans) return;
  const auto time = static_cast<double>(micros);
  Remember(work, time, WeightOf(TermsOf(work), time));
  Solve();
}

void CostFit::Remember(const PlanWork& work, double micros, double weight) {
  const Terms terms = TermsOf(work);
  const double kept = error_ > kAmissError ? kKeptAmiss : kKept;
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) {
      products_[i][j] = kept * products_[i][j] + weight * terms[i] * terms[j] / micros / micros;
    }
    sums_[i] = kept * sums_[i] + weight * terms[i] / micros;
    // Plans without a prefix carry no information about its cost.
    const double share = terms[i] / micros;
    if (share == 0) continue;
    typical_[i] =
        typical_[i] == 0 ? share : typical_[i] + (1 - kKept) * weight * (share - typical_[i]);
  }
  least_tokens_ = least_tokens_ == 0 ? work.tokens : std::min(least_tokens_, work.tokens);
  most_tokens_ = std::max(most_tokens_, work.tokens);
}

// Finds the subset of terms that fits best without a negative coefficient. All fifteen subsets of
// four terms are tried, which is simpler than an active set and as fast.
void CostFit::Solve() {
  std::array<Terms, kTerms> products = products_;
  Terms sums = sums_;
  for (int i = 0; i < kTerms; ++i) {
    const double stay = kStay * typical_[i] * typical_[i];
    products[i][i] += stay;
    sums[i] += solved_ ? stay * solution_[i] : 0;
  }
  Terms best{};
  double least = std::numeric_limits<double>::infinity();
  for (unsigned chosen = 1; chosen < 1U << kTerms; ++chosen) {
    Terms solution;
    if (!SolveFor(chosen, products, sums, solution)) continue;
    double residual = 0;  // Up to a constant.
    for (int i = 0; i < kTerms; ++i) {
      residual += solution[i] * (Dot(products[i], solution) - 2 * sums[i]);
    }
    if (residual >= least) continue;
    least = residual;
    best = solution;
  }
  if (!std::isfinite(least)) return;
  solution_ = best;
  solved_ = true;
}

const char* CostFit::missing() const {
  if (!known_ && plans_ < kLeastPlans) return "too few plans have been seen";
  const auto least = static_cast<double>(least_tokens_);
  if (static_cast<double>(most_tokens_) < kLeastSpread * least) {
    return "plans of one size have been seen";
  }
  if (error_ > kLargestError) return "plans take other times than predicted";
  const StageCost cost = Cost();
  const double longest_us = cost.Micros(0, static_cast<int>(most_tokens_));
  const bool sized = longest_us - cost.overhead_us > kLeastSized * longest_us;
  return solved_ && cost.Check().ok() && sized ? nullptr
                                               : "plans take no time that depends on their size";
}

StageCost CostFit::Cost() const {
  return {.overhead_us = solution_[0] / kScale[0],
          .prefix_us = solution_[1] / kScale[1],
          .token_us = solution_[2] / kScale[2],
          .attention_us = solution_[3] / kScale[3]};
}

std::optional<StageCost> CostFit::cost() const {
  if (missing() != nullptr) return std::nullopt;
  return Cost();
}

}  // namespace baton
