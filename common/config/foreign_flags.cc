#include "common/config/foreign_flags.h"

#include <string_view>

namespace baton::config {
namespace {

struct Row {
  const char* name;    // A last '*' stands for anything.
  const char* advice;  // What to do instead; nullptr: nothing does that here.
};

constexpr char kMetrics[] = "leave it out: metrics are always on, at GET /metrics";
constexpr char kDownloads[] = "Baton downloads nothing; give --model-path a directory";
constexpr char kQuantized[] =
    "Baton reads F32, BF16 and F16 weights; --dtype and --kv-cache-dtype say what they become";
constexpr char kHosts[] =
    "start each node's share of a chain with `baton worker --nnodes N --node-rank R "
    "--dist-init-addr HOST:PORT --router-address HOST:PORT`";
constexpr char kSeed[] = "sampling is seeded by each request's \"seed\"";
constexpr char kReplicas[] =
    "--prefill-chains and --decodes of `baton up`, or more workers at one router";
constexpr char kWorkers[] =
    "workers register themselves (`baton worker --router-address HOST:PORT`); `baton up` starts "
    "--prefill-chains and --decodes";
constexpr char kTls[] =
    "the HTTP port speaks HTTPS with --ssl-certfile and --ssl-keyfile; for more than that put a "
    "proxy in front";
constexpr char kDeterministic[] = "leave it out: results never depend on what else is in the batch";

// In groups as in the servers' documentation; the first match counts.
constexpr Row kRows[] = {
    // Model and tokenizer.
    {"tokenizer", "use --tokenizer-path"},
    {"max-model-len", "use --context-length"},
    {"max-total-num-tokens", "use --kv-cache-tokens"},
    {"load-format", "weights are read from safetensors; `baton model make` writes random ones"},
    {"quantization*", kQuantized},
    {"revision", kDownloads},
    {"tokenizer-revision", kDownloads},
    {"code-revision", kDownloads},
    {"download-dir", kDownloads},
    {"hf-token", kDownloads},
    {"hf-chat-template-name", "use --chat-template"},
    {"trust-remote-code", "leave it out: no code of a model is ever run"},
    {"hf-overrides", "edit config.json in the model directory"},
    {"json-model-override-args", "edit config.json in the model directory"},
    {"rope-scaling", "edit config.json in the model directory"},
    {"rope-theta", "edit config.json in the model directory"},
    {"skip-tokenizer-init", nullptr},
    {"tokenizer-mode", nullptr},
    {"tokenizer-pool-*", nullptr},
    {"model-impl", nullptr},
    {"model-loader-extra-config", nullptr},
    {"generation-config",
     "generation_config.json gives the ids that end a text; sampling defaults "
     "are OpenAI's"},
    {"sampling-defaults", "sampling defaults are OpenAI's"},
    {"is-embedding", nullptr},
    {"task", nullptr},
    {"runner", nullptr},
    // Memory and scheduling.
    {"gpu-memory-utilization", "use --mem-fraction-static"},
    {"block-size", "use --page-size"},
    {"num-gpu-blocks-override", "use --kv-cache-tokens (blocks times --page-size)"},
    {"max-num-seqs", "use --max-running-requests"},
    {"max-num-batched-tokens", "use --chunked-prefill-size"},
    {"enable-chunked-prefill", "prefill is chunked by --chunked-prefill-size; -1 turns that off"},
    {"no-enable-chunked-prefill", "use --chunked-prefill-size=-1"},
    {"pp-max-micro-batch-size", "use --chunked-prefill-size and --max-prefill-requests"},
    {"pp-async-batch-depth", "use --pipeline-window"},
    {"num-reserved-decode-tokens", "decode reserves a request's whole continuation"},
    {"scheduling-policy", "use --schedule-policy=fair, or fcfs"},
    {"schedule-conservativeness", "decode reserves before it admits and retracts nothing"},
    {"enable-prefix-caching", "there is no prefix cache yet"},
    {"no-enable-prefix-caching", "use --disable-radix-cache, or leave it out"},
    {"radix-eviction-policy", "there is no prefix cache yet"},
    {"enable-cache-report", "there is no prefix cache yet"},
    {"cpu-offload-gb", "everything is in the memory of the host already"},
    {"swap-space", "everything is in the memory of the host already"},
    {"enable-mixed-chunk", "prefill and decode run in different processes"},
    {"max-logprobs", nullptr},
    {"priority-scheduling*", nullptr},
    {"enable-priority-scheduling", nullptr},
    // Parallelism and machines.
    {"dp", kReplicas},
    {"dp-size", kReplicas},
    {"data-parallel-*", kReplicas},
    {"ep", nullptr},
    {"ep-size", nullptr},
    {"expert-parallel-size", nullptr},
    {"enable-expert-parallel", nullptr},
    {"enable-dp-attention", nullptr},
    {"nccl-init-addr", kHosts},
    {"master-addr", kHosts},
    {"master-port", kHosts},
    {"nccl-port", "use --grpc-port"},
    {"distributed-executor-backend", kHosts},
    {"load-balance-method", "use --load-balance-policy"},
    {"policy", "use --load-balance-policy"},
    {"prefill-policy", "use --load-balance-policy"},
    {"decode-policy", "use --load-balance-policy"},
    {"pd-disaggregation", "leave it out: prefill and decode are always apart"},
    {"prefill", kWorkers},
    {"decode", kWorkers},
    {"worker-urls", kWorkers},
    {"disaggregation-transfer-backend", "use --kv-transport"},
    {"kv-transfer-config", "use --disaggregation-mode and --kv-transport"},
    {"disaggregation-ib-device", "set UCX_NET_DEVICES"},
    {"disaggregation-bootstrap-port", "use --grpc-port; workers meet through --router-address"},
    {"disaggregation-decode-*", nullptr},
    // Engine.
    {"attention-backend", "the fastest kernels for this processor are taken; see --linear-backend"},
    {"*-attention-backend", "the fastest kernels for this processor are taken"},
    {"sampling-backend", "the fastest kernels for this processor are taken"},
    {"base-gpu-id", "use --device cuda:N"},
    {"gpu-id-step", "use --device cuda:N for each worker"},
    {"enforce-eager", "leave it out: there are no graphs to capture"},
    {"cuda-graph*", "there are no graphs to capture"},
    {"disable-cuda-graph*", "leave it out: there are no graphs to capture"},
    {"enable-torch-compile", "there is nothing to compile"},
    {"compilation-config", "there is nothing to compile"},
    {"enable-deterministic-inference", kDeterministic},
    {"random-seed", kSeed},
    {"seed", kSeed},
    {"numa-node", "start the process under numactl"},
    {"numactl", "start the process under numactl"},
    // Server.
    {"uds", nullptr},
    {"root-path", nullptr},
    {"fastapi-root-path", nullptr},
    {"grpc-mode", "leave it out: gRPC is always there, on --grpc-port"},
    {"ssl-*", kTls},
    {"enable-ssl-refresh", "leave it out: --ssl-certfile is read again when it changes"},
    {"admin-api-key", "use --api-key"},
    {"tool-call-parser", nullptr},
    {"enable-auto-tool-choice", nullptr},
    {"reasoning-parser", nullptr},
    {"grammar-backend", nullptr},
    {"guided-decoding-backend", nullptr},
    {"completion-template", nullptr},
    {"stream-interval", "every token is streamed as it comes"},
    {"skip-server-warmup", "leave it out: there is no warm-up"},
    {"warmups", "there is no warm-up"},
    {"watchdog-timeout", "/health fails when a loop or a step stands still"},
    // Logs and metrics.
    {"enable-metrics*", kMetrics},
    {"prometheus-port", "use --metrics-port"},
    {"prometheus-host", "use --host"},
    {"disable-log-stats", "use --log-level"},
    {"log-level-http", "use --log-level"},
    {"uvicorn-log-level", "use --log-level"},
    {"decode-log-interval", "use --log-level"},
    {"collect-detailed-traces", nullptr},
    // Features that Baton has not.
    {"speculative*", nullptr},
    {"enable-lora*", nullptr},
    {"lora-*", nullptr},
    {"max-lora*", nullptr},
    {"*-mm-*", nullptr},
    {"enable-multimodal", nullptr},
    {"limit-mm-per-prompt", nullptr},
    {"moe-*", nullptr},
    {"hicache-*", nullptr},
    {"enable-hierarchical-cache", nullptr},
    {"enable-lmcache", nullptr},
    {"mamba-*", nullptr},
};

bool Matches(std::string_view pattern, std::string_view flag) {
  if (pattern == flag) return true;
  const bool open_start = pattern.front() == '*';
  const bool open_end = pattern.back() == '*';
  if (open_start) pattern.remove_prefix(1);
  if (open_end) pattern.remove_suffix(1);
  if (open_start && open_end) return flag.find(pattern) != flag.npos;
  if (open_end) return flag.starts_with(pattern);
  return open_start && flag.ends_with(pattern);
}

}  // namespace

std::string ForeignFlagAdvice(const std::string& flag) {
  for (const Row& row : kRows) {
    if (!Matches(row.name, flag)) continue;
    if (row.advice == nullptr) return "Baton has nothing like it";
    return row.advice;
  }
  return "";
}

std::vector<std::string> ForeignFlagNames() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  return names;
}

}  // namespace baton::config
