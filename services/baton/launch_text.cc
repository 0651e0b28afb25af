#include "services/baton/launch_text.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/config/mode.h"
#include "common/config/node_share.h"
#include "common/net/host.h"

namespace baton {
namespace {

using config::HasStages;
using config::StageRank;

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
  const std::string name = config::IsDecode(options)
                               ? absl::StrCat("decode service ", options.decode_id())
                               : options.chain_id();
  return absl::StrCat(name, config::IsColocated(options) ? ", colocated, " : ", ", stages,
                      stages == 1 ? " stage" : " stages",
                      ranks == 1 ? "" : absl::StrCat(" of ", ranks, " ranks"));
}

using Row = std::vector<std::string>;

// `numbers`: the columns that stand at the right.
std::string Table(const std::vector<Row>& rows, const std::set<size_t>& numbers) {
  std::vector<size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) {
      const bool number = numbers.contains(i);
      const std::string padding(widths[i] - row[i].size(), ' ');
      absl::StrAppend(&line, " ", number ? padding : "", row[i], number ? "" : padding, " ");
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string MetricsAddress(const LaunchPlan& plan, const std::string& worker) {
  const auto port = plan.metrics_ports.find(worker);
  return port == plan.metrics_ports.end() ? ""
                                          : net::JoinHostPort(plan.advertise_host, port->second);
}

Row WorkerRow(const LaunchPlan& plan, const v1::WorkerInfo& worker) {
  const std::string& name = worker.instance().instance_id();
  const int64_t kv_tokens =
      int64_t{worker.page_count()} * worker.fingerprint().kv_layout().page_size();
  return {name,
          worker.decodes()                    ? "colocated"
          : worker.role() == v1::ROLE_PREFILL ? "prefill"
                                              : "decode",
          absl::StrCat(worker.layers().begin(), " to ", worker.layers().end() - 1),
          absl::StrCat(kv_tokens),
          worker.grpc_address(),
          MetricsAddress(plan, name)};
}

// Inside a JSON string inside single quotes of a shell.
std::string Quoted(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}, {"'", "'\\''"}});
}

}  // namespace

std::string NodeText(const v1::Options& options) {
  const std::vector<StageRank> places = config::PlacesHere(options);
  std::string text = absl::StrCat("node ", options.node_rank(), " of ", options.nnodes(), ": ",
                                  PlaceText(options, places.front()));
  if (places.size() > 1) absl::StrAppend(&text, " to ", PlaceText(options, places.back()));
  return absl::StrCat(text, " of ", ShapeText(options));
}

std::string NodeReadyText(const v1::Options& options, const LaunchPlan& plan, double seconds) {
  const char* stands = "";
  if (plan.places.front() == StageRank{}) {
    stands = config::IsDecode(options) ? ": the service stands" : ": the chain stands";
  }
  std::vector<Row> rows = {{"process", "stage", "rank", "metrics"}};
  for (size_t i = 0; i < plan.children.size(); ++i) {
    const std::string& name = plan.children[i].name;
    rows.push_back({name, absl::StrCat(plan.places[i].stage), absl::StrCat(plan.places[i].rank),
                    MetricsAddress(plan, name)});
  }
  return absl::StrCat(
      absl::StrFormat("node ready: %s, after %.1f s%s\n\n", NodeText(options), seconds, stands),
      Table(rows, {1, 2}));
}

std::string ClusterReadyText(const v1::Options& options, const LaunchPlan& plan,
                             const std::vector<v1::ListedWorker>& workers, double seconds) {
  const std::string http = net::JoinHostPort(plan.advertise_host, plan.router->http_port);
  const std::string grpc = net::JoinHostPort(plan.advertise_host, plan.router->grpc_port);
  const std::string& certificate = plan.router->certificate;
  const bool needs_key = !options.api_key().empty() || !options.api_key_file().empty();
  std::vector<Row> rows = {{"process", "role", "layers", "KV tokens", "grpc", "metrics"},
                           {kRouterName, "router", "-", "-", grpc, http}};
  for (const ChildSpec& child : plan.children) {
    for (const v1::ListedWorker& worker : workers) {
      if (worker.worker().instance().instance_id() == child.name) {
        rows.push_back(WorkerRow(plan, worker.worker()));
      }
    }
  }
  return absl::StrCat(
      absl::StrFormat("cluster ready: http=%s grpc=%s after %.1f s\n\n", http, grpc, seconds),
      Table(rows, {3}), "\n  curl -s ",
      certificate.empty() ? "http://" : absl::StrCat("--cacert ", certificate, " https://"), http,
      "/v1/completions", needs_key ? " -H \"Authorization: Bearer $BATON_API_KEY\"" : "",
      " -H 'Content-Type: application/json' \\\n    -d '{\"model\": \"",
      Quoted(options.served_model_name()),
      "\", \"prompt\": \"It is a truth\", \"max_tokens\": 32}'\n");
}

}  // namespace baton
