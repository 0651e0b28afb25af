// Which tensors a layer range consists of, by Hugging Face's names, with the shapes that the
// configuration demands. Loading, fingerprints and the random model all go by these lists.
#ifndef COMMON_MODEL_WEIGHT_NAMES_H_
#define COMMON_MODEL_WEIGHT_NAMES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/model/model_shard.h"
#include "common/model/safetensors.h"
#include "common/types/instance.h"

namespace baton {

struct WeightSpec {
  std::string name;
  std::vector<int64_t> shape;  // The whole tensor's. Matrices are [outputs, inputs].
  // The part of it that is meant, a rank's or one of several projections'; nothing: all. A vector
  // has rows alone.
  std::optional<IndexRange> rows = std::nullopt;
  std::optional<IndexRange> columns = std::nullopt;
  // The tensor of the scales if this one is stored as FP8; "": it can't be.
  std::string scale = "";
  bool adds_one = false;  // An element is worth 1 more than what is stored.

  int64_t ElementCount() const;  // Elements in the part.
};

// down(activation(gate x) * up x), a dense feed-forward layer or an expert.
struct GatedWeights {
  WeightSpec gate, up;  // [intermediate, hidden]
  WeightSpec down;      // [hidden, intermediate]
  std::optional<WeightSpec> gate_bias, up_bias, down_bias;
};

// Latent attention's projections, without the output's.
struct LatentWeights {
  std::optional<WeightSpec> q_a, q_norm;  // [q_rank, hidden], [q_rank]; if there is a q_rank.
  WeightSpec q;                           // [heads * key_dim, q_rank or hidden]
  WeightSpec kv_a, kv_norm;               // [row, hidden], [kv_rank]
  WeightSpec kv_b;                        // [heads * (nope_dim + value_dim), kv_rank]
};

// One decoder layer. Optional ones follow the configuration's features.
struct LayerWeights {
  WeightSpec input_norm;  // [hidden]
  WeightSpec q, k, v;     // [query_size or kv_size, hidden]
  std::optional<WeightSpec> q_bias, k_bias, v_bias;
  std::optional<WeightSpec> q_norm, k_norm;  // [q_norm_size], [k_norm_size]
  std::optional<LatentWeights> latent;       // Instead of q, k, v and what belongs to them.
  WeightSpec o;                              // [hidden, attended_size]
  std::optional<WeightSpec> o_bias;          // [hidden]
  WeightSpec post_attention_norm;            // [hidden], before the feed-forward layer.
  std::optional<WeightSpec> attention_output_norm, feed_forward_output_norm;  // [hidden]
  std::optional<GatedWeights> mlp;                                            // A dense layer's.
  std::optional<WeightSpec> router;       // A sparse layer's, [experts, hidden], and its experts.
  std::optional<WeightSpec> router_bias;  // [experts]
  std::vector<GatedWeights> experts;
  std::optional<GatedWeights> shared;  // The expert that all tokens go through.

  std::vector<WeightSpec> All() const;
};

LayerWeights LayerWeightsOf(const ModelConfig& config, int layer);
// The rank's parts of it: rows of the projections that its heads and columns come from, columns of
// those that they go into; whole experts. Norms and routers are every rank's. A bias on a sum over
// the ranks is rank 0's.
LayerWeights LayerWeightsOf(const ModelConfig& config, const ModelShard& shard, int layer);
// The rank's rows of an embedding or head.
WeightSpec VocabularyPart(WeightSpec spec, const ModelShard& shard);

// [vocab, hidden]; the first stage's, and also the last stage's head when tied.
WeightSpec EmbeddingWeight(const ModelConfig& config);
WeightSpec FinalNormWeight(const ModelConfig& config);
// lm_head, or the embeddings when tied.
WeightSpec HeadWeight(const ModelConfig& config);

// The tensors that `specs` are parts of, each once and whole. Parts of one stand side by side, as
// in LayerWeights::All.
std::vector<WeightSpec> WholeTensors(std::vector<WeightSpec> specs);

// Everything that the stage of layers [layer_begin, layer_end) reads, each tensor once.
std::vector<WeightSpec> StageWeights(const ModelConfig& config, int layer_begin, int layer_end);

// Blocks of a matrix that have a scale each, those at the edges included.
std::vector<int64_t> Fp8Blocks(const std::vector<int64_t>& shape);

// The scales of a matrix that is stored as FP8: F32, BF16 or F16; one for each block, or, unless
// its name says otherwise (ModelConfig::fp8_scale_suffix), one for each row ([rows] or [rows, 1])
// or one alone.
absl::StatusOr<StoredTensor> FindScales(WeightReader& reader, const WeightSpec& spec);

// Finds `spec` and checks its shape and that it is F32, BF16 or F16, or F8_E4M3 where it may have
// scales; errors name the tensor.
absl::StatusOr<StoredTensor> FindWeight(WeightReader& reader, const WeightSpec& spec);

}  // namespace baton

#endif  // COMMON_MODEL_WEIGHT_NAMES_H_
