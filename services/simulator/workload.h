// A simulated cluster's workload: requests with arrivals and lengths, drawn from a seed or read
// from a trace. People write it, so everything in it is checked.
#ifndef SERVICES_SIMULATOR_WORKLOAD_H_
#define SERVICES_SIMULATOR_WORKLOAD_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/random.h"
#include "proto/baton/v1/config.pb.h"

namespace baton::simulator {

inline constexpr int kLongest = 16'777'216;  // As --context-length's.

// The number of tokens of prompts or answers, as users write it:
//   4096                        always so many
//   1000-8000                   from 1000 to 8000, uniformly
//   lognormal:2000:0.8          median 2000, standard deviation of the logarithm 0.8
//   lognormal:2000:0.8:32000    the same, but never more than 32000
//   500@3,8000-16000@1          one of these, the first three times as often
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
    int low = 1;  // The range, or the bounds of a lognormal.
    int high = 1;
    double median = 0;  // 0: uniform over the range.
    double sigma = 0;
  };

  static absl::StatusOr<Part> ParsePart(const std::string& text);
  static int DrawPart(const Part& part, Random& random);

  std::vector<Part> parts_;
  double weights_ = 0;
};

inline constexpr int64_t kRequestsMax = 200'000;

inline constexpr int kTokensOfHash = 512;

struct WorkloadRequest {
  int64_t arrival_us = 0;
  int prompt_tokens = 0;
  int output_tokens = 0;
  // The prompt's first blocks of kTokensOfHash tokens: equal numbers are equal tokens. What lies
  // behind them is no other prompt's.
  std::vector<int64_t> hash_ids;
};

// The prompt of the workload's request of this index; empty if it has no hash ids, and so shares
// nothing.
std::vector<int32_t> PromptOf(const WorkloadRequest& request, size_t index);

struct Workload {
  std::vector<WorkloadRequest> requests;  // In the order of their arrivals.
  // If positive, so many clients, each of which sends its next request after its last answer;
  // arrivals then follow from the run.
  int concurrency = 0;
  std::string text;  // For people: "poisson 2/s".
};

// The options of the group "Simulation". Reads the file of --trace.
absl::StatusOr<Workload> MakeWorkload(const v1::Options& options);

// Parses lines of JSON in the format of Mooncake's traces (github.com/kvcache-ai/Mooncake):
// timestamp in milliseconds, input_length and output_length in tokens, and perhaps hash_ids; other
// fields are ignored.
// Reads at most `limit` lines; 0 means all, at most kRequestsMax. Errors name `file`, line and
// field.
absl::StatusOr<std::vector<WorkloadRequest>> ParseTrace(std::string_view text,
                                                        const std::string& file, int64_t limit,
                                                        double speed);

}  // namespace baton::simulator

#endif  // SERVICES_SIMULATOR_WORKLOAD_H_
