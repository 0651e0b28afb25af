#include "services/baton/up_plan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "common/config/device_deal.h"
#include "common/config/mode.h"
#include "common/net/host.h"

namespace baton {
namespace {

using config::Role;
using v1::OptionSpec;

class Planner {
 public:
  Planner(const config::ParsedOptions& options, const std::vector<std::string>& for_workers,
          const std::vector<std::string>& environment, const FindFreePort& free_port)
      : options_(options),
        for_workers_(for_workers),
        environment_(environment),
        ports_(free_port) {}

  absl::StatusOr<UpPlan> Plan() {
    const v1::Options& values = options_.values;
    BATON_RETURN_IF_ERROR(ChooseHosts());
    plan_.certificate = values.ssl_certfile();
    // Preflight has compared them with the GPUs that are here.
    BATON_ASSIGN_OR_RETURN(devices_, config::DealDevices(values, OptionSpec::UP, {}));
    BATON_ASSIGN_OR_RETURN(plan_.http_port, ChoosePort("port", values.port()));
    BATON_ASSIGN_OR_RETURN(plan_.grpc_port, ChoosePort("grpc_port", values.grpc_port()));
    BATON_ASSIGN_OR_RETURN(plan_.cluster_port, ports_.Choose(cluster_listen_host_, "cluster_port",
                                                             values.cluster_port()));
    AddRouter();
    for (int64_t chain = 0; chain < values.prefill_chains(); ++chain) {
      plan_.groups.push_back(
          {absl::StrCat("chain-", chain), values.tp_size() > 1 ? "ranks" : "stages", {}});
      for (int64_t stage = 0; stage < values.pp_size(); ++stage) {
        BATON_RETURN_IF_ERROR(AddStage(chain, stage));
      }
    }
    if (!config::IsColocated(values)) BATON_RETURN_IF_ERROR(AddDecodes());
    plan_.ports = ports_.chosen();
    return std::move(plan_);
  }

 private:
  absl::Status AddDecodes() {
    const v1::Options& values = options_.values;
    const char* const unit = values.decode_tp_size() > 1   ? "ranks"
                             : values.decode_pp_size() > 1 ? "stages"
                                                           : "services";
    plan_.groups.push_back({"decode", unit, {}});
    for (int64_t decode = 0; decode < values.decodes(); ++decode) {
      for (int64_t stage = 0; stage < values.decode_pp_size(); ++stage) {
        BATON_RETURN_IF_ERROR(AddDecodeStage(decode, stage));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ChooseHosts() {
    const auto listen = net::ListenAddress(options_.values.host());
    if (!listen.ok()) return InvalidField("host", std::string(listen.status().message()));
    plan_.listen_host = *listen;
    plan_.local_host = net::ReachableHere(*listen);
    plan_.cluster_host = plan_.local_host;
    cluster_listen_host_ = *listen;
    if (!options_.values.cluster_host().empty()) {
      const auto cluster = net::ListenAddress(options_.values.cluster_host());
      if (!cluster.ok()) {
        return InvalidField("cluster_host", std::string(cluster.status().message()));
      }
      plan_.cluster_host = net::ReachableHere(*cluster);
      cluster_listen_host_ = *cluster;
    }
    plan_.advertise_host = options_.values.advertise_host();
    if (plan_.advertise_host.empty()) {
      plan_.advertise_host =
          net::IsUnspecified(*listen) ? net::DefaultRouteSource(*listen) : *listen;
    }
    return absl::OkStatus();
  }

  // The children must know each other's ports before they start.
  absl::StatusOr<int> ChoosePort(const char* option, int64_t wanted) {
    return ports_.Choose(plan_.listen_host, option, wanted);
  }

  ChildSpec NewChild(const std::string& name, const std::string& command, Role role) const {
    return InheritingChild(options_, name, command, role, environment_);
  }

  // What is added here comes after the parent's own: of a flag given twice the last one counts.
  void AddRouter() {
    ChildSpec spec = NewChild("router", "router", OptionSpec::ROUTER);
    AddOption(spec.arguments, "port", absl::StrCat(plan_.http_port));
    AddOption(spec.arguments, "grpc-port", absl::StrCat(plan_.grpc_port));
    AddOption(spec.arguments, "cluster-port", absl::StrCat(plan_.cluster_port));
    plan_.children.push_back(std::move(spec));
  }

  // A process for each of its ranks.
  absl::Status AddStage(int64_t chain, int64_t stage) {
    const int64_t ranks = options_.values.tp_size();
    const bool colocated = config::IsColocated(options_.values);
    const Role role = colocated ? OptionSpec::COLOCATED : OptionSpec::PREFILL;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::string name = absl::StrCat(config::RoleName(role), "-", chain, "-", stage);
      std::vector<std::string> own;
      AddOption(own, "chain-id", absl::StrCat("chain-", chain));
      AddOption(own, "pp-rank", absl::StrCat(stage));
      if (ranks > 1) {
        absl::StrAppend(&name, "-", rank);
        AddOption(own, "tp-rank", absl::StrCat(rank));
      }
      BATON_RETURN_IF_ERROR(AddWorker(role, name, std::move(own)));
    }
    return absl::OkStatus();
  }

  absl::Status AddDecodeStage(int64_t decode, int64_t stage) {
    const v1::Options& values = options_.values;
    const int64_t stages = values.decode_pp_size();
    const int64_t ranks = values.decode_tp_size();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::string name = absl::StrCat("decode-", decode);
      std::vector<std::string> own;
      // --pp-size, its partition and --tp-size are the chains'.
      if (stages > 1 || values.pp_size() > 1) AddOption(own, "pp-size", absl::StrCat(stages));
      if (!values.pp_layer_partition().empty()) AddOption(own, "pp-layer-partition", "");
      if (ranks > 1 || values.tp_size() > 1) AddOption(own, "tp-size", absl::StrCat(ranks));
      if (stages * ranks > 1) AddOption(own, "decode-id", absl::StrCat(decode));
      if (stages > 1) {
        absl::StrAppend(&name, "-", stage);
        AddOption(own, "pp-rank", absl::StrCat(stage));
      }
      if (ranks > 1) {
        absl::StrAppend(&name, "-", rank);
        AddOption(own, "tp-rank", absl::StrCat(rank));
      }
      BATON_RETURN_IF_ERROR(AddWorker(OptionSpec::DECODE, name, std::move(own)));
    }
    return absl::OkStatus();
  }

  absl::Status AddWorker(Role role, const std::string& name, std::vector<std::string> own) {
    const v1::Options& values = options_.values;
    const int64_t first = values.metrics_port();
    const auto workers = static_cast<int64_t>(plan_.metrics_ports.size());
    BATON_ASSIGN_OR_RETURN(const int metrics_port,
                           ChoosePort("metrics_port", first == 0 ? 0 : first + workers));
    plan_.metrics_ports[name] = metrics_port;
    plan_.groups.back().names.push_back(name);
    ChildSpec spec = NewChild(name, "worker", role);
    AddOption(spec.arguments, "disaggregation-mode",
              role == OptionSpec::COLOCATED ? "null" : config::RoleName(role));
    AddOption(spec.arguments, "router-address",
              net::JoinHostPort(plan_.cluster_host, plan_.cluster_port));
    AddOption(spec.arguments, "advertise-host", plan_.advertise_host);
    AddOption(spec.arguments, "instance-id", name);
    AddOption(spec.arguments, "grpc-port", "0");
    AddOption(spec.arguments, "metrics-port", absl::StrCat(metrics_port));
    if (values.device() == "cuda") {
      AddOption(spec.arguments, "device", devices_[static_cast<size_t>(workers)]);
    }
    for (std::string& argument : own) spec.arguments.push_back(std::move(argument));
    spec.arguments.insert(spec.arguments.end(), for_workers_.begin(), for_workers_.end());
    plan_.children.push_back(std::move(spec));
    return absl::OkStatus();
  }

  const config::ParsedOptions& options_;
  const std::vector<std::string>& for_workers_;
  const std::vector<std::string>& environment_;
  PortPlan ports_;
  std::string cluster_listen_host_;
  std::vector<std::string> devices_;  // One for each worker.
  UpPlan plan_;
};

}  // namespace

absl::StatusOr<UpPlan> PlanUp(const config::ParsedOptions& options,
                              const std::vector<std::string>& for_workers,
                              const std::vector<std::string>& environment,
                              const FindFreePort& free_port) {
  return Planner(options, for_workers, environment, free_port).Plan();
}

namespace {

using Row = std::array<std::string, 6>;

Row RowOf(const UpPlan& plan, const v1::WorkerInfo& worker) {
  const std::string& name = worker.instance().instance_id();
  const auto port = plan.metrics_ports.find(name);
  const int64_t kv_tokens =
      int64_t{worker.page_count()} * worker.fingerprint().kv_layout().page_size();
  return {
      name,
      worker.decodes()                    ? "colocated"
      : worker.role() == v1::ROLE_PREFILL ? "prefill"
                                          : "decode",
      absl::StrCat(worker.layers().begin(), " to ", worker.layers().end() - 1),
      absl::StrCat(kv_tokens),
      worker.grpc_address(),
      port == plan.metrics_ports.end() ? "" : net::JoinHostPort(plan.advertise_host, port->second)};
}

std::string Table(const std::vector<Row>& rows) {
  std::array<size_t, 6> widths{};
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) {
      const bool number = i == 3;
      const std::string padding(widths[i] - row[i].size(), ' ');
      absl::StrAppend(&line, " ", number ? padding : "", row[i], number ? "" : padding, " ");
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

// Inside a JSON string inside single quotes of a shell.
std::string Quoted(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}, {"'", "'\\''"}});
}

}  // namespace

std::string ReadyText(const UpPlan& plan, const std::vector<v1::ListedWorker>& workers,
                      const std::string& model_name, bool needs_key, double seconds) {
  const std::string http = net::JoinHostPort(plan.advertise_host, plan.http_port);
  const std::string grpc = net::JoinHostPort(plan.advertise_host, plan.grpc_port);
  std::vector<Row> rows = {{"process", "role", "layers", "KV tokens", "grpc", "metrics"},
                           {"router", "router", "-", "-", grpc, http}};
  for (const ChildSpec& child : plan.children) {
    for (const v1::ListedWorker& worker : workers) {
      if (worker.worker().instance().instance_id() == child.name) {
        rows.push_back(RowOf(plan, worker.worker()));
      }
    }
  }
  return absl::StrCat(
      absl::StrFormat("cluster ready: http=%s grpc=%s after %.1f s\n\n", http, grpc, seconds),
      Table(rows), "\n  curl -s ",
      plan.certificate.empty() ? "http://"
                               : absl::StrCat("--cacert ", plan.certificate, " https://"),
      http, "/v1/completions", needs_key ? " -H \"Authorization: Bearer $BATON_API_KEY\"" : "",
      " -H 'Content-Type: application/json' \\\n    -d '{\"model\": \"", Quoted(model_name),
      "\", \"prompt\": \"It is a truth\", \"max_tokens\": 32}'\n\n");
}

}  // namespace baton
