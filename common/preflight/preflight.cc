#include "common/preflight/preflight.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/config/device_deal.h"
#include "common/config/layer_split.h"
#include "common/config/mode.h"
#include "common/config/node_share.h"
#include "common/engine/requirements.h"
#include "common/engine/timed/timed_profile.h"
#include "common/model/fingerprint.h"
#include "common/model/model_shard.h"
#include "common/preflight/memory_check.h"
#include "common/preflight/model_files.h"
#include "common/secrets/secret_set.h"
#include "common/tls/tls_certificate.h"
#include "common/tokenizer/chat/output/output_format.h"

namespace baton {
namespace {

using v1::OptionSpec;

constexpr int64_t kMinContextTokens = 2;

class Checks {
 public:
  Checks(const config::ParsedOptions& options, const Machine& machine) : options_(options) {
    report_.role = config::CheckedRole(options);
    report_.values = options.values;
    report_.machine = machine;
  }

  PreflightReport Run() {
    ChooseThreads();
    CheckTls();
    CheckTorch();
    DealGpus();
    CheckParsers();
    const v1::Options& values = report_.values;
    report_.model =
        CheckModelConfig(values.model_path(), values.context_length(), report_.findings);
    if (report_.model) PlayProfile();
    if (!report_.model) {
      // Told apart even so: two problems are mended together.
      if (report_.role == OptionSpec::UP && !values.tokenizer_path().empty() &&
          values.tokenizer_path() != values.model_path()) {
        CheckTokenizer(values.tokenizer_path(), values.chat_template(), {}, report_.findings);
      }
      return Finish();
    }
    CheckContext();
    if (!CheckRanks()) return Finish();
    facts_.config = *report_.model;
    ReadCosts();
    const auto layers = Layers();
    if (profile_) {
      facts_.dtype = ParseElementType(values.dtype()).value_or(profile_->dtype);
      facts_.kv_dtype = ParseElementType(values.kv_cache_dtype()).value_or(profile_->kv_dtype);
    } else if (layers && report_.role != OptionSpec::ROUTER) {
      const WeightTypes types = CheckWeights(values.model_path(), facts_.config, *layers,
                                             ParseElementType(values.dtype()), report_.findings);
      facts_.dtype = types.dtype;
      CheckFp8();
      facts_.kv_dtype = ParseElementType(values.kv_cache_dtype()).value_or(types.dtype);
      facts_.embedding_element_bytes = types.embedding_element_bytes;
    }
    // A router loads it right after this and says the same.
    if (report_.role == OptionSpec::UP) {
      if (values.generation_config() == "auto") {
        CheckGenerationDefaults(values.model_path(), report_.findings);
      }
      const TokenizerFiles files = CheckTokenizer(values.tokenizer_path(), values.chat_template(),
                                                  facts_.config, report_.findings);
      facts_.tokenizer_file_bytes = files.bytes;
      report_.chat_template = files.chat_template;
    }
    if (layers) SettleChunks();
    if (layers) CheckMemory(options_, facts_, report_);
    SettleCosts();
    return Finish();
  }

 private:
  // Names alone: what auto chooses needs the chat template, and is always fine.
  void CheckParsers() {
    const v1::Options& values = report_.values;
    AddStatus("tool_call_parser", chat::ToolFormatFor(values.tool_call_parser(), "").status());
    AddStatus("reasoning_parser", chat::ReasoningFormatFor(values.reasoning_parser(), "").status());
  }

  void Add(Finding::Severity severity, const std::string& option, std::string message) {
    report_.findings.push_back({severity, option, std::move(message)});
  }
  void AddError(const std::string& option, std::string message) {
    Add(Finding::Severity::kError, option, std::move(message));
  }
  void AddStatus(const std::string& option, const absl::Status& status) {
    if (!status.ok()) report_.findings.push_back(ErrorFinding(option, status));
  }

  // What --threads=0 means: the machine's cores, shared among all workers that `up` or a node
  // starts.
  void ChooseThreads() {
    if (report_.role == OptionSpec::ROUTER) return;
    v1::Options& values = report_.values;
    if (values.threads() == 0) {
      const int64_t workers = config::WorkersHere(values, report_.role);
      values.set_threads(std::clamp<int64_t>(report_.machine.cores / workers, 1, kMaxThreads));
    }
    AddStatus("threads", CheckExecutorSizes(values.page_size(), values.threads()));
  }

  void CheckPair(const char* option, const std::string& certificate, const std::string& key) {
    if (certificate.empty() || key.empty()) return;
    AddStatus(option, TlsCertificate::Load(certificate, key).status());
  }

  void CheckTls() {
    const v1::Options& values = report_.values;
    AddStatus("api_key_file", SecretSet::Load("", values.api_key_file()).status());
    AddStatus("cluster_token_file", SecretSet::Load("", values.cluster_token_file()).status());
    CheckPair("ssl_certfile", values.ssl_certfile(), values.ssl_keyfile());
    // Whether it names the process its own start asks.
    CheckPair("cluster_tls_cert", values.cluster_tls_cert(), values.cluster_tls_key());
  }

  // Blames the first option that needs it.
  void CheckTorch() {
    const v1::Options& values = report_.values;
    if (report_.role == OptionSpec::ROUTER || !report_.machine.check_torch) return;
    const bool executes = values.executor() == "torch";
    if (!executes && values.linear_backend() != "torch") return;
    const absl::Status status = report_.machine.check_torch();
    if (status.ok()) return;
    AddError(executes ? "executor" : "linear_backend",
             absl::StrCat("got torch, and ", status.message()));
  }

  // libtorch's layers widen FP8, which bfloat16 does not hold; only who asks for it has it rounded.
  void CheckFp8() {
    const v1::Options& values = report_.values;
    if (!facts_.config.fp8 || values.executor() != "torch" || values.dtype() != "auto" ||
        facts_.dtype == ElementType::kFloat32) {
      return;
    }
    AddError("dtype",
             "got auto, by which --executor torch would round the model's FP8 weights; say float32 "
             "to keep all of them, or bfloat16 to round them");
  }

  // --timed-profile: its sizes stand in the model's place.
  void PlayProfile() {
    const std::string& path = report_.values.timed_profile();
    if (path.empty()) return;
    // A router computes nothing, and has to know the model that its workers play.
    if (report_.role != OptionSpec::ROUTER && report_.values.executor() != "timed") {
      return AddError("timed_profile",
                      absl::StrCat("is given, and --executor ", report_.values.executor(),
                                   " does not play it"));
    }
    absl::StatusOr<TimedProfile> profile = LoadTimedProfile(path);
    if (!profile.ok()) {
      report_.model.reset();
      return AddStatus("timed_profile", profile.status());
    }
    report_.model = profile->Apply(*std::move(report_.model));
    profile_ = *std::move(profile);
  }

  void CheckContext() {
    const int longest = report_.model->max_position_embeddings;
    const int64_t asked = report_.values.context_length();
    report_.context_tokens = config::ContextTokens(report_.values, longest);
    if (asked > longest) {
      AddError("context_length",
               absl::StrCat("got ", asked, "; the model's \"max_position_embeddings\" is ", longest,
                            ", and it has learnt nothing beyond. The largest value is ", longest));
    } else if (report_.context_tokens < kMinContextTokens) {
      AddError("context_length", absl::StrCat("got ", report_.context_tokens,
                                              "; expected a token of prompt and one of answer"));
    }
    const int stretched = report_.model->LongestContext();
    if (stretched > longest) {
      report_.findings.push_back(
          {Finding::Severity::kWarning, "context_length",
           absl::StrCat("texts have up to ", longest,
                        " tokens, as longrope's short_factor is for; ", "with more, up to ",
                        stretched, ", its long_factor is taken for all")});
    }
  }

  // Whether the model can be dealt out to the ranks of a stage, or a decode service.
  bool CheckRanks() {
    const v1::Options& values = report_.values;
    const TensorRank rank{static_cast<int>(values.tp_rank()), static_cast<int>(values.tp_size())};
    const bool slices = values.pp_send_slice() && report_.role != OptionSpec::DECODE;
    const bool decodes =
        CheckShard("decode_tp_size", {0, static_cast<int>(values.decode_tp_size())});
    if (!CheckShard("tp_size", rank) || !decodes) return false;
    if (rank.alone() || !slices) return true;
    const absl::Status sliced = CheckActivationSlices(*report_.model, rank.size);
    AddStatus("tp_size", sliced);
    return sliced.ok();
  }

  // `option` says the size; a shard knows one of them by name.
  bool CheckShard(const char* option, TensorRank rank) {
    if (rank.alone()) return true;
    const absl::Status shard = ShardModel(*report_.model, rank).status();
    if (shard.ok()) return true;
    AddError(option, std::string(absl::StripPrefix(shard.message(), "tp_size: ")));
    return false;
  }

  // Before the layers, which may follow from it.
  void ReadCosts() {
    v1::Options& values = report_.values;
    ChunkCosts& chunks = report_.chunks;
    const int layers = report_.model->num_hidden_layers;
    chunks.here = MeasuredBy(values, report_.machine);
    chunks.here.config_hash = ConfigFingerprint(*report_.model);
    ReadChunkProfile(values, report_.role, layers, chunks, report_.findings);
    measured_partition_ = values.pp_layer_partition() == config::kMeasuredPartition;
    if (!measured_partition_ || report_.context_tokens < 1) return;
    values.clear_pp_layer_partition();  // Until it is known.
    if (!report_.status().ok()) return;
    const auto partition =
        MeasuredPartition(values, chunks, profile_, LayerWork(), report_.context_tokens);
    if (!partition.ok()) return AddStatus("pp_layer_partition", partition.status());
    values.set_pp_layer_partition(*partition);
  }

  std::vector<double> LayerWork() const {
    return profile_ ? profile_->LayerWork() : report_.model->LayerWork();
  }

  // And once types and layers are known.
  void SettleCosts() {
    const v1::Options& values = report_.values;
    if (!OfChain()) return;
    ChunkCosts& chunks = report_.chunks;
    chunks.here.max_chunk_tokens =
        static_cast<int>(std::max<int64_t>(values.chunked_prefill_size(), 0));
    chunks.here.dtype = ElementTypeName(facts_.dtype);
    chunks.here.kv_dtype = ElementTypeName(facts_.kv_dtype);
    // Otherwise both compute the same.
    const bool rounds = values.executor() == "native" && facts_.dtype == ElementType::kBFloat16;
    chunks.here.cpu_numerics = rounds ? values.cpu_numerics() : "";
    CompareChunkProfile(values, measured_partition_, chunks, report_.findings);
    const auto split = config::SplitLayers(report_.model->num_hidden_layers, values.pp_size(),
                                           values.pp_layer_partition());
    if (split.ok()) FillStageCosts(values, *split, profile_, LayerWork(), chunks);
    const int64_t shown = values.chunk_plan();
    if (report_.context_tokens > 0 && shown > report_.context_tokens) {
      AddError("chunk_plan", absl::StrCat("got ", shown, ", and no prompt is longer than ",
                                          report_.context_tokens, " tokens (--context-length)"));
    }
  }

  // The layers that this host reads; none, with a finding, if the split is impossible.
  std::optional<LayerRange> Layers() {
    const v1::Options& values = report_.values;
    const LayerRange all{0, report_.model->num_hidden_layers};
    if (report_.role == OptionSpec::ROUTER) return all;
    const auto split = config::SplitLayers(all.end, values.pp_size(), values.pp_layer_partition());
    if (!split.ok()) {
      AddStatus("pp_size", split.status());
      return std::nullopt;
    }
    if (report_.role == OptionSpec::UP) {
      if (config::IsColocated(values)) return all;
      const auto decode =
          config::SplitLayers(all.end, values.decode_pp_size(), values.decode_pp_layer_partition(),
                              config::kDecodeSplit);
      AddStatus("decode_pp_size", decode.status());
      if (!decode.ok()) return std::nullopt;
      return all;
    }
    const std::vector<config::StageRank> places = config::PlacesHere(values);
    return LayerRange{(*split)[static_cast<size_t>(places.front().stage)].begin,
                      (*split)[static_cast<size_t>(places.back().stage)].end};
  }

  bool OfChain() const {
    return report_.role == OptionSpec::UP || config::IsChainRole(report_.role);
  }

  // --chunked-prefill-size=auto. Before the pools are sized by this machine's memory.
  void SettleChunks() {
    v1::Options& values = report_.values;
    if (!OfChain() || values.chunked_prefill_size() != 0) return;
    const auto chunks = FindAutoChunks(values, facts_, report_.context_tokens);
    if (!chunks.ok()) return AddStatus("pp_size", chunks.status());
    report_.auto_chunks = *chunks;
    const ChunkRule rule = ParseChunkRule(values.chunk_policy()).value_or(ChunkRule::kFixed);
    values.set_chunked_prefill_size(chunks->Of(rule).tokens);
  }

  // Which GPU is whose. A worker alone knows its own from here on.
  void DealGpus() {
    v1::Options& values = report_.values;
    if (report_.role == OptionSpec::ROUTER || values.device() == "cpu") return;
    if (report_.machine.read_gpus) report_.gpus = report_.machine.read_gpus();
    config::VisibleGpus visible = {std::nullopt, report_.gpus.source};
    if (report_.gpus.known) visible.count = static_cast<int64_t>(report_.gpus.visible.size());
    auto dealt = config::DealDevices(values, report_.role, visible);
    if (!dealt.ok()) return AddStatus("device", dealt.status());
    report_.devices = *std::move(dealt);
    const bool alone = report_.role != OptionSpec::UP && !config::IsNode(values);
    if (alone) values.set_device(report_.devices[0]);
  }

  PreflightReport Finish() {
    for (Finding& finding : report_.findings) {
      finding.message += config::SetByText(options_, finding.option);
    }
    return std::move(report_);
  }

  const config::ParsedOptions& options_;
  PreflightReport report_;
  std::optional<TimedProfile> profile_;
  bool measured_partition_ = false;  // --pp-layer-partition=auto
  ModelFacts facts_;
};

}  // namespace

absl::Status PreflightReport::status() const {
  std::vector<std::string> texts;
  bool shortage_alone = true;
  for (const Finding& finding : findings) {
    if (!finding.refuses()) continue;
    if (finding.severity == Finding::Severity::kError) shortage_alone = false;
    texts.push_back(FindingText(finding));
  }
  if (texts.empty()) return absl::OkStatus();
  std::string message = texts[0];
  if (texts.size() > 1) message = absl::StrCat(texts.size(), " problems");
  for (size_t i = 0; texts.size() > 1 && i < texts.size(); ++i) {
    absl::StrAppend(&message, "\n  - ", texts[i]);
  }
  return shortage_alone ? absl::ResourceExhaustedError(message)
                        : absl::InvalidArgumentError(message);
}

PreflightReport Preflight(const config::ParsedOptions& options, const Machine& machine) {
  return Checks(options, machine).Run();
}

std::vector<std::string> PlannedArguments(const PreflightReport& report) {
  return {absl::StrCat("--kv-cache-tokens=", report.values.kv_cache_tokens()),
          absl::StrCat("--threads=", report.values.threads()),
          "--mem-fraction-static=", "--memory-check=off"};
}

config::ParsedOptions PlannedOptions(const config::ParsedOptions& given,
                                     const PreflightReport& report) {
  config::ParsedOptions planned = given;
  planned.values.set_pp_layer_partition(report.values.pp_layer_partition());
  // Children are told their own GPU.
  for (const char* const dealt : {"base_gpu_id", "gpu_id_step"}) planned.sources.erase(dealt);
  if (!report.auto_chunks) return planned;
  // As if it had been said: what is derived, children are left to derive.
  planned.values.set_chunked_prefill_size(report.values.chunked_prefill_size());
  planned.sources["chunked_prefill_size"] = {config::OptionSource::Kind::kFlag,
                                             "--chunked-prefill-size"};
  return planned;
}

std::string FindingText(const Finding& finding) {
  return absl::StrCat(finding.option, ": ", finding.message);
}

}  // namespace baton
