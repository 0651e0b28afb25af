#include "common/model/fingerprint.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/checksum.h"
#include "common/base/status.h"
#include "common/model/weight_names.h"

namespace baton {
namespace {

// Bytes read at a time.
constexpr size_t kReadBytes = size_t{1} << 20;

uint64_t Hash(std::string_view text) { return Checksum(std::as_bytes(std::span(text))); }

// Text, so that it can be printed when two sides differ; absl::StrCat prints doubles with six
// digits, hence the explicit bits.
absl::Hex Bits(double value) { return absl::Hex(std::bit_cast<uint64_t>(value)); }

// The words for llama3 are those of older versions, which may serve the same model in one cluster.
void AppendRope(const RopeScaling& scaling, std::string* text) {
  absl::StrAppend(text, " ", RopeKindName(scaling.kind), "=", Bits(scaling.factor));
  switch (scaling.kind) {
    case RopeKind::kLinear:
      break;
    case RopeKind::kLlama3:
      absl::StrAppend(text, ",", Bits(scaling.low_freq_factor), ",", Bits(scaling.high_freq_factor),
                      ",", scaling.original_max_position_embeddings);
      break;
    case RopeKind::kYarn:
      absl::StrAppend(text, ",", Bits(scaling.magnitude), ",",
                      scaling.original_max_position_embeddings, ",", Bits(scaling.beta_fast), ",",
                      Bits(scaling.beta_slow), ",", scaling.truncate);
      break;
    case RopeKind::kLongRope:
      absl::StrAppend(text, ",", Bits(scaling.magnitude));
      for (const double divisor : scaling.divisors) absl::StrAppend(text, ",", Bits(divisor));
      break;
  }
}

void AppendExperts(const ModelConfig& config, std::string* text) {
  const Experts& experts = config.experts;
  if (experts.count == 0) return;
  absl::StrAppend(text, " experts=", experts.count, ",", experts.active, ",", experts.inner, ",",
                  experts.normalise, " sparse=");
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    absl::StrAppend(text, config.sparse(layer) ? "1" : "0");
  }
  if (experts.score == ExpertScore::kSoftmax && experts.groups == 1 && experts.scaling == 1 &&
      experts.shared_inner == 0) {
    return;
  }
  absl::StrAppend(text, " router=", experts.score == ExpertScore::kSigmoid ? "sigmoid" : "softmax",
                  ",", experts.bias, ",", experts.groups, ",", experts.groups_kept, ",",
                  experts.group_score == GroupScore::kSumOfTwo ? "two" : "best", ",",
                  Bits(experts.scaling), " shared=", experts.shared_inner);
}

void AppendLatent(const ModelConfig& config, std::string* text) {
  const LatentAttention& latent = config.latent;
  if (latent.kv_rank == 0) return;
  absl::StrAppend(text, " latent=", latent.kv_rank, ",", latent.q_rank, ",", latent.nope_dim, ",",
                  latent.rope_dim, ",", latent.value_dim, ",", latent.interleaved, ",",
                  Bits(config.attention_scale()));
}

absl::StatusOr<uint64_t> HashTensors(WeightReader& reader, std::vector<WeightSpec> specs) {
  RunningChecksum hash;
  std::vector<std::byte> block(kReadBytes);
  for (size_t i = 0; i < specs.size(); ++i) {
    const WeightSpec spec = specs[i];
    BATON_ASSIGN_OR_RETURN(const StoredTensor tensor, FindWeight(reader, spec));
    const std::string label = absl::StrCat(spec.name, " ", DTypeName(tensor.dtype), "[",
                                           absl::StrJoin(tensor.shape, ","), "]\n");
    hash.Add(std::as_bytes(std::span(label)));
    // Behind the others: `specs` grows.
    if (tensor.dtype == DType::kF8E4M3) {
      BATON_ASSIGN_OR_RETURN(const StoredTensor scales, FindScales(reader, spec));
      specs.push_back({spec.scale, scales.shape});
    }
    for (size_t at = 0; at < tensor.byte_count;) {
      const auto part = std::span(block).first(std::min(block.size(), tensor.byte_count - at));
      BATON_RETURN_IF_ERROR(tensor.Read(at, part));
      hash.Add(part);
      at += part.size();
    }
  }
  return hash.value();
}

}  // namespace

uint64_t ConfigFingerprint(const ModelConfig& config) {
  std::string text = absl::StrCat(
      config.architecture, " hidden=", config.hidden_size, " inner=", config.intermediate_size,
      " layers=", config.num_hidden_layers, " heads=", config.num_attention_heads,
      " kv_heads=", config.num_key_value_heads, " head_dim=", config.head_dim,
      " vocab=", config.vocab_size, " positions=", config.max_position_embeddings);
  absl::StrAppend(&text, " eps=", Bits(config.rms_norm_eps), " theta=", Bits(config.rope_theta),
                  " tied=", config.tie_word_embeddings, " qkv_bias=", config.qkv_bias,
                  " qk_norm=", config.qk_norm);
  AppendExperts(config, &text);
  AppendLatent(config, &text);
  // Said only where they are there, so that older versions agree about models that they know.
  if (config.fp8) absl::StrAppend(&text, " fp8");
  if (config.o_bias) absl::StrAppend(&text, " o_bias");
  if (config.mlp_bias) absl::StrAppend(&text, " mlp_bias");
  if (config.qk_norm_whole) absl::StrAppend(&text, " qk_norm_whole");
  if (config.rotated > 0) absl::StrAppend(&text, " rotated=", config.rotated);
  if (config.sliding_window > 0) absl::StrAppend(&text, " window=", config.sliding_window);
  if (config.rope_scaling) AppendRope(*config.rope_scaling, &text);
  if (!config.sliding_layers.empty()) {
    absl::StrAppend(&text, " sliding=");
    for (const bool slides : config.sliding_layers) absl::StrAppend(&text, slides ? "1" : "0");
    absl::StrAppend(&text, ",", Bits(config.sliding_rope_theta));
  }
  if (config.query_scalar > 0) {
    absl::StrAppend(&text, " query_scalar=", Bits(config.query_scalar));
  }
  if (config.score_softcap > 0 || config.logit_softcap > 0) {
    absl::StrAppend(&text, " softcaps=", Bits(config.score_softcap), ",",
                    Bits(config.logit_softcap));
  }
  return Hash(text);
}

absl::StatusOr<ModelFingerprint> FingerprintStage(WeightReader& reader, const ModelConfig& config,
                                                  int layer_begin, int layer_end) {
  BATON_RETURN_IF_ERROR(ValidateLayerRange(config, layer_begin, layer_end));
  ModelFingerprint fingerprint;
  fingerprint.config_hash = ConfigFingerprint(config);
  for (int layer = layer_begin; layer < layer_end; ++layer) {
    BATON_ASSIGN_OR_RETURN(fingerprint.layer_hashes[layer],
                           HashTensors(reader, WholeTensors(LayerWeightsOf(config, layer).All())));
  }
  if (layer_begin == 0) {
    BATON_ASSIGN_OR_RETURN(fingerprint.embedding_hash,
                           HashTensors(reader, {EmbeddingWeight(config)}));
  }
  if (layer_end == config.num_hidden_layers) {
    BATON_ASSIGN_OR_RETURN(fingerprint.head_hash,
                           HashTensors(reader, {FinalNormWeight(config), HeadWeight(config)}));
  }
  return fingerprint;
}

}  // namespace baton
