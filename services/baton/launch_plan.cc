#include "services/baton/launch_plan.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/config/device_deal.h"
#include "common/config/mode.h"
#include "common/net/host.h"

namespace baton {
namespace {

using config::Role;
using config::StageRank;
using v1::OptionSpec;

constexpr int kHighestPort = 65535;

// What a node's own command says and its workers are not told: which of the places are its, and
// what one process alone can have.
constexpr const char* kNodeOptions[] = {"nnodes",      "node_rank", "dist_init_addr",
                                        "instance_id", "grpc_port", "metrics_port"};

// "--name=value" at the end: of a flag given twice the last one counts.
void AddOption(std::vector<std::string>& arguments, const std::string& name,
               const std::string& value) {
  arguments.push_back(absl::StrCat("--", name, "=", value));
}

// Ports of this machine that its processes are given before they start; each is given once.
class PortPlan {
 public:
  explicit PortPlan(FindFreePort find) : find_(std::move(find)) {}

  // `wanted`, or with 0 a free one of `host`. InvalidField of `option` if it can't be.
  absl::StatusOr<int> Choose(const std::string& host, const char* option, int64_t wanted) {
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
  const std::vector<PlannedPort>& chosen() const { return chosen_; }

 private:
  const FindFreePort find_;
  std::set<int> taken_;
  std::vector<PlannedPort> chosen_;
};

class Planner {
 public:
  Planner(const config::ParsedOptions& options, const std::vector<std::string>& for_workers,
          const std::vector<std::string>& environment, const FindFreePort& free_port)
      : inherited_(options),
        values_(inherited_.values),
        for_workers_(for_workers),
        environment_(environment),
        ports_(free_port) {}

  absl::StatusOr<LaunchPlan> Plan() {
    BATON_RETURN_IF_ERROR(config::IsNode(values_) ? PlanNode() : PlanCluster());
    plan_.ports = ports_.chosen();
    return std::move(plan_);
  }

 private:
  // What the workers of one chain or of one decode service have in common.
  struct Group {
    Role role = OptionSpec::PREFILL;
    std::string prefix;                  // Their names begin with it.
    std::vector<std::string> arguments;  // Beyond what every worker is told.
    int64_t stages = 1;
    int64_t ranks = 1;

    // A decode service of one stage counts ranks alone.
    bool has_stages() const { return role != OptionSpec::DECODE || stages > 1; }
  };

  // ---- A cluster ----

  absl::Status PlanCluster() {
    BATON_RETURN_IF_ERROR(ChooseHosts(values_.host()));
    BATON_RETURN_IF_ERROR(DealDevices(OptionSpec::UP));
    BATON_RETURN_IF_ERROR(AddRouter());
    for (int64_t chain = 0; chain < values_.prefill_chains(); ++chain) {
      BATON_RETURN_IF_ERROR(AddChain(chain));
    }
    return config::IsColocated(values_) ? absl::OkStatus() : AddDecodes();
  }

  absl::Status AddRouter() {
    PlannedRouter router;
    router.certificate = values_.ssl_certfile();
    router.cluster_host = plan_.local_host;
    std::string cluster_listen_host = listen_host_;
    if (!values_.cluster_host().empty()) {
      const auto cluster = net::ListenAddress(values_.cluster_host());
      if (!cluster.ok()) {
        return InvalidField("cluster_host", std::string(cluster.status().message()));
      }
      router.cluster_host = net::ReachableHere(*cluster);
      cluster_listen_host = *cluster;
    }
    // The children must know each other's ports before they start.
    BATON_ASSIGN_OR_RETURN(router.http_port, ports_.Choose(listen_host_, "port", values_.port()));
    BATON_ASSIGN_OR_RETURN(router.grpc_port,
                           ports_.Choose(listen_host_, "grpc_port", values_.grpc_port()));
    BATON_ASSIGN_OR_RETURN(router.cluster_port, ports_.Choose(cluster_listen_host, "cluster_port",
                                                              values_.cluster_port()));
    ChildSpec spec = InheritingChild(kRouterName, "router", OptionSpec::ROUTER);
    AddOption(spec.arguments, "port", absl::StrCat(router.http_port));
    AddOption(spec.arguments, "grpc-port", absl::StrCat(router.grpc_port));
    AddOption(spec.arguments, "cluster-port", absl::StrCat(router.cluster_port));
    plan_.children.push_back(std::move(spec));
    plan_.router = std::move(router);
    return absl::OkStatus();
  }

  // What a worker is told whose parent is no worker.
  Group ClusterGroup(Role role) const {
    Group group;
    group.role = role;
    AddOption(group.arguments, "disaggregation-mode",
              role == OptionSpec::COLOCATED ? "null" : config::RoleName(role));
    AddOption(group.arguments, "router-address",
              net::JoinHostPort(plan_.router->cluster_host, plan_.router->cluster_port));
    AddOption(group.arguments, "advertise-host", plan_.advertise_host);
    return group;
  }

  absl::Status AddChain(int64_t chain) {
    Group group =
        ClusterGroup(config::IsColocated(values_) ? OptionSpec::COLOCATED : OptionSpec::PREFILL);
    group.prefix = absl::StrCat(config::RoleName(group.role), "-", chain);
    group.stages = values_.pp_size();
    group.ranks = values_.tp_size();
    const std::string id = absl::StrCat("chain-", chain);
    AddOption(group.arguments, "chain-id", id);
    plan_.groups.push_back({id, group.ranks > 1 ? "ranks" : "stages", {}});
    return AddWorkers(group);
  }

  absl::Status AddDecodes() {
    const int64_t stages = values_.decode_pp_size();
    const int64_t ranks = values_.decode_tp_size();
    const char* const unit = ranks > 1 ? "ranks" : stages > 1 ? "stages" : "services";
    plan_.groups.push_back({"decode", unit, {}});
    for (int64_t decode = 0; decode < values_.decodes(); ++decode) {
      Group group = ClusterGroup(OptionSpec::DECODE);
      group.prefix = absl::StrCat("decode-", decode);
      group.stages = stages;
      group.ranks = ranks;
      // --pp-size, its partition and --tp-size are the chains'.
      if (stages > 1 || values_.pp_size() > 1) {
        AddOption(group.arguments, "pp-size", absl::StrCat(stages));
      }
      const std::string& partition = values_.decode_pp_layer_partition();
      if (!partition.empty() || !values_.pp_layer_partition().empty()) {
        AddOption(group.arguments, "pp-layer-partition", partition);
      }
      if (ranks > 1 || values_.tp_size() > 1) {
        AddOption(group.arguments, "tp-size", absl::StrCat(ranks));
      }
      if (stages * ranks > 1) AddOption(group.arguments, "decode-id", absl::StrCat(decode));
      BATON_RETURN_IF_ERROR(AddWorkers(group));
    }
    return absl::OkStatus();
  }

  absl::Status AddWorkers(const Group& group) {
    for (int64_t stage = 0; stage < group.stages; ++stage) {
      for (int64_t rank = 0; rank < group.ranks; ++rank) {
        BATON_RETURN_IF_ERROR(AddWorker(group, {stage, rank}));
      }
    }
    return absl::OkStatus();
  }

  // ---- A node ----

  absl::Status PlanNode() {
    for (const char* name : kNodeOptions) inherited_.sources.erase(name);
    BATON_ASSIGN_OR_RETURN(const std::string host, NodeHost());
    BATON_RETURN_IF_ERROR(ChooseHosts(host));
    BATON_RETURN_IF_ERROR(DealDevices(config::ModeRole(values_)));
    const bool decode = config::IsDecode(values_);
    const std::string& id = decode ? values_.decode_id() : values_.chain_id();
    Group group;
    group.role = config::ModeRole(values_);
    group.prefix = values_.instance_id();
    if (group.prefix.empty()) group.prefix = absl::StrCat(config::WorkerKind(values_), "-", id);
    group.stages = values_.pp_size();
    group.ranks = values_.tp_size();
    AddOption(group.arguments, "host", host);
    AddOption(group.arguments, decode ? "decode-id" : "chain-id", id);
    const char* const unit = decode && group.stages * group.ranks == 1 ? "services of this node"
                             : group.ranks > 1                         ? "ranks of this node"
                                                                       : "stages of this node";
    plan_.groups.push_back({id, unit, {}});
    plan_.places = config::PlacesHere(values_);
    for (const StageRank& place : plan_.places) {
      BATON_RETURN_IF_ERROR(AddWorker(group, place));
    }
    return absl::OkStatus();
  }

  // --host. Its default, loopback, would be unreachable from other nodes.
  absl::StatusOr<std::string> NodeHost() const {
    const std::string& meeting = values_.dist_init_addr();
    if (inherited_.sources.at("host").kind != config::OptionSource::Kind::kDefault ||
        meeting.empty()) {
      return values_.host();
    }
    BATON_ASSIGN_OR_RETURN(const std::string address, config::MeetingAddress(meeting));
    auto source = net::RouteSource("::", address);
    if (source.ok()) return source;
    return absl::UnavailableError(absl::StrCat("dist_init_addr: ", source.status().message()));
  }

  // ---- Both ----

  absl::Status ChooseHosts(const std::string& host) {
    const auto listen = net::ListenAddress(host);
    if (!listen.ok()) return InvalidField("host", std::string(listen.status().message()));
    listen_host_ = *listen;
    plan_.local_host = net::ReachableHere(*listen);
    plan_.advertise_host = values_.advertise_host();
    if (!plan_.advertise_host.empty()) return absl::OkStatus();
    if (config::IsNode(values_)) {
      plan_.advertise_host = plan_.local_host;  // What others are told its workers find out.
    } else {
      plan_.advertise_host =
          net::IsUnspecified(*listen) ? net::DefaultRouteSource(*listen) : *listen;
    }
    return absl::OkStatus();
  }

  // Preflight has compared them with the GPUs that are here.
  absl::Status DealDevices(Role role) {
    BATON_ASSIGN_OR_RETURN(devices_, config::DealDevices(values_, role, {}));
    return absl::OkStatus();
  }

  // A process of this executable that gets what its parent was given and applies to `role`. What is
  // added to its arguments overrules that.
  ChildSpec InheritingChild(const std::string& name, const std::string& command, Role role) const {
    ChildSpec spec;
    spec.name = name;
    spec.arguments = {command};
    for (std::string& argument : config::ChildArguments(inherited_, role)) {
      spec.arguments.push_back(std::move(argument));
    }
    spec.environment = config::ChildEnvironment(inherited_, role, environment_);
    return spec;
  }

  // The first worker's is `first`, if it was given, and the others' are the next ones.
  absl::StatusOr<int> WorkerPort(const char* option, int64_t first) {
    const auto workers = static_cast<int64_t>(plan_.metrics_ports.size());
    return ports_.Choose(listen_host_, option, first == 0 ? 0 : first + workers);
  }

  absl::Status AddWorker(const Group& group, const StageRank& place) {
    std::string name = group.prefix;
    if (group.has_stages()) absl::StrAppend(&name, "-", place.stage);
    if (group.ranks > 1) absl::StrAppend(&name, "-", place.rank);
    const size_t number = plan_.metrics_ports.size();
    BATON_ASSIGN_OR_RETURN(const int metrics_port,
                           WorkerPort("metrics_port", values_.metrics_port()));
    int grpc_port = 0;  // Any: --grpc-port of a cluster is the router's.
    if (!plan_.router.has_value() && values_.grpc_port() != 0) {
      BATON_ASSIGN_OR_RETURN(grpc_port, WorkerPort("grpc_port", values_.grpc_port()));
    }
    ChildSpec spec = InheritingChild(name, "worker", group.role);
    spec.arguments.insert(spec.arguments.end(), group.arguments.begin(), group.arguments.end());
    AddOption(spec.arguments, "instance-id", name);
    if (group.has_stages()) AddOption(spec.arguments, "pp-rank", absl::StrCat(place.stage));
    AddOption(spec.arguments, "tp-rank", absl::StrCat(place.rank));
    AddOption(spec.arguments, "grpc-port", absl::StrCat(grpc_port));
    AddOption(spec.arguments, "metrics-port", absl::StrCat(metrics_port));
    if (values_.device() == "cuda") AddOption(spec.arguments, "device", devices_[number]);
    spec.arguments.insert(spec.arguments.end(), for_workers_.begin(), for_workers_.end());
    plan_.metrics_ports[name] = metrics_port;
    plan_.groups.back().names.push_back(std::move(name));
    plan_.children.push_back(std::move(spec));
    return absl::OkStatus();
  }

  config::ParsedOptions inherited_;
  const v1::Options& values_;
  const std::vector<std::string>& for_workers_;
  const std::vector<std::string>& environment_;
  PortPlan ports_;
  std::string listen_host_;           // Numeric; may stand for all addresses.
  std::vector<std::string> devices_;  // One for each worker.
  LaunchPlan plan_;
};

// Whether no other process of this user that chooses ports has chosen this one: a lock on one byte
// of a file, which the kernel takes back when this process ends. Without the file any port will do,
// and two that start at once may choose the same.
bool Claim(int port) {
  static const int file = [] {
    std::error_code none;
    const std::string path = std::filesystem::temp_directory_path(none) /
                             absl::StrCat("baton-ports-", getuid(), ".lock");
    return open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  }();
  if (file < 0) return true;
  struct flock byte = {};
  byte.l_type = F_WRLCK;
  byte.l_whence = SEEK_SET;
  byte.l_start = port;
  byte.l_len = 1;
  return fcntl(file, F_OFD_SETLK, &byte) == 0;
}

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
    if (Claim(port) && net::CanListen(host, port)) return port;
  }
  return absl::UnavailableError(absl::StrCat("no free port on ", host));
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

absl::StatusOr<LaunchPlan> PlanLaunch(const config::ParsedOptions& options,
                                      const std::vector<std::string>& for_workers,
                                      const std::vector<std::string>& environment,
                                      const FindFreePort& free_port) {
  return Planner(options, for_workers, environment, free_port).Plan();
}

}  // namespace baton
