// What a simulated cluster is asked: requests with their arrivals and lengths, drawn from a seed or
// read from a trace. Everything in it is checked, since people write it; nothing is run here.
#ifndef SERVICES_SIMULATOR_WORKLOAD_H_
#define SERVICES_SIMULATOR_WORKLOAD_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/baton/v1/config.pb.h"

namespace baton::simulator {

inline constexpr int64_t kRequestsMax = 200'000;

struct WorkloadRequest {
  int64_t arrival_us = 0;
  int prompt_tokens = 0;
  int output_tokens = 0;
};

struct Workload {
  std::vector<WorkloadRequest> requests;  // In the order of their arrivals.
  // > 0: so many clients, each of whom sends its next request when it has its last answer; arrivals
  // are then the run's to say.
  int concurrency = 0;
  std::string text;  // For people: "poisson 2/s".
};

// The options of the group "Simulation". Reads the file of --trace.
absl::StatusOr<Workload> MakeWorkload(const v1::Options& options);

// Lines of JSON as Mooncake's traces have them (github.com/kvcache-ai/Mooncake): timestamp in
// milliseconds, input_length and output_length in tokens; other fields are for others. At most
// `limit` of them; 0: all, which are at most kRequestsMax. Errors name `file`, line and field.
absl::StatusOr<std::vector<WorkloadRequest>> ParseTrace(std::string_view text,
                                                        const std::string& file, int64_t limit,
                                                        double speed);

}  // namespace baton::simulator

#endif  // SERVICES_SIMULATOR_WORKLOAD_H_
