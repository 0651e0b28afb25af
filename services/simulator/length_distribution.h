// How many tokens prompts or answers have, as people write it:
//   4096                        always so many
//   1000-8000                   from 1000 to 8000, each as likely as another
//   lognormal:2000:0.8          median 2000, and 0.8 the standard deviation of the logarithm
//   lognormal:2000:0.8:32000    and never more than 32000
//   500@3,8000-16000@1          one of these, the first three times as often
#ifndef SERVICES_SIMULATOR_LENGTH_DISTRIBUTION_H_
#define SERVICES_SIMULATOR_LENGTH_DISTRIBUTION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/random.h"

namespace baton::simulator {

inline constexpr int kLongest = 16'777'216;  // As --context-length's.

class LengthDistribution {
 public:
  // Errors name `field`, what is wrong with which part, and what was expected.
  static absl::StatusOr<LengthDistribution> Parse(const std::string& text,
                                                  const std::string& field);

  // 1 to kLongest.
  int Draw(Random& random) const;

 private:
  struct Part {
    double weight = 1;
    int low = 1;  // A range, or of a lognormal the bounds.
    int high = 1;
    double median = 0;  // 0: every number of the range is as likely.
    double sigma = 0;
  };

  static absl::StatusOr<Part> ParsePart(const std::string& text);
  static int DrawPart(const Part& part, Random& random);

  std::vector<Part> parts_;
  double weights_ = 0;
};

}  // namespace baton::simulator

#endif  // SERVICES_SIMULATOR_LENGTH_DISTRIBUTION_H_
