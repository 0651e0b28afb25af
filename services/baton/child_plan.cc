#include "services/baton/child_plan.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/net/host.h"
#include "services/baton/process.h"

namespace baton {
namespace {

constexpr int kHighestPort = 65535;
// Beyond its drain a child needs a moment to end calls and threads.
constexpr int64_t kBeyondDrainMs = 10'000;

}  // namespace

absl::StatusOr<int> FreePort(const std::string& host) {
  constexpr int kLowest = 10'000;
  constexpr int kTries = 200;
  int64_t first_given = 32'768;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first_given;
  Random random(EntropySeed());
  for (int i = 0; i < kTries; ++i) {
    const int port = static_cast<int>(
        random.Between(kLowest, std::max<int64_t>(first_given, 2 * int64_t{kLowest}) - 1));
    if (net::CanListen(host, port)) return port;
  }
  return absl::UnavailableError(absl::StrCat("no free port on ", host));
}

absl::StatusOr<int> PortPlan::Choose(const std::string& host, const char* option, int64_t wanted) {
  constexpr int kTries = 100;
  if (wanted > kHighestPort) {
    return InvalidField(option, absl::StrCat("port ", wanted, " does not exist"));
  }
  int port = static_cast<int>(wanted);
  for (int i = 0; wanted == 0 && i < kTries; ++i) {
    BATON_ASSIGN_OR_RETURN(port, find_(host));
    if (!taken_.contains(port)) break;
  }
  if (!taken_.insert(port).second) {
    return InvalidField(option, absl::StrCat("port ", port, " is asked for twice"));
  }
  chosen_.push_back({host, option, port});
  return port;
}

absl::Status CheckListen(const std::vector<PlannedPort>& ports) {
  for (const PlannedPort& planned : ports) {
    const absl::Status status = net::CheckListen(planned.host, planned.port);
    if (status.ok()) continue;
    return absl::UnavailableError(absl::StrCat(
        status.message(), " (--", absl::StrReplaceAll(planned.option, {{"_", "-"}}), ")"));
  }
  return absl::OkStatus();
}

ChildSpec InheritingChild(const config::ParsedOptions& parent, const std::string& name,
                          const std::string& command, config::Role role,
                          const std::vector<std::string>& environment) {
  ChildSpec spec;
  spec.name = name;
  spec.arguments = {command};
  for (std::string& argument : config::ChildArguments(parent, role)) {
    spec.arguments.push_back(std::move(argument));
  }
  spec.environment = config::ChildEnvironment(parent, role, environment);
  return spec;
}

void AddOption(std::vector<std::string>& arguments, const std::string& name,
               const std::string& value) {
  arguments.push_back(absl::StrCat("--", name, "=", value));
}

SupervisorLimits LimitsOf(const v1::Options& options) {
  SupervisorLimits limits;
  limits.stop_timeout_us =
      (options.drain_settle_ms() + options.drain_timeout_ms() + kBeyondDrainMs) * 1000;
  limits.permanent_exit_codes = {kExitUsage, kExitPermanent};
  return limits;
}

}  // namespace baton
