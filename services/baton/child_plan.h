// What those who start other Baton processes, `up` and a node of a chain, plan alike: what a child
// inherits, and its ports. Starts nothing.
#ifndef SERVICES_BATON_CHILD_PLAN_H_
#define SERVICES_BATON_CHILD_PLAN_H_

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/options.h"
#include "services/baton/supervisor.h"

namespace baton {

// A port of `host` (numeric) that is free now, outside the kernel's ephemeral range: so none of the
// cluster's own connections takes it before its owner listens, or while its owner restarts.
// UNAVAILABLE if there is none.
absl::StatusOr<int> FreePort(const std::string& host);

using FindFreePort = std::function<absl::StatusOr<int>(const std::string& host)>;

struct PlannedPort {
  std::string host;    // Numeric.
  std::string option;  // That it comes from.
  int port = 0;
};

// UNAVAILABLE, naming the option, if another process has one of them. Checked before any process is
// started: that one would fail later, or take the other's answers for its own cluster's.
absl::Status CheckListen(const std::vector<PlannedPort>& ports);

// Ports of this machine that its processes are given before they start; each is given once.
class PortPlan {
 public:
  explicit PortPlan(FindFreePort find) : find_(std::move(find)) {}

  // `wanted`, or with 0 a free one of `host`. InvalidField of `option` if it can't be.
  absl::StatusOr<int> Choose(const std::string& host, const char* option, int64_t wanted);
  const std::vector<PlannedPort>& chosen() const { return chosen_; }

 private:
  const FindFreePort find_;
  std::set<int> taken_;
  std::vector<PlannedPort> chosen_;
};

// A process of this executable that gets what its parent was given and applies to `role`.
ChildSpec InheritingChild(const config::ParsedOptions& parent, const std::string& name,
                          const std::string& command, config::Role role,
                          const std::vector<std::string>& environment);

// "--name=value" at the end: of a flag given twice the last one counts.
void AddOption(std::vector<std::string>& arguments, const std::string& name,
               const std::string& value);

// How long children may take to stop, and which of their ends are final.
SupervisorLimits LimitsOf(const v1::Options& options);

}  // namespace baton

#endif  // SERVICES_BATON_CHILD_PLAN_H_
