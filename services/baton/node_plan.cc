#include "services/baton/node_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/config/device_deal.h"
#include "common/config/mode.h"
#include "common/net/host.h"

namespace baton {
namespace {

using config::HasStages;
using config::IsDecode;
using config::StageRank;

// The chain's name, or the decode service's.
const std::string& GroupOf(const v1::Options& options) {
  return IsDecode(options) ? options.decode_id() : options.chain_id();
}

// What the node's own command says and its workers are not told: which of the places are its, and
// what one process alone can have.
constexpr const char* kOwnOptions[] = {"nnodes",      "node_rank", "dist_init_addr",
                                       "instance_id", "grpc_port", "metrics_port"};

class Planner {
 public:
  Planner(const config::ParsedOptions& options, const std::vector<std::string>& for_workers,
          const std::vector<std::string>& environment, const FindFreePort& free_port)
      : options_(options),
        inherited_(options),
        for_workers_(for_workers),
        environment_(environment),
        ports_(free_port) {
    for (const char* name : kOwnOptions) inherited_.sources.erase(name);
  }

  absl::StatusOr<NodePlan> Plan() {
    const v1::Options& values = options_.values;
    BATON_RETURN_IF_ERROR(ChooseHost());
    // Preflight has compared them with the GPUs that are here.
    BATON_ASSIGN_OR_RETURN(devices_, config::DealDevices(values, config::ModeRole(values), {}));
    plan_.group = {GroupOf(values), UnitOf(values), {}};
    plan_.places = config::PlacesHere(values);
    for (const StageRank& place : plan_.places) BATON_RETURN_IF_ERROR(AddWorker(place));
    plan_.ports = ports_.chosen();
    return std::move(plan_);
  }

 private:
  // A decode service of one process.
  static bool IsAlone(const v1::Options& values) {
    return IsDecode(values) && values.pp_size() * values.tp_size() == 1;
  }

  static const char* UnitOf(const v1::Options& values) {
    if (IsAlone(values)) return "services of this node";
    return values.tp_size() > 1 ? "ranks of this node" : "stages of this node";
  }

  // Workers are numbered by stage and rank, as far as there are more of them.
  static std::string NameOf(const v1::Options& values, const StageRank& place) {
    std::string name = values.instance_id();
    if (name.empty()) name = absl::StrCat(config::WorkerKind(values), "-", GroupOf(values));
    if (HasStages(values)) absl::StrAppend(&name, "-", place.stage);
    if (values.tp_size() > 1) absl::StrAppend(&name, "-", place.rank);
    return name;
  }

  // The default host, loopback, would be unreachable from other nodes.
  absl::Status ChooseHost() {
    const std::string& meeting = options_.values.dist_init_addr();
    host_ = options_.values.host();
    if (options_.sources.at("host").kind == config::OptionSource::Kind::kDefault &&
        !meeting.empty()) {
      BATON_ASSIGN_OR_RETURN(const std::string address, config::MeetingAddress(meeting));
      const auto source = net::RouteSource("::", address);
      if (!source.ok()) {
        return absl::UnavailableError(absl::StrCat("dist_init_addr: ", source.status().message()));
      }
      host_ = *source;
    }
    const auto listen = net::ListenAddress(host_);
    if (!listen.ok()) return InvalidField("host", std::string(listen.status().message()));
    listen_host_ = *listen;
    plan_.probe_host = net::ReachableHere(*listen);
    return absl::OkStatus();
  }

  // The first worker's is `first`, if it was given, and the others' are the next ones.
  absl::StatusOr<int> ChoosePort(const char* option, int64_t first) {
    const auto number = static_cast<int64_t>(plan_.children.size());
    return ports_.Choose(listen_host_, option, first == 0 ? 0 : first + number);
  }

  absl::Status AddWorker(const StageRank& place) {
    const v1::Options& values = options_.values;
    const std::string name = NameOf(values, place);
    BATON_ASSIGN_OR_RETURN(const int metrics_port,
                           ChoosePort("metrics_port", values.metrics_port()));
    int grpc_port = 0;
    if (values.grpc_port() != 0) {
      BATON_ASSIGN_OR_RETURN(grpc_port, ChoosePort("grpc_port", values.grpc_port()));
    }
    ChildSpec spec =
        InheritingChild(inherited_, name, "worker", config::ModeRole(values), environment_);
    AddOption(spec.arguments, "host", host_);
    AddOption(spec.arguments, "instance-id", name);
    AddOption(spec.arguments, IsDecode(values) ? "decode-id" : "chain-id", GroupOf(values));
    if (HasStages(values)) AddOption(spec.arguments, "pp-rank", absl::StrCat(place.stage));
    AddOption(spec.arguments, "tp-rank", absl::StrCat(place.rank));
    if (values.device() == "cuda") {
      AddOption(spec.arguments, "device", devices_[plan_.children.size()]);
    }
    AddOption(spec.arguments, "grpc-port", absl::StrCat(grpc_port));
    AddOption(spec.arguments, "metrics-port", absl::StrCat(metrics_port));
    spec.arguments.insert(spec.arguments.end(), for_workers_.begin(), for_workers_.end());
    plan_.metrics_ports[name] = metrics_port;
    plan_.group.names.push_back(name);
    plan_.children.push_back(std::move(spec));
    return absl::OkStatus();
  }

  const config::ParsedOptions& options_;
  config::ParsedOptions inherited_;
  const std::vector<std::string>& for_workers_;
  const std::vector<std::string>& environment_;
  PortPlan ports_;
  std::string host_;  // As the workers are told it.
  std::string listen_host_;
  std::vector<std::string> devices_;  // One for each worker.
  NodePlan plan_;
};

std::string PlaceText(const v1::Options& options, const StageRank& place) {
  std::string rank = absl::StrCat("rank ", place.rank);
  if (!HasStages(options)) return rank;
  const std::string stage = absl::StrCat("stage ", place.stage);
  return options.tp_size() == 1 ? stage : absl::StrCat(stage, " ", rank);
}

// "c, 2 stages of 2 ranks"
std::string ShapeText(const v1::Options& options) {
  const int64_t ranks = options.tp_size();
  if (!HasStages(options)) {
    return absl::StrCat("decode service ", options.decode_id(), ", ", ranks,
                        ranks == 1 ? " rank" : " ranks");
  }
  const int64_t stages = options.pp_size();
  const std::string name =
      IsDecode(options) ? absl::StrCat("decode service ", options.decode_id()) : options.chain_id();
  return absl::StrCat(name, config::IsColocated(options) ? ", colocated, " : ", ", stages,
                      stages == 1 ? " stage" : " stages",
                      ranks == 1 ? "" : absl::StrCat(" of ", ranks, " ranks"));
}

}  // namespace

absl::StatusOr<NodePlan> PlanNode(const config::ParsedOptions& options,
                                  const std::vector<std::string>& for_workers,
                                  const std::vector<std::string>& environment,
                                  const FindFreePort& free_port) {
  return Planner(options, for_workers, environment, free_port).Plan();
}

std::string NodeText(const v1::Options& options) {
  const std::vector<StageRank> places = config::PlacesHere(options);
  std::string text = absl::StrCat("node ", options.node_rank(), " of ", options.nnodes(), ": ",
                                  PlaceText(options, places.front()));
  if (places.size() > 1) absl::StrAppend(&text, " to ", PlaceText(options, places.back()));
  return absl::StrCat(text, " of ", ShapeText(options));
}

std::string NodeReadyText(const v1::Options& options, const NodePlan& plan, double seconds) {
  size_t width = std::string("process").size();
  for (const ChildSpec& child : plan.children) width = std::max(width, child.name.size());
  std::string text = absl::StrFormat("node ready: %s, after %.1f s", NodeText(options), seconds);
  if (plan.places.front() == StageRank{}) {
    absl::StrAppend(&text, IsDecode(options) ? ": the service stands" : ": the chain stands");
  }
  absl::StrAppend(&text, "\n\n");
  const std::string& host =
      options.advertise_host().empty() ? plan.probe_host : options.advertise_host();
  const int padded = static_cast<int>(width);
  absl::StrAppendFormat(&text, "  %-*s  stage  rank  metrics\n", padded, "process");
  for (size_t i = 0; i < plan.children.size(); ++i) {
    const std::string& name = plan.children[i].name;
    absl::StrAppendFormat(&text, "  %-*s  %5d  %4d  %s\n", padded, name, plan.places[i].stage,
                          plan.places[i].rank,
                          net::JoinHostPort(host, plan.metrics_ports.at(name)));
  }
  return text;
}

}  // namespace baton
