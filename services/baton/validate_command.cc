// `baton validate`: whether a cluster with these options would start on this machine, and what it
// would be, before any weight is loaded. The verdict comes first.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/config/mode.h"
#include "common/config/node_share.h"
#include "common/preflight/preflight.h"
#include "services/baton/chunk_report.h"
#include "services/baton/commands.h"
#include "services/baton/launch_text.h"

namespace baton {
namespace {

using v1::OptionSpec;

std::string Mib(int64_t bytes) {
  return absl::StrFormat("%.1f", static_cast<double>(bytes) / (1 << 20));
}

std::string What(const PreflightReport& report) {
  const v1::Options& values = report.values;
  const auto of_ranks = [](int64_t size) {
    return size == 1 ? "" : absl::StrCat(" of ", size, " ranks");
  };
  const auto of_stages = [](int64_t size) {
    return size == 1 ? "" : absl::StrCat(" of ", size, " stages");
  };
  const std::string ranks = of_ranks(values.tp_size());
  const bool colocated = config::IsColocated(values);
  switch (report.role) {
    case OptionSpec::PREFILL:
    case OptionSpec::COLOCATED:
      if (config::IsNode(values)) return NodeText(values);
      return absl::StrCat(ranks.empty() ? "" : absl::StrCat("rank ", values.tp_rank(), " of "),
                          "stage ", values.pp_rank(), " of a ", colocated ? "colocated " : "",
                          "chain of ", values.pp_size());
    case OptionSpec::DECODE:
      if (config::IsNode(values)) return NodeText(values);
      return absl::StrCat(
          ranks.empty() ? "" : absl::StrCat("rank ", values.tp_rank(), " of "),
          values.pp_size() == 1 ? "" : absl::StrCat("stage ", values.pp_rank(), " of "),
          "a decode service", of_stages(values.pp_size()), ranks);
    default: {
      const std::string chains =
          absl::StrCat(values.prefill_chains(), colocated ? " colocated" : "",
                       values.prefill_chains() == 1 ? " chain of " : " chains of ",
                       values.pp_size(), values.pp_size() == 1 ? " stage" : " stages", ranks);
      if (colocated) return absl::StrCat("a router and ", chains);
      return absl::StrCat("a router, ", chains, " and ", values.decodes(),
                          values.decodes() == 1 ? " decode" : " decodes",
                          of_stages(values.decode_pp_size()), of_ranks(values.decode_tp_size()));
    }
  }
}

void PrintVerdict(const PreflightReport& report, const std::vector<std::string>& notes) {
  int refusals = 0;
  int warnings = 0;
  for (const Finding& finding : report.findings) ++(finding.refuses() ? refusals : warnings);
  const std::string noun = refusals == 1 ? " problem" : " problems";
  std::string verdict = refusals == 0 ? "OK" : absl::StrCat("REFUSED, ", refusals, noun);
  if (warnings != 0) {
    absl::StrAppend(&verdict, ", ", warnings, warnings == 1 ? " warning" : " warnings");
  }
  std::printf("%s: %s\n", verdict.c_str(), What(report).c_str());
  for (const Finding& finding : report.findings) {
    std::printf("  %s  %s\n", finding.refuses() ? "refused" : "warning",
                FindingText(finding).c_str());
  }
  for (const std::string& note : notes) std::printf("  note     %s\n", note.c_str());
}

// A line for each GPU that workers of this host compute on.
void PrintGpus(const PreflightReport& report) {
  if (report.device_memory.empty()) return;
  std::printf("\n%-12s %7s %10s %10s %10s %10s %10s %10s  MiB\n", "GPU memory", "workers",
              "weights", "KV cache", "buffers", "CUDA", "together", "available");
  for (const DeviceMemory& device : report.device_memory) {
    const std::string available =
        device.available == 0 ? "unknown, see --device-memory"
                              : absl::StrFormat("%10s  by %s", Mib(device.available), device.limit);
    std::printf("%-12s %7lld %10s %10s %10s %10s %10s %s\n", device.device.c_str(),
                static_cast<long long>(device.workers), Mib(device.weights).c_str(),
                Mib(device.kv).c_str(), Mib(device.buffers).c_str(), Mib(device.runtime).c_str(),
                Mib(device.total()).c_str(), available.c_str());
  }
}

// Over all pools.
int64_t KvPerToken(const PreflightReport& report) {
  if (report.device_memory.empty()) return report.memory->kv_per_token();
  int64_t bytes = 0;
  for (const DeviceMemory& device : report.device_memory) bytes += device.kv_per_token;
  return bytes;
}

void PrintMemory(const PreflightReport& report) {
  if (!report.memory) return;
  const HostMemory& memory = *report.memory;
  std::printf("\n%-12s %6s %10s %10s %10s %10s %10s %10s  MiB\n", "memory", "count", "layers",
              "weights", "KV cache", "buffers", "process", "together");
  for (const ProcessMemory& process : memory.processes) {
    const std::string layers =
        process.layers.size() == 0
            ? "-"
            : absl::StrCat("[", process.layers.begin, ", ", process.layers.end, ")");
    std::printf("%-12s %6lld %10s %10s %10s %10s %10s %10s\n", process.name.c_str(),
                static_cast<long long>(process.count), layers.c_str(), Mib(process.weights).c_str(),
                Mib(process.kv).c_str(), Mib(process.buffers).c_str(), Mib(process.runtime).c_str(),
                Mib(process.together()).c_str());
  }
  std::printf("%-12s %71s\n", "this host", Mib(memory.total()).c_str());
  if (report.machine.available_bytes != 0) {
    std::printf("%-12s %71s  by %s\n", "available", Mib(report.machine.available_bytes).c_str(),
                report.machine.limit.c_str());
  }
  PrintGpus(report);
  std::printf("\nweights and activations in %s, KV cache in %s", ElementTypeName(memory.dtype),
              ElementTypeName(memory.kv_dtype));
  std::printf(
      "\nKV cache of each process: %lld tokens in %lld pages; %lld bytes a token over all\n",
      static_cast<long long>(memory.kv_tokens),
      static_cast<long long>(memory.kv_tokens / report.values.page_size()),
      static_cast<long long>(KvPerToken(report)));
  if (config::IsColocated(report.values)) {
    std::printf(
        "context %lld tokens; prompt and continuation of a request that fits: %lld tokens\n",
        static_cast<long long>(report.context_tokens),
        static_cast<long long>(std::min(memory.kv_tokens, report.context_tokens)));
    return;
  }
  std::printf("context %lld tokens; longest prompt that fits: %lld tokens\n",
              static_cast<long long>(report.context_tokens),
              static_cast<long long>(LongestPrompt(memory, report.context_tokens)));
}

// The options, and what follows for the one that only the model can tell.
config::ParsedOptions Effective(const config::ParsedOptions& options,
                                const PreflightReport& report) {
  config::ParsedOptions effective = options;
  if (!report.auto_chunks) return effective;
  const auto rule = ParseChunkRule(report.values.chunk_policy()).value_or(ChunkRule::kFixed);
  effective.values.set_chunked_prefill_size(report.values.chunked_prefill_size());
  effective.sources["chunked_prefill_size"] = {config::OptionSource::Kind::kDerived,
                                               std::string(report.auto_chunks->Of(rule).source)};
  return effective;
}

}  // namespace

int RunValidateCommand(const config::ParsedOptions& options) {
  const PreflightReport report = Preflight(options, MachineForChecks());
  PrintVerdict(report, options.notes);
  if (!report.chat_template.empty()) {
    std::printf("chat template: %s\n", report.chat_template.c_str());
  }
  PrintMemory(report);
  // Also of what is too large for this machine: it may be meant for others.
  if (report.memory) std::fputs(ChunkReportText(report).c_str(), stdout);
  std::printf("\n%s", config::EffectiveText(Effective(options, report)).c_str());
  return report.status().ok() ? kExitDone : kExitFailed;
}

}  // namespace baton
