// What every long-running command does with its process: logging, limits, failpoints, signals.
#ifndef SERVICES_BATON_PROCESS_H_
#define SERVICES_BATON_PROCESS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "proto/baton/v1/config.pb.h"

namespace baton {

// Logging under `name`, failpoints, as many file descriptors as the system allows, and SIGINT and
// SIGTERM blocked for WaitForStop. Call before any thread starts.
absl::Status PrepareProcess(const v1::Options& options, const std::string& name);

// Returns when SIGINT or SIGTERM comes, or soon after `ended()` is true.
void WaitForStop(const std::function<bool()>& ended);

// "0.8 s", since `start_us` of NowUs().
std::string SecondsSince(int64_t start_us);

}  // namespace baton

#endif  // SERVICES_BATON_PROCESS_H_
