#include "common/config/foreign_flags.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace baton::config {
namespace {

using Fate = ForeignFlag::Fate;
using Values = ForeignFlag::Values;

constexpr ForeignFlag Switch(const char* name, const char* meaning) {
  return {name, Fate::kTaken, Values::kNone, meaning, nullptr, nullptr};
}
constexpr ForeignFlag Value(const char* name, const char* meaning, const char* only = nullptr,
                            const char* beside = nullptr) {
  return {name, Fate::kTaken, Values::kOne, meaning, only, beside};
}
constexpr ForeignFlag List(const char* name, const char* meaning, const char* only = nullptr) {
  return {name, Fate::kTaken, Values::kList, meaning, only, nullptr};
}
constexpr ForeignFlag Means(const char* name, const char* option) {
  return {name, Fate::kMeans, Values::kNone, option, nullptr, nullptr};
}
constexpr ForeignFlag Refused(const char* name, const char* advice = nullptr) {
  return {name, Fate::kRefused, Values::kNone, advice, nullptr, nullptr};
}

constexpr char kMetrics[] = "metrics are always on, at GET /metrics";
constexpr char kDownloads[] = "Baton downloads nothing; give --model-path a directory";
constexpr char kConfigJson[] = "edit config.json in the model directory";
constexpr char kQuantized[] =
    "weights are read as config.json's \"quantization_config\" says, FP8 stays FP8, and nothing is "
    "quantised on loading; --dtype and --kv-cache-dtype say what else they become";
constexpr char kTextModels[] = "the models served here continue texts";
constexpr char kInMemory[] = "everything is in the memory of the host already";
constexpr char kSeed[] =
    "a request's own \"seed\" makes its text repeatable; without one it is drawn";
constexpr char kReplicas[] =
    "replicas are --prefill-chains of `baton serve` and `baton up`, or more workers at one router";
constexpr char kAttentionRanks[] =
    "attention is shared out by heads over the --tp-size ranks, which are as many either way";
constexpr char kExperts[] = "experts are dealt out to the --tp-size ranks";
constexpr char kMeeting[] =
    "nothing listens there: ranks meet through the routers (--router-address)";
constexpr char kWorkers[] =
    "workers register themselves (`baton worker --router-address HOST:PORT`); `baton up` starts "
    "--prefill-chains and --decodes";
constexpr char kUrls[] = "http://*|https://*|grpc://*";
constexpr char kTls[] =
    "the HTTP port speaks HTTPS with --ssl-certfile and --ssl-keyfile; for more than that put a "
    "proxy in front";
constexpr char kKernels[] = "the fastest kernels for this processor are taken";
constexpr char kGraphs[] = "graphs are for powers of two up to --cuda-graph-max-bs";
constexpr char kCompile[] = "there is nothing to compile";
constexpr char kGuided[] = "Baton has one of its own";
constexpr char kPeers[] = "workers hear the shapes of their peers from the router";
constexpr char kOnePolicy[] =
    "a chain and a decode service are chosen together: use --load-balance-policy";
constexpr char kNoThreshold[] =
    "--load-balance-policy cost weighs cached tokens against load without thresholds; those of "
    "cache_aware are fixed";
constexpr char kRequestLog[] = "requests are logged by --log-requests, all else by --log-level";

// In groups as in the servers' documentation; the first match counts.
constexpr ForeignFlag kRows[] = {
    // Model and tokenizer.
    Switch("trust-remote-code", "no code of a model is ever run"),
    Value("load-format", "weights are read from safetensors; `baton model make` writes random ones",
          "auto|safetensors"),
    Value("quantization", kQuantized,
          "none|fp8|compressed-tensors|fbgemm_fp8|modelopt|modelopt_fp8|w8a8_fp8"),
    Refused("quantization*", kQuantized),
    Refused("revision", kDownloads),
    Refused("tokenizer-revision", kDownloads),
    Refused("code-revision", kDownloads),
    Refused("download-dir", kDownloads),
    Refused("hf-token", kDownloads),
    Refused("hf-overrides", kConfigJson),
    Refused("json-model-override-args", kConfigJson),
    Refused("rope-scaling", kConfigJson),
    Refused("rope-theta", kConfigJson),
    Refused("skip-tokenizer-init"),
    Value("tokenizer-mode", "tokenizer.json is read by Baton's own tokenizer", "auto|hf"),
    Refused("tokenizer-pool-*"),
    Value("model-impl", "models are implemented here once", "auto"),
    Refused("model-loader-extra-config"),
    Refused("sampling-defaults", "use --generation-config: auto is \"model\", vllm is \"openai\""),
    Refused("is-embedding", kTextModels),
    Value("task", kTextModels, "auto|generate"),
    Value("runner", kTextModels, "auto|generate"),
    Value("convert", kTextModels, "auto|none"),
    // Memory and scheduling.
    Refused("max-total-num-tokens", "use --kv-cache-tokens"),
    Refused("num-gpu-blocks-override", "use --kv-cache-tokens (blocks times --page-size)"),
    Switch("enable-chunked-prefill", "prefill is always chunked, by --chunked-prefill-size"),
    Means("no-enable-chunked-prefill", "chunked-prefill-size=-1"),
    Means("enable-prefix-caching", "disable-radix-cache=false"),
    Means("no-enable-prefix-caching", "disable-radix-cache=true"),
    Switch("disable-chunked-prefix-cache", "there is no kernel of that kind to turn off"),
    Value("radix-eviction-policy", "what was unused the longest is given up first", "lru"),
    Switch("enable-cache-report", "usage always has cached_tokens"),
    Value("cpu-offload-gb", kInMemory, "0"),
    Value("swap-space", kInMemory),
    Refused("pipeline-window", "use --pp-async-batch-depth: plans beyond one for each stage"),
    Switch("enable-mixed-chunk", "plans of a colocated chain always mix prompts with decoding"),
    Means("disable-overlap-schedule", "overlap-schedule=off"),
    Means("async-scheduling", "overlap-schedule=on"),
    Means("no-async-scheduling", "overlap-schedule=off"),
    Refused("max-logprobs", "a request gets up to 20 alternatives"),
    Switch("enable-priority-scheduling", "a request's priority always counts"),
    Refused("schedule-low-priority-values-first", "a higher priority is always served sooner"),
    Refused("priority-scheduling*", "what runs does not give way to a higher priority"),
    // Parallelism and machines.
    Value("dp", kReplicas, "1", "enable-dp-attention"),
    Value("dp-size", kReplicas, "1", "enable-dp-attention"),
    Value("data-parallel-size", kReplicas, "1", "enable-dp-attention"),
    Refused("data-parallel-*", kReplicas),
    Switch("enable-dp-attention", kAttentionRanks),
    Switch("enable-dp-lm-head", kAttentionRanks),
    Value("ep", kExperts),
    Value("ep-size", kExperts),
    Value("expert-parallel-size", kExperts),
    Switch("enable-expert-parallel", kExperts),
    Switch("enable-ep-moe", kExperts),
    Switch("enable-deepep-moe", kExperts),
    Switch("enable-eplb", kExperts),
    Value("ep-*", kExperts),
    Value("moe-*", kExperts),
    Value("deepep-*", kExperts),
    Value("master-port", kMeeting),
    Value("nccl-port", kMeeting),
    Value("dist-timeout",
          "the nodes of a chain or a decode service wait for one another without limit"),
    Value("distributed-executor-backend", "every rank is a process", "mp"),
    Switch("disable-custom-all-reduce", "ranks sum over Gloo"),
    Switch("enable-p2p-check", "ranks sum over Gloo"),
    Value("load-balance-method", "use --load-balance-policy", "auto"),
    Refused("prefill-policy", kOnePolicy),
    Refused("decode-policy", kOnePolicy),
    Value("cache-threshold", kNoThreshold),
    Value("balance-abs-threshold", kNoThreshold),
    Value("balance-rel-threshold", kNoThreshold),
    Value("eviction-interval*", "what is predicted to be cached is bounded at every moment"),
    Value("max-tree-size", "what is predicted to be cached is bounded by the chains' KV caches"),
    Value("bucket-adjust-interval*", "length_buckets follows the lengths of recent prompts"),
    Switch("pd-disaggregation", "the router serves pairs and colocated chains alike"),
    Switch("mini-lb", "the router is always the same"),
    List("prefill", kWorkers, kUrls),
    List("decode", kWorkers, kUrls),
    List("worker-urls", kWorkers, kUrls),
    Refused("prefill-selector", "use --service-discovery-selector"),
    Refused("decode-selector", "use --service-discovery-selector"),
    Refused("retry-*", "a request that fails before its first token is sent once more by itself"),
    Value("worker-startup-*", "the router serves as soon as workers have registered"),
    Value("disaggregation-transfer-backend", "--kv-transport says what carries KV: UCX",
          "mooncake|nixl|mori|ascend"),
    Refused("kv-transfer-config", "use --disaggregation-mode and --kv-transport"),
    Value("disaggregation-ib-device",
          "UCX chooses the devices; its variable UCX_NET_DEVICES, such "
          "as mlx5_0:1, names them"),
    Value("disaggregation-bootstrap-port", "workers meet through the routers (--router-address)"),
    Value("disaggregation-decode-tp", kPeers),
    Value("disaggregation-decode-dp", kPeers),
    Value("disaggregation-prefill-pp", kPeers),
    Value("disaggregation-decode-extra-slots",
          "decode reserves --num-reserved-decode-tokens, and takes pages as a text grows"),
    Value("disaggregation-decode-polling-interval", "decode is told what arrives; it doesn't poll"),
    Refused("disaggregation-decode-*"),
    Value("optimistic-prefill-attempts", "prefill starts when decode has reserved", "0"),
    // Engine.
    Value("attention-backend", kKernels),
    Value("*-attention-backend", kKernels),
    Value("sampling-backend", kKernels),
    Value("triton-attention-*", kKernels),
    Switch("enable-flashinfer-*", kKernels),
    Switch("disable-flashinfer*", kKernels),
    Switch("use-v2-block-manager", "KV is always in pages"),
    Value("num-continuous-decode-steps", "decode runs step by step", "1"),
    Value("num-scheduler-steps", "decode runs step by step", "1"),
    List("cuda-graph-bs", kGraphs),
    List("cuda-graph-sizes", kGraphs),
    Switch("disable-cuda-graph-padding", kGraphs),
    Switch("enable-profile-cuda-graph", kGraphs),
    Value("max-seq-len-to-capture", kGraphs),
    Switch("enable-torch-compile", kCompile),
    Value("torch-compile-max-bs", kCompile),
    Value("compilation-config", kCompile),
    Switch("enable-deterministic-inference", "results never depend on what else is in the batch"),
    Value("random-seed", kSeed),
    Value("seed", kSeed),
    Refused("numa-node", "start the process under numactl"),
    Refused("numactl", "start the process under numactl"),
    // Server.
    Refused("request-timeout-secs", "use --request-timeout-ms"),
    Refused("max-concurrent-requests", "use --max-concurrent-streams"),
    Refused("max-payload-size", "use --max-request-bytes"),
    Refused("cors-allowed-origins", "use --cors-allow-origins"),
    Refused("uds"),
    Refused("root-path"),
    Refused("fastapi-root-path"),
    Switch("grpc-mode", "gRPC is always there, on --grpc-port"),
    Switch("headless", "a worker has no API for clients, the router has"),
    Switch("enable-ssl-refresh", "--ssl-certfile is read again when it changes"),
    Refused("ssl-*", kTls),
    Refused("admin-api-key", "use --api-key"),
    Switch("enable-auto-tool-choice",
           "tools may be called wherever --tool-call-parser has a parser"),
    Value("grammar-backend", kGuided),
    Value("guided-decoding-backend", kGuided),
    Refused("completion-template"),
    Value("chat-template-content-format", "contents are texts or lists of text parts", "auto"),
    Value("stream-interval", "every token is streamed as it comes", "1"),
    Switch("skip-server-warmup", "there is no warm-up"),
    Refused("warmups", "there is no warm-up"),
    Value("watchdog-timeout", "/health fails when a loop or a step stands still"),
    Value("soft-watchdog-timeout", "/health fails when a loop or a step stands still"),
    // Logs and metrics.
    Switch("enable-metrics*", kMetrics),
    Refused("prometheus-port", "use --metrics-port"),
    Refused("prometheus-host", "use --host"),
    Means("disable-log-requests", "log-requests=off"),
    Means("no-enable-log-requests", "log-requests=off"),
    Means("enable-log-requests", "log-requests=on"),
    Value("log-requests-level", "the log has no texts, whatever the level"),
    Refused("disable-log-stats", "use --log-level"),
    Value("log-level-http", kRequestLog),
    Value("uvicorn-log-level", kRequestLog),
    Switch("disable-uvicorn-access-log", kRequestLog),
    Value("decode-log-interval", "rates are logged every ten seconds of traffic"),
    Refused("collect-detailed-traces"),
    // Features that Baton has not.
    Refused("speculative*"),
    Refused("enable-lora*"),
    Refused("lora-*"),
    Refused("max-lora*"),
    Refused("*-mm-*"),
    Refused("enable-multimodal"),
    Refused("limit-mm-per-prompt"),
    Refused("hicache-*"),
    Refused("enable-hierarchical-cache"),
    Refused("enable-lmcache"),
    Refused("mamba-*"),
};

struct Pair {
  std::string_view option;
  std::string_view text;
};

constexpr char kNodes[] =
    "it is for `baton worker`, which runs one node's share of a chain or a decode service";

// Options that another process takes.
constexpr Pair kElsewhere[] = {
    {"port",
     "it is the router's, where clients come; a worker answers probes on --metrics-port and its "
     "peers on --grpc-port"},
    {"max_running_requests",
     "it bounds what a decode service or a colocated chain runs; a prefill chain has "
     "--max-prefill-requests, the router --max-concurrent-streams"},
    {"max_prefill_requests",
     "it bounds what a prefill chain reads; a colocated chain and a decode service have "
     "--max-running-requests"},
    {"pp_max_micro_batch_size",
     "it bounds the plans of colocated chains; a prefill chain has --max-prefill-requests"},
    {"schedule_conservativeness",
     "it is for colocated chains; a decode service has --num-reserved-decode-tokens"},
    {"nnodes", kNodes},
    {"node_rank", kNodes},
    {"dist_init_addr", kNodes},
    {"disaggregation_mode", "a worker has one; the router serves workers of all"},
    {"api_key", "clients show it to the router"},
};

struct Synonym {
  std::string_view option;
  std::string_view text;
  std::string_view own;
};

constexpr Synonym kSynonyms[] = {
    {"dtype", "half", "float16"},           {"dtype", "float", "float32"},
    {"kv_cache_dtype", "bf16", "bfloat16"}, {"log_level", "warn", "warning"},
    {"log_level", "critical", "error"},
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

const ForeignFlag* FindForeignFlag(const std::string& flag) {
  const auto* const row = std::find_if(std::begin(kRows), std::end(kRows), [&](const auto& known) {
    return Matches(known.name, flag);
  });
  return row == std::end(kRows) ? nullptr : row;
}

bool TakesValue(const ForeignFlag& flag, const std::string& value,
                const std::vector<std::string>& args) {
  if (flag.only == nullptr) return true;
  for (const auto& taken : absl::StrSplit(flag.only, '|')) {
    if (Matches(std::string(taken), absl::AsciiStrToLower(value))) return true;
  }
  if (flag.beside == nullptr) return false;
  return std::find(args.begin(), args.end(), absl::StrCat("--", flag.beside)) != args.end();
}

std::string ForeignFlagAdvice(const std::string& flag) {
  const ForeignFlag* row = FindForeignFlag(flag);
  if (row == nullptr) return "";
  if (row->text == nullptr) return "Baton has nothing like it";
  if (row->fate == Fate::kMeans) return absl::StrCat("use --", row->text);
  return row->text;
}

std::string ElsewhereText(const std::string& option_name) {
  for (const Pair& row : kElsewhere) {
    if (row.option == option_name) return std::string(row.text);
  }
  return "";
}

std::string OwnValue(const std::string& option_name, const std::string& text) {
  for (const Synonym& row : kSynonyms) {
    if (row.option == option_name && row.text == text) return std::string(row.own);
  }
  return text;
}

bool IsForeignVariable(const std::string& variable) {
  return absl::StartsWith(variable, "SGLANG_") || absl::StartsWith(variable, "SGL_") ||
         absl::StartsWith(variable, "VLLM_");
}

const std::vector<ForeignFlag>& ForeignFlags() {
  static const auto* const rows = new std::vector<ForeignFlag>(std::begin(kRows), std::end(kRows));
  return *rows;
}

}  // namespace baton::config
