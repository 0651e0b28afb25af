// Arithmetic that the rules share.
#ifndef COMMON_CHUNKING_ROUNDING_H_
#define COMMON_CHUNKING_ROUNDING_H_

#include <climits>
#include <cmath>

namespace baton {

// The positive root of a x^2 + b x = rest, for a, b >= 0, not both zero; 0 if there is none. It
// uses the form that avoids cancellation when `a` is small.
inline double PositiveRoot(double a, double b, double rest) {
  if (rest <= 0) return 0;
  return 2 * rest / (b + std::sqrt(b * b + 4 * a * rest));
}

// Rounds down to whole units, limited to what an int holds.
inline int AlignDown(double tokens, int unit) {
  const double units = std::floor(tokens / unit);
  return units >= static_cast<double>(INT_MAX / unit) ? INT_MAX / unit * unit
                                                      : static_cast<int>(units) * unit;
}

}  // namespace baton

#endif  // COMMON_CHUNKING_ROUNDING_H_
