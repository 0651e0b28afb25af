#include "common/preflight/chunk_costs.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/chunking/chunk_plan.h"
#include "common/chunking/flow_shop.h"
#include "common/config/layer_split.h"
#include "common/config/mode.h"

namespace baton {
namespace {

using v1::OptionSpec;

constexpr char kField[] = "chunk_profile";

bool AsksForMeasured(const v1::Options& options) {
  return options.pp_layer_partition() == config::kMeasuredPartition;
}

// Stage 0 alone knows and learns costs; the others read them for their share of the layers.
bool Reads(const v1::Options& options, config::Role role) {
  if (options.chunk_profile().empty()) return false;
  if (role == OptionSpec::UP) return true;
  return config::IsChainRole(role) && (options.pp_rank() == 0 || AsksForMeasured(options));
}

// A first start has no file yet, and must be able to write one.
void OnMissingFile(const v1::Options& options, std::vector<Finding>& findings) {
  const std::string& path = options.chunk_profile();
  if (AsksForMeasured(options)) {
    findings.push_back({Finding::Severity::kError, "pp_layer_partition",
                        absl::StrCat("auto shares layers out by measured times, and there is no ",
                                     path, "; run a chain with an even split first, whose stage 0 ",
                                     "writes it (--chunk-profile)")});
    return;
  }
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (directory.empty() || std::filesystem::is_directory(directory, error)) return;
  findings.push_back(
      {Finding::Severity::kError, kField,
       absl::StrCat("there is no directory '", directory.string(), "' to write it into")});
}

// Microseconds that each stage would work for a prompt that fills the context.
std::vector<double> BusyMicros(const v1::Options& options, const std::vector<StageCost>& costs,
                               int64_t context_tokens) {
  const auto page = static_cast<int>(options.page_size());
  const int64_t pages = (context_tokens + page - 1) / page;
  const int64_t longest = pages * page;
  const int64_t chunk = options.chunked_prefill_size();
  const PromptShape prompt = {.tokens = static_cast<int>(context_tokens), .page_size = page};
  // Auto depends on the layers that are sought. Any size will do for it, since only the ratio of
  // the stages' times counts.
  const int64_t size = chunk == 0 ? kLeastAutoChunk : chunk;
  const auto chunk_tokens = static_cast<int>(size < 0 ? longest : std::min(size, longest));
  return RunChunks(costs, 0, PlanFixed(prompt, chunk_tokens)).busy_us;
}

// What each stage would take for one layer after another, in place of those that it has.
std::vector<std::vector<double>> LayerMicros(const v1::Options& options, const ChunkCosts& costs,
                                             const std::optional<TimedProfile>& played,
                                             const std::vector<double>& layer_work,
                                             int64_t context_tokens) {
  const auto stages = static_cast<size_t>(options.pp_size());
  std::vector<std::vector<double>> layer_us(stages);
  std::vector<double> one_us;  // The layer before has the same, if it is of the same kind.
  for (int layer = 0; layer < static_cast<int>(layer_work.size()); ++layer) {
    const LayerRange alone = {layer, layer + 1};
    const bool same = layer > 0 && layer_work[static_cast<size_t>(layer)] ==
                                       layer_work[static_cast<size_t>(layer) - 1];
    if (!same) {
      const std::vector<LayerRange> each(stages, alone);
      const std::vector<StageCost> one = costs.profile
                                             ? costs.profile->CostsOf(each, layer_work)
                                             : std::vector(stages, played->OfLayers(alone));
      one_us = BusyMicros(options, one, context_tokens);
    }
    for (size_t stage = 0; stage < stages; ++stage) layer_us[stage].push_back(one_us[stage]);
  }
  return layer_us;
}

}  // namespace

std::string WrongLayers(const ChunkProfile& profile, int model_layers) {
  const int layers = std::accumulate(
      profile.stages.begin(), profile.stages.end(), 0,
      [](int sum, const StageProfile& stage) { return std::min(sum + stage.layers, 1 << 20); });
  if (layers == model_layers) return "";
  return absl::StrCat("\"stages\" have ", layers, " layers together, expected the model's ",
                      model_layers);
}

MeasuredOn MeasuredBy(const v1::Options& options, const Machine& machine) {
  MeasuredOn here;
  here.model = options.served_model_name();
  here.executor = options.executor();
  here.device = options.device().substr(0, options.device().find(':'));  // One GPU is as another.
  here.threads = static_cast<int>(options.threads());
  here.max_chunk_tokens = static_cast<int>(std::max<int64_t>(options.chunked_prefill_size(), 0));
  here.host = machine.host;
  here.cpu = machine.cpu;
  return here;
}

void ReadChunkProfile(const v1::Options& options, config::Role role, int model_layers,
                      ChunkCosts& costs, std::vector<Finding>& findings) {
  costs.keeps_file = config::IsChainRole(role) && AsksForMeasured(options);
  if (!Reads(options, role)) return;
  absl::StatusOr<ChunkProfile> profile = LoadChunkProfile(options.chunk_profile());
  if (absl::IsNotFound(profile.status())) return OnMissingFile(options, findings);
  if (!profile.ok()) {
    findings.push_back(
        {Finding::Severity::kError, kField, std::string(profile.status().message())});
    return;
  }
  costs.profile = *std::move(profile);
  CompareChunkProfile(options, AsksForMeasured(options), costs, findings);
  if (!costs.profile) return;
  const std::string wrong = WrongLayers(*costs.profile, model_layers);
  if (wrong.empty()) return;
  findings.push_back(
      {Finding::Severity::kError, kField, absl::StrCat(options.chunk_profile(), ": ", wrong)});
  costs.profile.reset();
}

void CompareChunkProfile(const v1::Options& options, bool measured_partition, ChunkCosts& costs,
                         std::vector<Finding>& findings) {
  if (!costs.profile) return;
  const auto severity =
      measured_partition ? Finding::Severity::kError : Finding::Severity::kWarning;
  const std::string& path = options.chunk_profile();
  const std::string difference = costs.profile->on.DifferenceTo(costs.here);
  const auto stages = static_cast<int64_t>(costs.profile->stages.size());
  if (!difference.empty()) {
    findings.push_back({severity, kField,
                        absl::StrCat(path, " does not hold here: ", difference,
                                     ". It is not used, and left as it is")});
    costs.keeps_file = true;
  } else if (stages != options.pp_size()) {
    findings.push_back({severity, kField,
                        absl::StrCat(path, " is of a chain of ", stages, ", not of --pp-size ",
                                     options.pp_size(), ". It is not used",
                                     measured_partition ? ""
                                                        : ", and written anew when costs of "
                                                          "this chain are known")});
  } else {
    return;
  }
  costs.profile.reset();
}

absl::StatusOr<std::string> MeasuredPartition(const v1::Options& options, const ChunkCosts& costs,
                                              const std::optional<TimedProfile>& played,
                                              const std::vector<double>& layer_work,
                                              int64_t context_tokens) {
  if (options.pp_size() > static_cast<int64_t>(layer_work.size())) {
    return InvalidField("pp_size",
                        absl::StrCat("got ", options.pp_size(), " stages for ", layer_work.size(),
                                     " layers; expected from 1 to the layers"));
  }
  if (!costs.profile && !played) {
    return InvalidField("pp_layer_partition", "auto: no times were measured");
  }
  return config::BalanceLayers(LayerMicros(options, costs, played, layer_work, context_tokens));
}

void FillStageCosts(const v1::Options& options, const std::vector<LayerRange>& split,
                    const std::optional<TimedProfile>& played,
                    const std::vector<double>& layer_work, ChunkCosts& costs) {
  costs.stages.clear();
  if (costs.profile) {
    costs.stages = costs.profile->CostsOf(split, layer_work);
    int64_t plans = INT64_MAX;
    bool moved = false;
    for (size_t stage = 0; stage < split.size(); ++stage) {
      const StageProfile& measured = costs.profile->stages[stage];
      plans = std::min(plans, measured.plans);
      moved |= measured.layers != split[stage].size();
    }
    costs.source =
        absl::StrCat(options.chunk_profile(), ", learned from ", plans, " plans on ",
                     costs.profile->on.host, moved ? ", with other layers on each stage" : "");
  } else if (played) {
    for (const LayerRange& layers : split) costs.stages.push_back(played->OfStage(layers));
    costs.source = absl::StrCat(options.timed_profile(), " (", played->name, ")");
  } else {
    costs.missing = options.chunk_profile().empty()
                        ? "--chunk-profile names no file of them"
                        : absl::StrCat(options.chunk_profile(), " has none of this chain");
  }
}

namespace {

// A chain as it would be with chunks of so many tokens, its processes wherever they run.
absl::StatusOr<HostMemory> PlanChain(v1::Options options, const ModelFacts& model,
                                     int64_t context_tokens, int64_t chunk_tokens) {
  options.set_chunked_prefill_size(chunk_tokens);
  options.set_prefill_chains(1);
  options.set_decodes(1);
  options.set_decode_pp_size(1);
  options.clear_decode_pp_layer_partition();
  options.set_decode_tp_size(1);
  // What is played is to be cut as it would be; what a GPU holds has to fit there.
  if (options.executor() == "timed") options.set_executor("native");
  options.set_device("cpu");
  return PlanMemory(options, v1::OptionSpec::UP, model, context_tokens);
}

// Whether `larger` chunks than `least` take no process too much beside its KV cache.
bool Affordable(const HostMemory& least, const HostMemory& larger) {
  for (size_t i = 0; i < least.processes.size(); ++i) {
    const ProcessMemory& process = larger.processes[i];
    const bool stage = absl::StartsWith(process.name, kPrefillName) ||
                       absl::StartsWith(process.name, kColocatedName);
    if (!stage) continue;
    const int64_t more = process.buffers - least.processes[i].buffers;
    if (more > process.kv / kAutoChunkKvShare) return false;
  }
  return true;
}

absl::StatusOr<AutoChunk> Optimal(const v1::Options& options, const ModelFacts& model,
                                  int64_t context_tokens) {
  if (options.pp_size() == 1) return AutoChunk{kLeastAutoChunk, "--pp-size 1"};
  AutoChunk chunk = {kLeastAutoChunk, "--kv-cache-tokens, a fifth of whose memory is for chunks"};
  BATON_ASSIGN_OR_RETURN(const HostMemory least,
                         PlanChain(options, model, context_tokens, kLeastAutoChunk));
  while (chunk.tokens < kMostAutoChunk) {
    BATON_ASSIGN_OR_RETURN(const HostMemory larger,
                           PlanChain(options, model, context_tokens, 2 * chunk.tokens));
    if (!Affordable(least, larger)) return chunk;
    chunk.tokens *= 2;
  }
  chunk.source = "--chunk-policy optimal, which wants no more";
  return chunk;
}

AutoChunk Within(AutoChunk chunk, const v1::Options& options, int64_t context_tokens) {
  const int64_t page = options.page_size();
  const int64_t longest = (context_tokens + page - 1) / page * page;
  if (longest < chunk.tokens) chunk = {longest, "--context-length"};
  const int64_t most = options.max_prefill_tokens() / page * page;
  if (most > 0 && most < chunk.tokens) chunk = {most, "--max-prefill-tokens"};
  return chunk;
}

}  // namespace

const AutoChunk& AutoChunks::Of(ChunkRule rule) const {
  if (rule == ChunkRule::kOptimal) return optimal;
  return rule == ChunkRule::kSglang ? sglang : fixed;
}

absl::StatusOr<AutoChunks> FindAutoChunks(const v1::Options& options, const ModelFacts& model,
                                          int64_t context_tokens) {
  BATON_ASSIGN_OR_RETURN(const AutoChunk optimal, Optimal(options, model, context_tokens));
  AutoChunks chunks;
  chunks.fixed = Within({kLeastAutoChunk, "--chunk-policy fixed"}, options, context_tokens);
  chunks.sglang = Within({kSglangAutoChunk, "--chunk-policy sglang"}, options, context_tokens);
  chunks.optimal = Within(optimal, options, context_tokens);
  return chunks;
}

}  // namespace baton
