#include "common/model/weight_names.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace baton {

int64_t WeightSpec::ElementCount() const {
  int64_t count = rows.has_value() ? rows->size() : shape[0];
  if (shape.size() == 2) count *= columns.has_value() ? columns->size() : shape[1];
  return count;
}

namespace {

// Says where the scales of a projection are if it is stored as FP8.
void MayBeFp8(const ModelConfig& config, std::initializer_list<WeightSpec*> specs) {
  if (!config.fp8) return;
  for (WeightSpec* const spec : specs) spec->scale = spec->name + config.fp8_scale_suffix;
}

}  // namespace

// The order is that of the fingerprint, which must not change.
std::vector<WeightSpec> LayerWeights::All() const {
  std::vector<WeightSpec> all = {input_norm};
  const auto add = [&all](std::initializer_list<const std::optional<WeightSpec>*> specs) {
    for (const auto* optional : specs) {
      if (optional->has_value()) all.push_back(**optional);
    }
  };
  const auto add_gated = [&](const GatedWeights& gated) {
    for (const auto* spec : {&gated.gate, &gated.up, &gated.down}) all.push_back(*spec);
    add({&gated.gate_bias, &gated.up_bias, &gated.down_bias});
  };
  if (latent.has_value()) {
    add({&latent->q_a, &latent->q_norm});
    for (const auto* spec : {&latent->q, &latent->kv_a, &latent->kv_norm, &latent->kv_b}) {
      all.push_back(*spec);
    }
  } else {
    for (const auto* spec : {&q, &k, &v}) all.push_back(*spec);
  }
  add({&q_bias, &k_bias, &v_bias, &q_norm, &k_norm});
  all.push_back(o);
  add({&o_bias, &attention_output_norm, &feed_forward_output_norm});
  all.push_back(post_attention_norm);
  if (mlp.has_value()) add_gated(*mlp);
  add({&router, &router_bias});
  for (const GatedWeights& expert : experts) add_gated(expert);
  if (shared.has_value()) add_gated(*shared);
  return all;
}

namespace {

// The feed-forward layer of `inner` columns whose tensors' names begin with `prefix`.
GatedWeights GatedWeightsOf(const ModelConfig& config, const std::string& prefix, int64_t inner,
                            const Experts::Names& names) {
  const int64_t hidden = config.hidden_size;
  GatedWeights weights;
  weights.gate = {absl::StrCat(prefix, names.gate, ".weight"), {inner, hidden}};
  weights.up = {absl::StrCat(prefix, names.up, ".weight"), {inner, hidden}};
  weights.down = {absl::StrCat(prefix, names.down, ".weight"), {hidden, inner}};
  MayBeFp8(config, {&weights.gate, &weights.up, &weights.down});
  return weights;
}

// Makes the projections parts of one stored matrix, in this order.
void FuseRows(const ModelConfig& config, const std::string& name,
              std::initializer_list<WeightSpec*> specs) {
  int rows = 0;
  for (WeightSpec* const spec : specs) {
    const int begin = rows;
    rows += static_cast<int>(spec->shape[0]);
    spec->rows = IndexRange{begin, rows};
    spec->name = name;
  }
  for (WeightSpec* const spec : specs) spec->shape[0] = rows;
  MayBeFp8(config, specs);
}

std::string LayerPrefix(const ModelConfig& config, int layer) {
  return absl::StrCat(config.weights_prefix, "model.layers.", layer, ".");
}

// The feed-forward layer of a sparse layer, or of a dense one.
void AddFeedForward(const ModelConfig& config, int layer, LayerWeights& weights) {
  const std::string prefix = LayerPrefix(config, layer);
  if (!config.sparse(layer)) {
    const std::string mlp = prefix + "mlp.";
    weights.mlp = GatedWeightsOf(config, mlp, config.intermediate_size, {});
    if (config.fused) {
      const std::string name = mlp + "gate_up_proj.weight";
      FuseRows(config, name, {&weights.mlp->gate, &weights.mlp->up});
    }
    if (config.mlp_bias) {
      weights.mlp->gate_bias = {mlp + "gate_proj.bias", {config.intermediate_size}};
      weights.mlp->up_bias = {mlp + "up_proj.bias", {config.intermediate_size}};
      weights.mlp->down_bias = {mlp + "down_proj.bias", {config.hidden_size}};
    }
    return;
  }
  const Experts& experts = config.experts;
  const std::string block = absl::StrCat(prefix, experts.names.block, ".");
  weights.router = {block + "gate.weight", {experts.count, config.hidden_size}};
  weights.experts.reserve(static_cast<size_t>(experts.count));
  for (int expert = 0; expert < experts.count; ++expert) {
    weights.experts.push_back(GatedWeightsOf(config, absl::StrCat(block, "experts.", expert, "."),
                                             experts.inner, experts.names));
  }
  if (experts.bias) {
    weights.router_bias = {block + experts.names.bias, {experts.count}};
  }
  if (experts.shared_inner > 0) {
    weights.shared =
        GatedWeightsOf(config, block + "shared_experts.", experts.shared_inner, experts.names);
  }
}

LatentWeights LatentWeightsOf(const ModelConfig& config, const std::string& attention) {
  const LatentAttention& latent = config.latent;
  const int64_t hidden = config.hidden_size;
  const int64_t heads = config.num_attention_heads;
  const int64_t queries = heads * latent.key_dim();
  LatentWeights weights;
  if (latent.q_rank > 0) {
    weights.q_a = {attention + "q_a_proj.weight", {latent.q_rank, hidden}};
    weights.q_norm = {attention + "q_a_layernorm.weight", {latent.q_rank}};
    weights.q = {attention + "q_b_proj.weight", {queries, latent.q_rank}};
  } else {
    weights.q = {attention + "q_proj.weight", {queries, hidden}};
  }
  weights.kv_a = {attention + "kv_a_proj_with_mqa.weight", {latent.row(), hidden}};
  weights.kv_norm = {attention + "kv_a_layernorm.weight", {latent.kv_rank}};
  weights.kv_b = {attention + "kv_b_proj.weight",
                  {heads * (latent.nope_dim + latent.value_dim), latent.kv_rank}};
  MayBeFp8(config, {&weights.q, &weights.kv_a, &weights.kv_b});
  if (weights.q_a.has_value()) MayBeFp8(config, {&*weights.q_a});
  return weights;
}

}  // namespace

LayerWeights LayerWeightsOf(const ModelConfig& config, int layer) {
  const std::string prefix = LayerPrefix(config, layer);
  const auto spec = [&](const char* suffix, std::vector<int64_t> shape) {
    return WeightSpec{prefix + suffix, std::move(shape)};
  };
  const auto norm = [&](const char* suffix, int64_t size) {
    WeightSpec made = spec(suffix, {size});
    made.adds_one = config.norm_adds_one;
    return made;
  };
  const int64_t hidden = config.hidden_size;
  const int64_t query = config.query_size();
  const int64_t kv = config.kv_size();
  LayerWeights weights;
  weights.input_norm = norm("input_layernorm.weight", hidden);
  if (config.latent.kv_rank > 0) {
    weights.latent = LatentWeightsOf(config, prefix + "self_attn.");
  } else {
    weights.q = spec("self_attn.q_proj.weight", {query, hidden});
    weights.k = spec("self_attn.k_proj.weight", {kv, hidden});
    weights.v = spec("self_attn.v_proj.weight", {kv, hidden});
  }
  if (config.fused) {
    FuseRows(config, prefix + "self_attn.qkv_proj.weight", {&weights.q, &weights.k, &weights.v});
  }
  if (config.qkv_bias) {
    weights.q_bias = spec("self_attn.q_proj.bias", {query});
    weights.k_bias = spec("self_attn.k_proj.bias", {kv});
    weights.v_bias = spec("self_attn.v_proj.bias", {kv});
  }
  if (config.qk_norm) {
    weights.q_norm = norm("self_attn.q_norm.weight", config.q_norm_size());
    weights.k_norm = norm("self_attn.k_norm.weight", config.k_norm_size());
  }
  weights.o = spec("self_attn.o_proj.weight", {hidden, config.attended_size()});
  MayBeFp8(config, {&weights.q, &weights.k, &weights.v, &weights.o});
  if (config.o_bias) weights.o_bias = spec("self_attn.o_proj.bias", {hidden});
  constexpr const char* kPostAttention = "post_attention_layernorm.weight";
  if (config.output_norms) {
    weights.attention_output_norm = norm(kPostAttention, hidden);
    weights.post_attention_norm = norm("pre_feedforward_layernorm.weight", hidden);
    weights.feed_forward_output_norm = norm("post_feedforward_layernorm.weight", hidden);
  } else {
    weights.post_attention_norm = norm(kPostAttention, hidden);
  }
  AddFeedForward(config, layer, weights);
  return weights;
}

LayerWeights LayerWeightsOf(const ModelConfig& config, const ModelShard& shard, int layer) {
  LayerWeights weights = LayerWeightsOf(config, layer);
  const auto elements = [](IndexRange heads, int of_head) {
    return IndexRange{heads.begin * of_head, heads.end * of_head};
  };
  const auto give_rows = [](IndexRange rows, std::initializer_list<WeightSpec*> specs) {
    for (WeightSpec* const spec : specs) {
      const int first = spec->rows.has_value() ? spec->rows->begin : 0;
      spec->rows = IndexRange{first + rows.begin, first + rows.end};
    }
  };
  const IndexRange query = elements(shard.query_heads, config.head_dim);
  const IndexRange kv = elements(shard.kv_heads, config.head_dim);
  if (weights.latent.has_value()) {
    const LatentAttention& latent = config.latent;
    give_rows(elements(shard.query_heads, latent.key_dim()), {&weights.latent->q});
    give_rows(elements(shard.query_heads, latent.nope_dim + latent.value_dim),
              {&weights.latent->kv_b});
  } else {
    give_rows(query, {&weights.q});
    give_rows(kv, {&weights.k, &weights.v});
  }
  if (config.qkv_bias) {
    give_rows(query, {&*weights.q_bias});
    give_rows(kv, {&*weights.k_bias, &*weights.v_bias});
  }
  if (config.qk_norm_whole) {
    give_rows(query, {&*weights.q_norm});
    give_rows(kv, {&*weights.k_norm});
  }
  weights.o.columns =
      elements(shard.query_heads, config.attended_size() / config.num_attention_heads);
  const bool first = shard.rank.rank == 0;
  if (!first) weights.o_bias.reset();
  if (weights.mlp.has_value()) {
    give_rows(shard.inner, {&weights.mlp->gate, &weights.mlp->up});
    weights.mlp->down.columns = shard.inner;
    if (config.mlp_bias) give_rows(shard.inner, {&*weights.mlp->gate_bias, &*weights.mlp->up_bias});
    if (!first) weights.mlp->down_bias.reset();
  }
  if (weights.router.has_value()) {
    const auto all = weights.experts.begin();
    weights.experts = {all + shard.experts.begin, all + shard.experts.end};
    if (weights.shared.has_value()) {
      give_rows(shard.shared, {&weights.shared->gate, &weights.shared->up});
      weights.shared->down.columns = shard.shared;
    }
  }
  return weights;
}

WeightSpec VocabularyPart(WeightSpec spec, const ModelShard& shard) {
  spec.rows = shard.vocabulary;
  return spec;
}

WeightSpec EmbeddingWeight(const ModelConfig& config) {
  return {config.weights_prefix + "model.embed_tokens.weight",
          {config.vocab_size, config.hidden_size}};
}

WeightSpec FinalNormWeight(const ModelConfig& config) {
  WeightSpec norm = {config.weights_prefix + "model.norm.weight", {config.hidden_size}};
  norm.adds_one = config.norm_adds_one;
  return norm;
}

WeightSpec HeadWeight(const ModelConfig& config) {
  if (config.tie_word_embeddings) return EmbeddingWeight(config);
  return {config.weights_prefix + "lm_head.weight", {config.vocab_size, config.hidden_size}};
}

std::vector<WeightSpec> WholeTensors(std::vector<WeightSpec> specs) {
  const auto same = [](const WeightSpec& a, const WeightSpec& b) { return a.name == b.name; };
  specs.erase(std::unique(specs.begin(), specs.end(), same), specs.end());
  for (WeightSpec& spec : specs) spec.rows = spec.columns = std::nullopt;
  return specs;
}

std::vector<WeightSpec> StageWeights(const ModelConfig& config, int layer_begin, int layer_end) {
  std::vector<WeightSpec> all;
  if (layer_begin == 0) all.push_back(EmbeddingWeight(config));
  for (int layer = layer_begin; layer < layer_end; ++layer) {
    for (WeightSpec& spec : LayerWeightsOf(config, layer).All()) all.push_back(std::move(spec));
  }
  if (layer_end == config.num_hidden_layers) {
    all.push_back(FinalNormWeight(config));
    const bool shared = config.tie_word_embeddings && layer_begin == 0;
    if (!shared) all.push_back(HeadWeight(config));
  }
  return WholeTensors(std::move(all));
}

std::vector<int64_t> Fp8Blocks(const std::vector<int64_t>& shape) {
  const auto blocks = [](int64_t size) { return (size + kFp8Block - 1) / kFp8Block; };
  return {blocks(shape[0]), blocks(shape[1])};
}

absl::StatusOr<StoredTensor> FindScales(WeightReader& reader, const WeightSpec& spec) {
  const std::vector<int64_t> blocks = Fp8Blocks(spec.shape);
  if (absl::EndsWith(spec.scale, "_inv")) return FindWeight(reader, {spec.scale, blocks});
  BATON_ASSIGN_OR_RETURN(const StoredTensor tensor, reader.Find(spec.scale));
  const int64_t rows = spec.shape[0];
  const std::vector<int64_t>& shape = tensor.shape;
  const std::vector<int64_t> one_each = {rows, 1};
  if (tensor.ElementCount() != 1 && shape != one_each && shape != std::vector{rows} &&
      shape != blocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", spec.scale, " has shape [", absl::StrJoin(shape, ", "),
                     "], expected one scale, [", rows, ", 1] for the rows, or [",
                     absl::StrJoin(blocks, ", "), "] for blocks of ", kFp8Block));
  }
  return FindWeight(reader, {spec.scale, shape});
}

absl::StatusOr<StoredTensor> FindWeight(WeightReader& reader, const WeightSpec& spec) {
  BATON_ASSIGN_OR_RETURN(StoredTensor tensor, reader.Find(spec.name));
  if (tensor.shape != spec.shape) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", spec.name, " has shape [", absl::StrJoin(tensor.shape, ", "),
                     "], but config.json makes it [", absl::StrJoin(spec.shape, ", "), "]"));
  }
  if (tensor.dtype == DType::kF8E4M3 && !spec.scale.empty()) return tensor;
  if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kBF16 && tensor.dtype != DType::kF16) {
    return absl::UnimplementedError(absl::StrCat("tensor ", spec.name, " has dtype ",
                                                 DTypeName(tensor.dtype),
                                                 "; supported are F32, BF16 and F16"));
  }
  return tensor;
}

}  // namespace baton
