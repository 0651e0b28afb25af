#include "services/baton/up_plan.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/net/host.h"

namespace baton {
namespace {

using config::Role;
using v1::OptionSpec;

constexpr int kHighestPort = 65535;

void AddOption(std::vector<std::string>& arguments, const std::string& name,
               const std::string& value) {
  arguments.push_back(absl::StrCat("--", name, "=", value));
}

class Planner {
 public:
  Planner(const config::ParsedOptions& options, const std::vector<std::string>& for_workers,
          const std::vector<std::string>& environment,
          const std::function<absl::StatusOr<int>(const std::string&)>& free_port)
      : options_(options),
        for_workers_(for_workers),
        environment_(environment),
        free_port_(free_port) {}

  absl::StatusOr<UpPlan> Plan() {
    const v1::Options& values = options_.values;
    BATON_RETURN_IF_ERROR(ChooseHosts());
    plan_.certificate = values.ssl_certfile();
    BATON_ASSIGN_OR_RETURN(plan_.http_port, ChoosePort(values.port()));
    BATON_ASSIGN_OR_RETURN(plan_.grpc_port, ChoosePort(values.grpc_port()));
    AddRouter();
    for (int64_t chain = 0; chain < values.prefill_chains(); ++chain) {
      for (int64_t stage = 0; stage < values.pp_size(); ++stage) {
        BATON_RETURN_IF_ERROR(AddStage(chain, stage));
      }
    }
    for (int64_t decode = 0; decode < values.decodes(); ++decode) {
      std::vector<std::string> own;
      if (values.tp_size() > 1) AddOption(own, "tp-size", "1");  // Of the chains alone.
      BATON_RETURN_IF_ERROR(
          AddWorker(OptionSpec::DECODE, absl::StrCat("decode-", decode), std::move(own)));
    }
    return std::move(plan_);
  }

 private:
  absl::Status ChooseHosts() {
    const auto listen = net::ListenAddress(options_.values.host());
    if (!listen.ok()) return InvalidField("host", std::string(listen.status().message()));
    plan_.listen_host = *listen;
    plan_.local_host = net::ReachableHere(*listen);
    plan_.advertise_host = options_.values.advertise_host();
    if (plan_.advertise_host.empty()) {
      plan_.advertise_host =
          net::IsUnspecified(*listen) ? net::DefaultRouteSource(*listen) : *listen;
    }
    return absl::OkStatus();
  }

  // `wanted`, or a free one: the children must know each other's ports before they start.
  absl::StatusOr<int> ChoosePort(int64_t wanted) {
    constexpr int kTries = 100;
    if (wanted > kHighestPort) {
      return InvalidField("metrics_port", absl::StrCat("port ", wanted, " does not exist"));
    }
    int port = static_cast<int>(wanted);
    for (int i = 0; wanted == 0 && i < kTries; ++i) {
      BATON_ASSIGN_OR_RETURN(port, free_port_(plan_.listen_host));
      if (!taken_.contains(port)) break;
    }
    if (!taken_.insert(port).second) {
      return InvalidField("port", absl::StrCat("port ", port, " is asked for twice"));
    }
    return port;
  }

  ChildSpec NewChild(const std::string& name, const std::string& command, Role role) const {
    ChildSpec spec;
    spec.name = name;
    spec.arguments = {command};
    for (std::string& argument : config::ChildArguments(options_, role)) {
      spec.arguments.push_back(std::move(argument));
    }
    spec.environment = config::ChildEnvironment(options_, role, environment_);
    return spec;
  }

  // What is added here comes after the parent's own: of a flag given twice the last one counts.
  void AddRouter() {
    ChildSpec spec = NewChild("router", "router", OptionSpec::ROUTER);
    AddOption(spec.arguments, "port", absl::StrCat(plan_.http_port));
    AddOption(spec.arguments, "grpc-port", absl::StrCat(plan_.grpc_port));
    plan_.children.push_back(std::move(spec));
  }

  // A process for each of its ranks.
  absl::Status AddStage(int64_t chain, int64_t stage) {
    const int64_t ranks = options_.values.tp_size();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::string name = absl::StrCat("prefill-", chain, "-", stage);
      std::vector<std::string> own;
      AddOption(own, "chain-id", absl::StrCat("chain-", chain));
      AddOption(own, "pp-rank", absl::StrCat(stage));
      if (ranks > 1) {
        absl::StrAppend(&name, "-", rank);
        AddOption(own, "tp-rank", absl::StrCat(rank));
      }
      BATON_RETURN_IF_ERROR(AddWorker(OptionSpec::PREFILL, name, std::move(own)));
    }
    return absl::OkStatus();
  }

  absl::Status AddWorker(Role role, const std::string& name, std::vector<std::string> own) {
    const v1::Options& values = options_.values;
    const int64_t first = values.metrics_port();
    const auto workers = static_cast<int64_t>(plan_.metrics_ports.size());
    BATON_ASSIGN_OR_RETURN(const int metrics_port, ChoosePort(first == 0 ? 0 : first + workers));
    plan_.metrics_ports[name] = metrics_port;
    ChildSpec spec = NewChild(name, "worker", role);
    AddOption(spec.arguments, "disaggregation-mode", config::RoleName(role));
    AddOption(spec.arguments, "router-address",
              net::JoinHostPort(plan_.local_host, plan_.grpc_port));
    AddOption(spec.arguments, "advertise-host", plan_.advertise_host);
    AddOption(spec.arguments, "instance-id", name);
    AddOption(spec.arguments, "grpc-port", "0");
    AddOption(spec.arguments, "metrics-port", absl::StrCat(metrics_port));
    for (std::string& argument : own) spec.arguments.push_back(std::move(argument));
    spec.arguments.insert(spec.arguments.end(), for_workers_.begin(), for_workers_.end());
    plan_.children.push_back(std::move(spec));
    return absl::OkStatus();
  }

  const config::ParsedOptions& options_;
  const std::vector<std::string>& for_workers_;
  const std::vector<std::string>& environment_;
  const std::function<absl::StatusOr<int>(const std::string&)>& free_port_;
  std::set<int> taken_;
  UpPlan plan_;
};

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

absl::StatusOr<UpPlan> PlanUp(
    const config::ParsedOptions& options, const std::vector<std::string>& for_workers,
    const std::vector<std::string>& environment,
    const std::function<absl::StatusOr<int>(const std::string& host)>& free_port) {
  return Planner(options, for_workers, environment, free_port).Plan();
}

}  // namespace baton
