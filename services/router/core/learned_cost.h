// What work of a size takes, learned from what it took: overhead + per_token * tokens, by least
// squares over the recent past.
#ifndef SERVICES_ROUTER_CORE_LEARNED_COST_H_
#define SERVICES_ROUTER_CORE_LEARNED_COST_H_

#include <algorithm>
#include <cstdint>

namespace baton::router {

class LearnedCost {
 public:
  void Add(double tokens, double us) {
    for (double* sum : {&count_, &x_, &y_, &xx_, &xy_}) *sum *= kKept;
    count_ += 1;
    x_ += tokens;
    y_ += us;
    xx_ += tokens * tokens;
    xy_ += tokens * us;
    const double spread = count_ * xx_ - x_ * x_;
    per_token_us_ = spread > kSpread * count_ * xx_ ? (count_ * xy_ - x_ * y_) / spread : 0;
    overhead_us_ = (y_ - per_token_us_ * x_) / count_;
    // Alike sizes say nothing of the two apart, and noise may say what can't be.
    if (per_token_us_ > 0 && overhead_us_ >= 0) return;
    per_token_us_ = x_ > 0 ? y_ / x_ : 0;
    overhead_us_ = 0;
  }

  bool known() const { return count_ > 0; }
  // `requests` of so many tokens together.
  double Of(double tokens, double requests = 1) const {
    return overhead_us_ * requests + per_token_us_ * tokens;
  }

 private:
  static constexpr double kKept = 0.95;  // Share of the past, with each observation.
  static constexpr double kSpread = 0.01;

  double per_token_us_ = 0;  // First what is read often.
  double overhead_us_ = 0;
  double count_ = 0;
  double x_ = 0;
  double y_ = 0;
  double xx_ = 0;
  double xy_ = 0;
};

// The mean of the recent past.
class RecentMean {
 public:
  void Add(double value) {
    mean_ = known_ ? mean_ + kShare * (value - mean_) : value;
    known_ = true;
  }
  double Or(double otherwise) const { return known_ ? mean_ : otherwise; }

 private:
  static constexpr double kShare = 0.1;

  bool known_ = false;
  double mean_ = 0;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_LEARNED_COST_H_
