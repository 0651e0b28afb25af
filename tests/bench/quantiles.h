// What repeated measurements come to.
#ifndef TESTS_BENCH_QUANTILES_H_
#define TESTS_BENCH_QUANTILES_H_

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace baton {

// The value nearest to `part` in [0, 1] of the way from the smallest to the largest. There is one.
inline double Quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(std::lround(part * static_cast<double>(values.size() - 1)))];
}

// The median as `key`, the quartiles beside it.
inline void PutQuartiles(const std::string& key, const std::vector<double>& values,
                         nlohmann::ordered_json& out) {
  out[key] = Quantile(values, 0.5);
  out[key + "_p25"] = Quantile(values, 0.25);
  out[key + "_p75"] = Quantile(values, 0.75);
}

}  // namespace baton

#endif  // TESTS_BENCH_QUANTILES_H_
