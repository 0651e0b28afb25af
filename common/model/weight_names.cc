#include "common/model/weight_names.h"

#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace baton {

int64_t WeightSpec::ElementCount() const {
  int64_t count = rows.has_value() ? rows->size() : shape[0];
  if (shape.size() == 2) count *= columns.has_value() ? columns->size() : shape[1];
  return count;
}

std::vector<WeightSpec> LayerWeights::All() const {
  std::vector<WeightSpec> all = {input_norm, q, k, v};
  for (const auto* optional : {&q_bias, &k_bias, &v_bias, &q_norm, &k_norm}) {
    if (optional->has_value()) all.push_back(**optional);
  }
  for (const auto* spec : {&o, &post_attention_norm, &gate, &up, &down}) all.push_back(*spec);
  return all;
}

LayerWeights LayerWeightsOf(const ModelConfig& config, int layer) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const auto spec = [&](const char* suffix, std::vector<int64_t> shape) {
    return WeightSpec{prefix + suffix, std::move(shape)};
  };
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  const int64_t query = config.query_size();
  const int64_t kv = config.kv_size();
  LayerWeights weights;
  weights.input_norm = spec("input_layernorm.weight", {hidden});
  weights.q = spec("self_attn.q_proj.weight", {query, hidden});
  weights.k = spec("self_attn.k_proj.weight", {kv, hidden});
  weights.v = spec("self_attn.v_proj.weight", {kv, hidden});
  if (config.qkv_bias) {
    weights.q_bias = spec("self_attn.q_proj.bias", {query});
    weights.k_bias = spec("self_attn.k_proj.bias", {kv});
    weights.v_bias = spec("self_attn.v_proj.bias", {kv});
  }
  if (config.qk_norm) {
    weights.q_norm = spec("self_attn.q_norm.weight", {config.head_dim});
    weights.k_norm = spec("self_attn.k_norm.weight", {config.head_dim});
  }
  weights.o = spec("self_attn.o_proj.weight", {hidden, query});
  weights.post_attention_norm = spec("post_attention_layernorm.weight", {hidden});
  weights.gate = spec("mlp.gate_proj.weight", {inner, hidden});
  weights.up = spec("mlp.up_proj.weight", {inner, hidden});
  weights.down = spec("mlp.down_proj.weight", {hidden, inner});
  return weights;
}

LayerWeights LayerWeightsOf(const ModelConfig& config, const ModelShard& shard, int layer) {
  LayerWeights weights = LayerWeightsOf(config, layer);
  const auto elements = [&](IndexRange heads) {
    return IndexRange{heads.begin * config.head_dim, heads.end * config.head_dim};
  };
  const auto give_rows = [](IndexRange rows, std::initializer_list<WeightSpec*> specs) {
    for (WeightSpec* const spec : specs) spec->rows = rows;
  };
  const IndexRange query = elements(shard.query_heads);
  const IndexRange kv = elements(shard.kv_heads);
  give_rows(query, {&weights.q});
  give_rows(kv, {&weights.k, &weights.v});
  if (config.qkv_bias) {
    give_rows(query, {&*weights.q_bias});
    give_rows(kv, {&*weights.k_bias, &*weights.v_bias});
  }
  give_rows(shard.inner, {&weights.gate, &weights.up});
  weights.o.columns = query;
  weights.down.columns = shard.inner;
  return weights;
}

WeightSpec VocabularyPart(WeightSpec spec, const ModelShard& shard) {
  spec.rows = shard.vocabulary;
  return spec;
}

WeightSpec EmbeddingWeight(const ModelConfig& config) {
  return {"model.embed_tokens.weight", {config.vocab_size, config.hidden_size}};
}

WeightSpec FinalNormWeight(const ModelConfig& config) {
  return {"model.norm.weight", {config.hidden_size}};
}

WeightSpec HeadWeight(const ModelConfig& config) {
  if (config.tie_word_embeddings) return EmbeddingWeight(config);
  return {"lm_head.weight", {config.vocab_size, config.hidden_size}};
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
  return all;
}

absl::StatusOr<StoredTensor> FindWeight(WeightReader& reader, const WeightSpec& spec) {
  BATON_ASSIGN_OR_RETURN(StoredTensor tensor, reader.Find(spec.name));
  if (tensor.shape != spec.shape) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", spec.name, " has shape [", absl::StrJoin(tensor.shape, ", "),
                     "], but config.json makes it [", absl::StrJoin(spec.shape, ", "), "]"));
  }
  if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kBF16 && tensor.dtype != DType::kF16) {
    return absl::UnimplementedError(absl::StrCat("tensor ", spec.name, " has dtype ",
                                                 DTypeName(tensor.dtype),
                                                 "; supported are F32, BF16 and F16"));
  }
  return tensor;
}

}  // namespace baton
