// Rules that span options, and features that are declared but come later.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/layer_split.h"
#include "common/config/mode.h"
#include "common/config/mode_rules.h"
#include "common/config/node_share.h"
#include "common/config/options.h"
#include "common/config/router_list.h"
#include "common/http/cors.h"
#include "common/net/otlp_endpoint.h"

namespace baton::config {
namespace {

absl::Status CheckModel(Command command, const v1::Options& options) {
  if (!options.model_path().empty()) return absl::OkStatus();
  const char* const way = command == Command::kServe ? "baton serve DIR" : "--model-path DIR";
  return InvalidField("model_path",
                      absl::StrCat("required: the directory of the model (", way, ")"));
}

absl::Status CheckPartition(const std::string& partition, int64_t stages, bool decode,
                            const SplitOptions& options) {
  if (partition.empty()) return absl::OkStatus();
  if (decode && partition == kMeasuredPartition) {
    return InvalidField(options.partition,
                        "got auto, which shares layers out by what chunks of prompts take; of a "
                        "decode service name the layers of each stage");
  }
  BATON_ASSIGN_OR_RETURN(const auto shares, ParsePartition(partition, options));
  if (static_cast<int64_t>(shares.size()) == stages) return absl::OkStatus();
  return InvalidField(options.partition,
                      absl::StrCat("'", partition, "' has ", shares.size(), " stages; expected ",
                                   options.stages, " = ", stages));
}

absl::Status CheckChain(const v1::Options& options) {
  if (options.pp_rank() >= options.pp_size()) {
    return InvalidField("pp_rank",
                        absl::StrCat("got ", options.pp_rank(),
                                     "; expected less than pp_size = ", options.pp_size()));
  }
  BATON_RETURN_IF_ERROR(CheckPartition(options.decode_pp_layer_partition(),
                                       options.decode_pp_size(), /*decode=*/true, kDecodeSplit));
  if (options.pp_layer_partition() == kMeasuredPartition && !IsDecode(options)) {
    if (!options.chunk_profile().empty() || !options.timed_profile().empty()) {
      return absl::OkStatus();
    }
    return InvalidField("pp_layer_partition",
                        "auto shares layers out by measured times, and nothing says them; name "
                        "--chunk-profile, which stage 0 of a chain with an even split writes");
  }
  return CheckPartition(options.pp_layer_partition(), options.pp_size(), IsDecode(options), {});
}

absl::Status CheckRanks(const v1::Options& options) {
  if (options.tp_rank() >= options.tp_size()) {
    return InvalidField("tp_rank",
                        absl::StrCat("got ", options.tp_rank(),
                                     "; expected less than tp_size = ", options.tp_size()));
  }
  return absl::OkStatus();
}

absl::Status CheckPages(const v1::Options& options) {
  const int64_t cap = options.max_prefill_tokens();
  if (cap != 0 && cap < options.page_size()) {
    return InvalidField("max_prefill_tokens",
                        absl::StrCat("got ", cap, "; expected at least page_size = ",
                                     options.page_size(), ", or 0 for no cap"));
  }
  const int64_t chunk = options.chunked_prefill_size();
  const bool derived = chunk == -1 || chunk == 0;  // 0: auto, which preflight settles.
  if (!derived && (chunk < 1 || chunk % options.page_size() != 0)) {
    return InvalidField("chunked_prefill_size",
                        absl::StrCat("got ", chunk, "; expected a multiple of page_size = ",
                                     options.page_size(), ", or -1 for whole prompts"));
  }
  return absl::OkStatus();
}

absl::Status CheckTypes(const v1::Options& options) {
  if (options.dtype() != "float16") return absl::OkStatus();
  return InvalidField("dtype",
                      "got float16, in which Baton does not compute; float32 (auto takes it) holds "
                      "a float16 checkpoint exactly, bfloat16 rounds it");
}

absl::Status CheckDevice(const v1::Options& options) {
  const std::string& device = options.device();
  if (device == "cpu") return absl::OkStatus();
  const bool numbered = device.size() > 5 && device.rfind("cuda:", 0) == 0 &&
                        device.find_first_not_of("0123456789", 5) == std::string::npos &&
                        device.size() <= 8;
  if (device != "cuda" && !numbered) {
    return InvalidField("device", absl::StrCat("got '", device, "'; expected cpu, cuda or cuda:N"));
  }
  if (numbered && (options.base_gpu_id() != 0 || options.gpu_id_step() != 1)) {
    return InvalidField(options.base_gpu_id() != 0 ? "base_gpu_id" : "gpu_id_step",
                        absl::StrCat("is for --device cuda, which deals GPUs out; ", device,
                                     " is one GPU for all"));
  }
  if (options.executor() == "torch") return absl::OkStatus();
  return InvalidField("device",
                      absl::StrCat("got '", device, "', and --executor ", options.executor(),
                                   " computes on the CPU; --executor torch does on GPUs"));
}

absl::Status CheckTimed(const v1::Options& options) {
  if (options.executor() != "timed" || !options.timed_profile().empty()) return absl::OkStatus();
  return InvalidField("timed_profile", "is empty, and --executor timed plays what it says");
}

absl::Status CheckLeases(const v1::Options& options) {
  const int64_t heartbeat_ms = options.heartbeat_interval_ms();
  if (options.lease_ms() < 2 * heartbeat_ms) {
    return InvalidField("lease_ms",
                        absl::StrCat("got ", options.lease_ms(),
                                     " ms; expected at least twice heartbeat_interval_ms = ",
                                     heartbeat_ms, ", so that one late heartbeat is no death"));
  }
  return absl::OkStatus();
}

absl::Status CheckDiscovery(const v1::Options& options) {
  if (options.service_discovery() != "kubernetes") return absl::OkStatus();
  if (!options.service_discovery_selector().empty()) return absl::OkStatus();
  return InvalidField(
      "service_discovery_selector",
      "required by service_discovery = kubernetes: the labels of the workers' pods");
}

absl::Status CheckHttp(const v1::Options& options) {
  if (options.max_http_body_bytes_in_flight() < options.max_request_bytes()) {
    return InvalidField(
        "max_http_body_bytes_in_flight",
        absl::StrCat("got ", options.max_http_body_bytes_in_flight(),
                     "; expected at least max_request_bytes = ", options.max_request_bytes()));
  }
  if (options.ssl_certfile().empty() != options.ssl_keyfile().empty()) {
    const bool certificate = options.ssl_certfile().empty();
    return InvalidField(
        certificate ? "ssl_certfile" : "ssl_keyfile",
        absl::StrCat("required beside ", certificate ? "ssl_keyfile" : "ssl_certfile",
                     ": HTTPS takes a certificate and its key"));
  }
  const auto origins = ParseCorsPolicy(options.cors_allow_origins());
  if (origins.ok()) return absl::OkStatus();
  return InvalidField("cors_allow_origins", std::string(origins.status().message()));
}

absl::Status CheckTracing(const v1::Options& options) {
  if (options.otlp_traces_endpoint().empty()) return absl::OkStatus();
  const auto endpoint = net::ParseOtlpEndpoint(options.otlp_traces_endpoint());
  if (endpoint.ok()) return absl::OkStatus();
  return InvalidField("otlp_traces_endpoint", std::string(endpoint.status().message()));
}

absl::Status CheckMadeModel(const v1::Options& options) {
  if (options.out().empty()) {
    return InvalidField("out", "required: the directory to write to (--out DIR)");
  }
  if (options.heads() % options.kv_heads() != 0) {
    return InvalidField("kv_heads",
                        absl::StrCat("got ", options.kv_heads(),
                                     "; expected a divisor of heads = ", options.heads()));
  }
  if (options.head_dim() == 0 && options.hidden_size() % options.heads() != 0) {
    return InvalidField("head_dim",
                        absl::StrCat("required, since hidden_size = ", options.hidden_size(),
                                     " is not a multiple of heads = ", options.heads()));
  }
  const int64_t head_dim =
      options.head_dim() != 0 ? options.head_dim() : options.hidden_size() / options.heads();
  if (head_dim % 2 != 0 || head_dim == 0) {
    return InvalidField("head_dim", absl::StrCat("got ", head_dim,
                                                 "; expected an even number of at least 2: rotary "
                                                 "embeddings turn pairs"));
  }
  return absl::OkStatus();
}

absl::Status CheckClusterTls(const v1::Options& options) {
  const std::pair<const char*, const std::string&> files[] = {
      {"cluster_tls_cert", options.cluster_tls_cert()},
      {"cluster_tls_key", options.cluster_tls_key()},
      {"cluster_tls_ca", options.cluster_tls_ca()}};
  for (const auto& [missing, path] : files) {
    if (!path.empty()) continue;
    for (const auto& [given, other] : files) {
      if (!other.empty()) {
        return InvalidField(missing, absl::StrCat("required beside ", given,
                                                  ": mutual TLS takes the certificate, its key and "
                                                  "the authorities"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDrain(const v1::Options& options) {
  BATON_RETURN_IF_ERROR(CheckClusterTls(options));
  if (options.instance_id().empty()) return InvalidField("instance_id", "which worker?");
  if (options.router_address().empty()) return InvalidField("router_address", "which router?");
  return ParseRouters(options.router_address()).status();
}

absl::Status CheckSimulated(const v1::Options& options) {
  if (options.timed_profile().empty()) {
    return InvalidField(
        "timed_profile",
        "required: the model's sizes and what its steps cost (--timed-profile FILE)");
  }
  BATON_RETURN_IF_ERROR(CheckColocated(options));
  BATON_RETURN_IF_ERROR(CheckChain(options));
  BATON_RETURN_IF_ERROR(CheckPages(options));
  return CheckTypes(options);
}

absl::Status CheckTrace(const v1::Options& options) {
  if (options.otlp_traces_file().empty()) {
    return InvalidField(
        "otlp_traces_file",
        "required: the spans that processes wrote with this option (--otlp-traces-file FILE)");
  }
  if (options.svg().empty()) return InvalidField("svg", "required: the picture (--svg FILE)");
  return absl::OkStatus();
}

absl::Status CheckReplay(const v1::Options& options) {
  if (!options.decision_log().empty()) return absl::OkStatus();
  return InvalidField("decision_log",
                      "required: what a router wrote with this option (--decision-log FILE)");
}

absl::Status CheckPolicy(const v1::Options& options) {
  const std::string& policy = options.schedule_policy();
  const bool by_prefix = policy == "lpm" || policy == "dfs-weight";
  if (!by_prefix || !options.disable_radix_cache()) return absl::OkStatus();
  return InvalidField(
      "schedule_policy",
      absl::StrCat("got ", policy, ", which goes by what the prefix cache has, and ",
                   "disable_radix_cache is set"));
}

// A name that HTTP and gRPC both carry: gRPC turns it to lower case, and "-bin" means bytes there.
absl::Status CheckHashHeader(const v1::Options& options) {
  constexpr size_t kLongest = 100;
  const std::string& name = options.hash_header();
  const bool right =
      !name.empty() && name.size() <= kLongest && !absl::EndsWith(name, "-bin") &&
      std::all_of(name.begin(), name.end(), [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
      });
  if (right) return absl::OkStatus();
  return InvalidField("hash_header",
                      absl::StrCat("got '", name, "'; expected the name of a header, of at most ",
                                   kLongest, " letters, digits, '-' and '_', not ending in -bin"));
}

}  // namespace

absl::Status Validate(Command command, const v1::Options& options) {
  if (command == Command::kModelMake) return CheckMadeModel(options);
  if (command == Command::kDrain) return CheckDrain(options);
  if (command == Command::kSimulate) return CheckSimulated(options);
  if (command == Command::kTrace) return CheckTrace(options);
  if (command == Command::kReplay) return CheckReplay(options);
  BATON_RETURN_IF_ERROR(CheckModel(command, options));
  if (command == Command::kModelInfo) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(CheckColocated(options));
  BATON_RETURN_IF_ERROR(CheckPolicy(options));
  BATON_RETURN_IF_ERROR(CheckChain(options));
  BATON_RETURN_IF_ERROR(CheckPages(options));
  BATON_RETURN_IF_ERROR(CheckTypes(options));
  BATON_RETURN_IF_ERROR(CheckRanks(options));
  BATON_RETURN_IF_ERROR(CheckNode(options));
  BATON_RETURN_IF_ERROR(CheckDevice(options));
  BATON_RETURN_IF_ERROR(CheckTimed(options));
  BATON_RETURN_IF_ERROR(CheckHttp(options));
  BATON_RETURN_IF_ERROR(CheckHashHeader(options));
  BATON_RETURN_IF_ERROR(CheckClusterTls(options));
  BATON_RETURN_IF_ERROR(ParseRouters(options.router_address()).status());
  BATON_RETURN_IF_ERROR(CheckDiscovery(options));
  BATON_RETURN_IF_ERROR(CheckTracing(options));
  return CheckLeases(options);
}

}  // namespace baton::config
