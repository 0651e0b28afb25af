#include "services/simulator/cluster_shape.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/chunking/chunk_profile.h"
#include "common/config/layer_split.h"
#include "common/config/mode.h"
#include "common/preflight/chunk_costs.h"
#include "common/types/limits.h"

namespace baton::simulator {
namespace {

constexpr uint64_t kIncarnation = 1;
constexpr int64_t kForEverUs = int64_t{1} << 50;  // No process fails here: 35 years.

router::WorkerInfo Describe(const ClusterShape& shape, std::string id, LayerRange layers) {
  router::WorkerInfo info;
  info.grpc_address = info.data_address = absl::StrCat(id, ":1");
  info.instance = {std::move(id), kIncarnation};
  info.layers = layers;
  info.fingerprint = shape.profile.Fingerprint(shape.profile.Apply({}), layers);
  info.fingerprint.dtype = ElementTypeName(shape.profile.dtype);
  info.fingerprint.kv_layout = shape.layout;
  info.fingerprint.protocol_version = kProtocolVersion;
  info.fingerprint.oldest_protocol_version = kOldestProtocolVersion;
  info.max_context_tokens = shape.max_context_tokens;
  return info;
}

absl::StatusOr<int> PagesOf(const char* field, int64_t tokens, int page_size) {
  if (tokens >= page_size) return static_cast<int>(tokens / page_size);
  return InvalidField(field, absl::StrCat("got ", tokens, "; expected at least one page of ",
                                          page_size, " tokens"));
}

// A sweep measures the timed profile's costs, except for the floor, which fits don't model.
std::vector<KnownCost> SweptCosts(const ClusterShape& shape) {
  std::vector<KnownCost> known;
  for (const LayerRange& stage : shape.stages) {
    StageCost cost = shape.profile.OfStage(stage);
    cost.floor_tokens = 0;
    known.push_back({cost, 0});
  }
  return known;
}

// The costs that real stages would start with; they may differ from what they then measure.
absl::StatusOr<std::vector<KnownCost>> ProfiledCosts(const ClusterShape& shape,
                                                     const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const ChunkProfile profile, LoadChunkProfile(path));
  if (profile.stages.size() != shape.stages.size()) {
    return InvalidField("chunk_profile",
                        absl::StrCat(path, " knows a chain of ", profile.stages.size(),
                                     " stages, --pp-size says ", shape.stages.size()));
  }
  const std::string wrong = WrongLayers(profile, shape.profile.layers);
  if (!wrong.empty()) return InvalidField("chunk_profile", absl::StrCat(path, ": ", wrong));
  const std::vector<StageCost> costs = profile.CostsOf(shape.stages, shape.profile.LayerWork());
  std::vector<KnownCost> known;
  for (size_t stage = 0; stage < costs.size(); ++stage) {
    known.push_back({costs[stage], profile.stages[stage].error});
  }
  return known;
}

// What real stages would come to for --chunked-prefill-size=auto.
absl::StatusOr<int64_t> AutoChunkTokens(const v1::Options& options, const ClusterShape& shape) {
  v1::Options chain = options;
  if (chain.pp_layer_partition() == config::kMeasuredPartition) chain.clear_pp_layer_partition();
  ModelFacts model;
  model.config = shape.profile.Apply({});
  model.dtype = shape.profile.dtype;
  model.kv_dtype = shape.profile.kv_dtype;
  BATON_ASSIGN_OR_RETURN(const AutoChunks chunks,
                         FindAutoChunks(chain, model, shape.max_context_tokens));
  return chunks.Of(shape.prefill.planner.chunk_rule).tokens;
}

// "auto" uses the profile's type.
ElementType TypeOf(const std::string& name, ElementType otherwise) {
  return ParseElementType(name).value_or(otherwise);
}

}  // namespace

absl::StatusOr<ClusterShape> ShapeOf(const v1::Options& options) {
  ClusterShape shape;
  BATON_ASSIGN_OR_RETURN(shape.profile, LoadTimedProfile(options.timed_profile()));
  TimedProfile& profile = shape.profile;
  profile.dtype = TypeOf(options.dtype(), profile.dtype);
  profile.kv_dtype = TypeOf(options.kv_cache_dtype(), profile.kv_dtype);
  shape.max_context_tokens = config::ContextTokens(options, profile.context_tokens);
  std::string partition = options.pp_layer_partition();
  if (partition == config::kMeasuredPartition) {
    BATON_ASSIGN_OR_RETURN(partition, MeasuredPartition(options, {}, profile, profile.LayerWork(),
                                                        shape.max_context_tokens));
  }
  BATON_ASSIGN_OR_RETURN(shape.stages,
                         config::SplitLayers(profile.layers, options.pp_size(), partition));
  shape.chains = static_cast<int>(options.prefill_chains());
  shape.prefill = prefill::SchedulingOf(options, shape.max_context_tokens);
  shape.prefill.planner.decodes = config::IsColocated(options);
  shape.decodes = shape.prefill.planner.decodes ? 0 : static_cast<int>(options.decodes());
  BATON_ASSIGN_OR_RETURN(
      shape.decode_stages,
      config::SplitLayers(profile.layers, options.decode_pp_size(),
                          options.decode_pp_layer_partition(), config::kDecodeSplit));
  if (options.chunked_prefill_size() == 0) {
    BATON_ASSIGN_OR_RETURN(const int64_t tokens, AutoChunkTokens(options, shape));
    shape.prefill.planner.chunk_tokens = static_cast<int>(tokens);
  }
  if (!options.chunk_profile().empty()) {
    BATON_ASSIGN_OR_RETURN(shape.known_costs, ProfiledCosts(shape, options.chunk_profile()));
  } else if (options.chunk_sweep_ms() > 0) {
    shape.known_costs = SweptCosts(shape);
  }
  const int page_size = static_cast<int>(options.page_size());
  shape.layout = {profile.layers,
                  profile.kv_heads,
                  profile.head_dim,
                  page_size,
                  static_cast<int>(ElementBytes(profile.kv_dtype)),
                  profile.planes};
  shape.row_bytes =
      int64_t{profile.hidden_size} * static_cast<int64_t>(ElementBytes(profile.dtype));
  BATON_ASSIGN_OR_RETURN(shape.prefill_pages,
                         PagesOf("kv_cache_tokens", options.kv_cache_tokens(), page_size));
  const int64_t decode_tokens = options.decode_kv_cache_tokens();
  BATON_ASSIGN_OR_RETURN(
      shape.decode_pages,
      PagesOf("decode_kv_cache_tokens",
              decode_tokens > 0 ? decode_tokens : options.kv_cache_tokens(), page_size));
  shape.max_running_requests = static_cast<int>(options.max_running_requests());
  shape.reserved_decode_tokens = static_cast<int>(options.num_reserved_decode_tokens());
  shape.max_queued_requests = static_cast<int>(options.max_queued_requests());
  shape.max_requests = static_cast<int>(options.max_concurrent_streams());
  shape.routers = static_cast<int>(options.routers());
  shape.policy = router::ParsePolicy(options.load_balance_policy());
  shape.request_timeout_us = options.request_timeout_ms() * 1000;
  shape.latency_us = options.message_latency_us();
  shape.activation_gbps = options.activation_gbps();
  shape.kv_gbps = options.kv_gbps();
  return shape;
}

ChainShape ChainShapeOf(const ClusterShape& shape) {
  ChainShape chain;
  chain.options = shape.prefill;
  chain.limits = prefill::PlannerLimitsOf(shape.prefill, shape.layout.page_size, shape.row_bytes);
  chain.stages = shape.stages;
  chain.page_count = shape.prefill_pages;
  chain.known_costs = shape.known_costs;
  return chain;
}

// As a decode worker's.
ChainShape DecodeShapeOf(const ClusterShape& shape, int decode) {
  ChainShape chain;
  prefill::PrefillOptions& options = chain.options;
  options.role = Role::kDecode;
  options.pp_size = static_cast<int>(shape.decode_stages.size());
  options.planner.chunk_tokens = RereadTokens(shape.layout.page_size);
  options.planner.decodes = true;
  options.planner.feeds_ahead = shape.prefill.planner.feeds_ahead;
  options.planner.reserved_decode_tokens = shape.reserved_decode_tokens;
  options.planner.max_open_requests = shape.max_running_requests;
  options.planner.max_queued_requests = shape.max_queued_requests;
  options.planner.max_context_tokens = shape.max_context_tokens;
  prefill::PlannerLimits& limits = chain.limits;
  limits = prefill::PlannerLimitsOf(options, shape.layout.page_size, shape.row_bytes);
  limits.vocab_size = 2;  // All tokens are alike here.
  limits.granting = DescribeDecode(shape, decode, 0).instance;
  limits.layers = shape.layout.layers;
  limits.kv_heads = shape.layout.kv_heads;
  limits.name = "decode service";
  chain.stages = shape.decode_stages;
  chain.page_count = shape.decode_pages;
  for (int stage = 1; stage < options.pp_size; ++stage) {
    chain.followers.push_back(DescribeDecode(shape, decode, stage).instance);
  }
  return chain;
}

router::RouterLimits RouterLimitsOf(const ClusterShape& shape, int router) {
  router::RouterLimits limits;
  limits.incarnation = kIncarnation + static_cast<uint64_t>(router);
  limits.max_requests = shape.max_requests;
  limits.max_waiting = shape.max_queued_requests;
  limits.policy = shape.policy;
  limits.settle_us = std::max(limits.settle_us, 4 * shape.latency_us);
  limits.membership.lease_us = kForEverUs;
  return limits;
}

router::WorkerInfo DescribeStage(const ClusterShape& shape, int chain, int stage) {
  router::WorkerInfo info = Describe(shape, absl::StrCat("prefill-", chain, "-", stage),
                                     shape.stages[static_cast<size_t>(stage)]);
  info.role = Role::kPrefill;
  info.chain_id = absl::StrCat("chain-", chain);
  info.pp_rank = stage;
  info.pp_size = static_cast<int>(shape.stages.size());
  info.page_count = shape.prefill_pages;
  info.max_running_requests = shape.prefill.planner.max_open_requests;
  info.decodes = shape.prefill.planner.decodes;
  return info;
}

router::WorkerInfo DescribeDecode(const ClusterShape& shape, int decode, int stage) {
  const auto stages = static_cast<int>(shape.decode_stages.size());
  std::string id = absl::StrCat("decode-", decode);
  if (stages > 1) absl::StrAppend(&id, "-", stage);
  router::WorkerInfo info =
      Describe(shape, std::move(id), shape.decode_stages[static_cast<size_t>(stage)]);
  info.role = Role::kDecode;
  info.pp_rank = stage;
  info.pp_size = stages;
  if (stages > 1) info.decode_id = absl::StrCat(decode);
  info.page_count = shape.decode_pages;
  info.max_running_requests = shape.max_running_requests;
  info.reserved_decode_tokens = shape.reserved_decode_tokens;
  return info;
}

}  // namespace baton::simulator
