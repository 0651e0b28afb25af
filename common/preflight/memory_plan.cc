#include "common/preflight/memory_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/layer_split.h"
#include "common/config/mode.h"
#include "common/config/node_share.h"
#include "common/engine/requirements.h"
#include "common/model/model_shard.h"
#include "common/types/limits.h"

namespace baton {
namespace {

using v1::OptionSpec;

constexpr int64_t kFloatBytes = 4;
constexpr char kDecodeName[] = "decode";
constexpr int64_t kMaxKvTokens = int64_t{1} << 30;

// Resident memory of a process without its model, measured (tests/e2e/test_memory_plan.py):
// libraries, gRPC's and UCX's buffers and threads, allocator slack under load.
constexpr int64_t kRouterBytes = int64_t{12} << 20;
constexpr int64_t kWorkerBytes = int64_t{16} << 20;
// What is under way between a rank and each other one of its group (CoreOptions::block_bytes).
constexpr int64_t kPeerBytes = int64_t{7} << 20;
// What libtorch adds to a worker that computes with it, measured likewise, and what its libraries'
// pages take once for all workers of a host.
constexpr int64_t kTorchBytes = int64_t{62} << 20;
constexpr int64_t kTorchSharedBytes = int64_t{117} << 20;
// A loaded tokenizer's tables over the bytes of tokenizer.json.
constexpr int64_t kTokenizerFactor = 7;

using Wide = __int128;

int64_t Saturated(Wide bytes) { return static_cast<int64_t>(std::min(bytes, Wide{1} << 62)); }

template <typename BytesOf>
int64_t SumOver(const HostMemory& memory, BytesOf bytes_of) {
  Wide bytes = 0;
  for (const ProcessMemory& process : memory.processes) {
    bytes += Wide{process.count} * bytes_of(process);
  }
  return Saturated(bytes);
}

// Tokens of the largest plan of a chain: a full chunk, and one of each request that decodes.
int64_t PlanTokens(const v1::Options& options, int64_t context_tokens) {
  const int64_t page = options.page_size();
  const int64_t longest = (context_tokens + page - 1) / page * page;
  const int64_t chunk = options.chunked_prefill_size();
  const int64_t decoding = config::IsColocated(options) ? options.max_running_requests() : 0;
  return (chunk < 0 ? longest : std::min(chunk, longest)) + decoding;
}

// Most tokens that a chain's last stage draws in one plan.
int64_t DrawnRows(const v1::Options& options, int64_t plan_tokens) {
  if (config::IsColocated(options)) return options.max_running_requests();
  // Prompts that end in it.
  return std::min(options.max_prefill_requests(), plan_tokens / options.page_size() + 1);
}

bool OnGpu(const v1::Options& options) { return absl::StartsWith(options.device(), "cuda"); }

ProcessMemory Worker(const v1::Options& options, const ModelFacts& model, const ModelShard& shard,
                     LayerRange layers, int64_t batch_tokens, int64_t context_tokens,
                     bool tells_prompts) {
  ExecutorShape shape;
  shape.layers = layers;
  // libtorch's matrices are float32 whatever their values were rounded to.
  shape.matrices = options.linear_backend() == "torch" ? ElementType::kFloat32 : model.dtype;
  shape.keeps_fp8 = options.linear_backend() != "torch";
  shape.activations = model.dtype;
  shape.kv = model.kv_dtype;
  shape.embedding_element_bytes = model.embedding_element_bytes;
  shape.page_size = options.page_size();
  shape.page_count = options.kv_cache_tokens() / options.page_size();
  shape.batch_tokens = batch_tokens;
  shape.context_tokens = context_tokens;
  shape.threads = options.threads();
  shape.all_logits = tells_prompts;
  shape.on_gpu = OnGpu(options);
  ExecutorFootprint footprint = options.executor() == "torch" ? TorchFootprintOf(shard.sizes, shape)
                                                              : FootprintOf(shard.sizes, shape);
  ProcessMemory memory;
  memory.layers = layers;
  if (OnGpu(options)) {
    memory.on_device = {footprint.weights, footprint.kv_per_token, footprint.kv, footprint.scratch};
  }
  if (OnGpu(options) || options.executor() == "timed") footprint.weights = footprint.scratch = 0;
  memory.weights = footprint.weights;
  memory.kv_per_token = footprint.kv_per_token;
  memory.kv = footprint.kv;
  memory.buffers = footprint.scratch;
  memory.runtime = kWorkerBytes;
  if (!OnGpu(options)) memory.runtime += (shard.rank.size - 1) * kPeerBytes;
  return memory;
}

// Where tokens are drawn.
int64_t SamplerBytes(const v1::Options& options, const ModelFacts& model) {
  return options.threads() * kSamplerTokenBytes * model.config.vocab_size;
}

// What stands beside a stage's own work for what it gets from the stage before it and hands on.
int64_t PassingBytes(const v1::Options& options, const ModelFacts& model, LayerRange layers,
                     int64_t activation_bytes) {
  int64_t bytes = 0;
  if (layers.begin != 0) bytes += options.activation_credits() * activation_bytes;
  // One for each plan in flight, and one that is being sent.
  if (layers.end != model.config.num_hidden_layers) {
    bytes += (options.plans_in_flight() + 1) * activation_bytes;
  }
  return bytes;
}

// One rank of a stage; all but rank 0 are alike.
ProcessMemory Stage(const v1::Options& options, const ModelFacts& model, const ModelShard& shard,
                    LayerRange layers, int64_t context_tokens) {
  const int64_t tokens = PlanTokens(options, context_tokens);
  ProcessMemory memory =
      Worker(options, model, shard, layers, tokens, context_tokens, /*tells_prompts=*/true);
  // Nothing lands in a chain; what lands in a decode service has its place in the host's memory
  // too.
  if (OnGpu(options)) memory.kv = memory.kv_per_token = 0;
  const int64_t whole_bytes =
      tokens * model.config.hidden_size * static_cast<int64_t>(ElementBytes(model.dtype));
  const bool sliced = !shard.rank.alone() && options.pp_send_slice();
  const int64_t activation_bytes = sliced ? whole_bytes / shard.rank.size : whole_bytes;
  const bool last = layers.end == model.config.num_hidden_layers;
  // Sums of the layers' parts, and activations put together from slices.
  if (!shard.rank.alone()) memory.buffers += tokens * model.config.hidden_size * kFloatBytes;
  if (sliced && layers.begin != 0) memory.buffers += whole_bytes;
  memory.buffers += PassingBytes(options, model, layers, activation_bytes);
  if (last && shard.rank.rank == 0) {
    memory.buffers += SamplerBytes(options, model);
    // The other ranks' logits on their way.
    memory.buffers += kLogitRows * kFloatBytes * (model.config.vocab_size - shard.sizes.vocab_size);
    memory.buffers += DrawnRows(options, tokens) * model.config.vocab_size * kFloatBytes;
  }
  return memory;
}

ProcessMemory Decode(const v1::Options& options, const ModelFacts& model, const ModelShard& shard,
                     LayerRange layers, int64_t context_tokens) {
  const int64_t running = options.max_running_requests();
  // With what it reads again of texts that gave way.
  const int64_t tokens = running + RereadTokens(static_cast<int>(options.page_size()));
  ProcessMemory memory =
      Worker(options, model, shard, layers, tokens, context_tokens, /*tells_prompts=*/false);
  memory.name = kDecodeName;
  const int64_t whole_bytes =
      tokens * model.config.hidden_size * static_cast<int64_t>(ElementBytes(model.dtype));
  if (!shard.rank.alone()) {
    memory.buffers += tokens * model.config.hidden_size * kFloatBytes;
    if (layers.begin != 0) memory.buffers += whole_bytes;
  }
  memory.buffers += PassingBytes(options, model, layers, whole_bytes / shard.rank.size);
  if (shard.rank.rank > 0 || layers.end != model.config.num_hidden_layers) return memory;
  memory.buffers += SamplerBytes(options, model) + running * model.config.vocab_size * kFloatBytes;
  memory.buffers += kLogitRows * kFloatBytes * (model.config.vocab_size - shard.sizes.vocab_size);
  return memory;
}

ProcessMemory Router(const ModelFacts& model) {
  ProcessMemory memory;
  memory.name = "router";
  memory.runtime = kRouterBytes + kTokenizerFactor * model.tokenizer_file_bytes;
  return memory;
}

int64_t DecodeRanks(const v1::Options& options, bool up) {
  return up ? options.decode_tp_size() : options.tp_size();
}

void AddTorch(const v1::Options& options, HostMemory& memory) {
  if (options.linear_backend() != "torch" && options.executor() != "torch") return;
  const auto works = [](const ProcessMemory& process) { return process.layers.size() > 0; };
  int64_t workers = 0;
  for (const ProcessMemory& process : memory.processes) {
    if (works(process)) workers += process.count;
  }
  for (ProcessMemory& process : memory.processes) {
    if (works(process)) process.runtime += kTorchBytes + kTorchSharedBytes / workers;
  }
}

void Place(ProcessMemory process, std::vector<int64_t> places, HostMemory& memory) {
  process.count = static_cast<int64_t>(places.size());
  process.places = std::move(places);
  memory.processes.push_back(std::move(process));
}

// The numbers of ranks `ranks` of `groups` groups that begin at `first` and lie `stride` apart.
std::vector<int64_t> PlacesOf(int64_t first, int64_t groups, int64_t stride, IndexRange ranks) {
  std::vector<int64_t> places;
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t rank = ranks.begin; rank < ranks.end; ++rank) {
      places.push_back(first + group * stride + rank);
    }
  }
  return places;
}

// Chains, or decode services.
struct Groups {
  int64_t first;  // The number of their first process, where UP starts them.
  int64_t count;
  int64_t stages;
  int ranks;
};

// Calls add(stage, rank, places, suffix) for those of this host's processes that are like one rank:
// one worker's, a node's, or all that UP starts. There rank 0 of the last stage has a line of its
// own, since it draws.
template <typename Add>
absl::Status ForAlike(const v1::Options& options, bool up, const Groups& of, const Add& add) {
  if (!up) {
    int64_t number = 0;
    for (const config::StageRank& place : config::PlacesHere(options)) {
      const std::string suffix = of.ranks == 1 ? "" : absl::StrCat(".", place.rank);
      BATON_RETURN_IF_ERROR(add(place.stage, static_cast<int>(place.rank), {number++}, suffix));
    }
    return absl::OkStatus();
  }
  for (int64_t stage = 0; stage < of.stages; ++stage) {
    const auto alike = [&](IndexRange which) {
      return PlacesOf(of.first + stage * of.ranks, of.count, of.stages * of.ranks, which);
    };
    const bool draws = stage + 1 == of.stages;
    if (of.ranks == 1 || !draws) {
      BATON_RETURN_IF_ERROR(add(stage, 0, alike({0, of.ranks}), ""));
      continue;
    }
    BATON_RETURN_IF_ERROR(add(stage, 0, alike({0, 1}), ".0"));
    BATON_RETURN_IF_ERROR(add(stage, 1, alike({1, of.ranks}), ".>0"));
  }
  return absl::OkStatus();
}

absl::Status AddPrefill(const v1::Options& options, bool up, const ModelFacts& model,
                        int64_t context_tokens, HostMemory& memory) {
  BATON_ASSIGN_OR_RETURN(const std::vector<LayerRange> split,
                         config::SplitLayers(model.config.num_hidden_layers, options.pp_size(),
                                             options.pp_layer_partition()));
  const int ranks = static_cast<int>(options.tp_size());
  const auto add = [&](int64_t stage, int rank, std::vector<int64_t> places,
                       const std::string& suffix) -> absl::Status {
    BATON_ASSIGN_OR_RETURN(const ModelShard shard, ShardModel(model.config, {rank, ranks}));
    ProcessMemory process =
        Stage(options, model, shard, split[static_cast<size_t>(stage)], context_tokens);
    process.name =
        absl::StrCat(config::IsColocated(options) ? kColocatedName : kPrefillName, stage, suffix);
    Place(std::move(process), std::move(places), memory);
    return absl::OkStatus();
  };
  return ForAlike(options, up, {0, options.prefill_chains(), options.pp_size(), ranks}, add);
}

absl::Status AddDecode(const v1::Options& options, bool up, const ModelFacts& model,
                       int64_t context_tokens, HostMemory& memory) {
  const int ranks = static_cast<int>(DecodeRanks(options, up));
  const int64_t stages = up ? options.decode_pp_size() : options.pp_size();
  BATON_ASSIGN_OR_RETURN(
      const std::vector<LayerRange> split,
      config::SplitLayers(model.config.num_hidden_layers, stages,
                          up ? options.decode_pp_layer_partition() : options.pp_layer_partition(),
                          up ? config::kDecodeSplit : config::SplitOptions()));
  const auto add = [&](int64_t stage, int rank, std::vector<int64_t> places,
                       const std::string& suffix) -> absl::Status {
    BATON_ASSIGN_OR_RETURN(const ModelShard shard, ShardModel(model.config, {rank, ranks}));
    ProcessMemory process =
        Decode(options, model, shard, split[static_cast<size_t>(stage)], context_tokens);
    if (stages > 1) absl::StrAppend(&process.name, " ", stage);
    process.name += suffix;
    Place(std::move(process), std::move(places), memory);
    return absl::OkStatus();
  };
  const int64_t first = options.prefill_chains() * options.pp_size() * options.tp_size();
  return ForAlike(options, up, {first, options.decodes(), stages, ranks}, add);
}

}  // namespace

int64_t ProcessMemory::together() const { return Saturated(Wide{count} * total()); }

int64_t HostMemory::total() const {
  return SumOver(*this, [](const ProcessMemory& process) { return process.total(); });
}
int64_t HostMemory::weights() const {
  return SumOver(*this, [](const ProcessMemory& process) { return process.weights; });
}
int64_t HostMemory::kv() const {
  return SumOver(*this, [](const ProcessMemory& process) { return process.kv; });
}
int64_t HostMemory::kv_per_token() const {
  return SumOver(*this, [](const ProcessMemory& process) { return process.kv_per_token; });
}

absl::StatusOr<HostMemory> PlanMemory(const v1::Options& options, config::Role role,
                                      const ModelFacts& model, int64_t context_tokens) {
  HostMemory memory;
  memory.kv_tokens = options.kv_cache_tokens() / options.page_size() * options.page_size();
  memory.dtype = model.dtype;
  memory.kv_dtype = model.kv_dtype;
  const bool up = role == OptionSpec::UP;
  if (up || role == OptionSpec::ROUTER) memory.processes.push_back(Router(model));
  if (up || config::IsChainRole(role)) {
    BATON_RETURN_IF_ERROR(AddPrefill(options, up, model, context_tokens, memory));
  }
  if ((up && !config::IsColocated(options)) || role == OptionSpec::DECODE) {
    BATON_RETURN_IF_ERROR(AddDecode(options, up, model, context_tokens, memory));
  }
  AddTorch(options, memory);
  return memory;
}

int64_t LargestKvTokens(const HostMemory& memory, int64_t page_size, int64_t static_bytes) {
  return LargestKvTokens(memory.weights(), memory.kv_per_token(), page_size, static_bytes);
}

int64_t LargestKvTokens(int64_t weights, int64_t kv_per_token, int64_t page_size,
                        int64_t static_bytes) {
  const int64_t for_kv = static_bytes - weights;
  if (for_kv <= 0 || kv_per_token == 0) return 0;
  return std::min(for_kv / kv_per_token, kMaxKvTokens) / page_size * page_size;
}

int64_t LongestPrompt(const HostMemory& memory, int64_t context_tokens) {
  return std::min(memory.kv_tokens, std::max<int64_t>(context_tokens - 1, 0));
}

}  // namespace baton
