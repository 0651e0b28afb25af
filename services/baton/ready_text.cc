#include "services/baton/ready_text.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/net/host.h"

namespace baton {
namespace {

using Row = std::array<std::string, 6>;

Row RowOf(const UpPlan& plan, const v1::WorkerInfo& worker) {
  const std::string& name = worker.instance().instance_id();
  const auto port = plan.metrics_ports.find(name);
  const int64_t kv_tokens =
      int64_t{worker.page_count()} * worker.fingerprint().kv_layout().page_size();
  return {
      name,
      worker.role() == v1::ROLE_PREFILL ? "prefill" : "decode",
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
