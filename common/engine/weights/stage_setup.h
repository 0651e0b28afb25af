// What every stage model knows before it reads a weight: checked options, sizes, element types,
// page geometry, and which projections of a layer are stacked. Needs no torch.
#ifndef COMMON_ENGINE_WEIGHTS_STAGE_SETUP_H_
#define COMMON_ENGINE_WEIGHTS_STAGE_SETUP_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "common/engine/kv_memory.h"
#include "common/engine/stage_model.h"
#include "common/model/model_config.h"
#include "common/model/model_shard.h"
#include "common/model/safetensors.h"
#include "common/model/weight_names.h"
#include "common/model/weight_part.h"
#include "common/types/kv_layout.h"

namespace baton {

// What a rank of a stage has of a model.
struct StagePart {
  ModelShard shard;
  KvGeometry kv;  // But for the type of its elements.
};
// Checks the options' sizes and layers against the model.
absl::StatusOr<StagePart> PartOf(const ExecutorOptions& options, const ModelConfig& config);

struct StageSetup {
  ModelConfig config;  // The whole model's.
  ModelShard shard;    // The part of it that this rank computes.
  WeightReader weights;
  ElementType dtype;  // The type to which the weights' values are rounded, if at all.
  // Whether a matrix that is stored in another type may be rounded to bfloat16: only if an option
  // asks for it, not if `dtype` follows from the checkpoint.
  bool may_round;
  KvGeometry kv;

  bool first_stage() const { return kv.layer_begin == 0; }
  bool last_stage() const { return kv.layer_end == config.num_hidden_layers; }

  // The factor of embeddings, in the type that they are computed in.
  float EmbeddingScale() const;

  // The number of elements in this rank's part of the layers, without embeddings, final norm and
  // head.
  int64_t LayerElements() const;

  // The stored part of a matrix or of a vector. InvalidArgument names a matrix that would have to
  // be rounded but must not; otherwise FindWeight's errors.
  absl::StatusOr<StoredPart> FindMatrix(const WeightSpec& spec);
  absl::StatusOr<StoredPart> FindVector(const WeightSpec& spec);
};

// Checks the options' sizes and layers against the model. Allocates nothing by them. Compares no
// tensor shapes yet, except for the embeddings'.
absl::StatusOr<StageSetup> SetUpStage(const ExecutorOptions& options);

// The weights of one decoder layer, for any backend. Projections with the same input are stacked
// into one matrix. A vector that the model family does not have is a default `Vector`.
template <typename Vector, typename Matrix>
struct GatedLayer {
  Matrix gate_up;       // [2 * intermediate, hidden], gate first.
  Vector gate_up_bias;  // [2 * intermediate]
  Matrix down;          // [hidden, intermediate]
  Vector down_bias;     // [hidden]
};

// `Heads` is what a backend makes of the projection that has the keys and values of all heads
// (LatentWeights::kv_b).
template <typename Vector, typename Matrix, typename Heads>
struct DecoderLayer {
  Vector input_norm;  // [hidden]
  // [query_size + 2 * kv_size, hidden]. With latent attention what it computes of the residual
  // stream: [q_rank + row, hidden], or queries in place of the q_rank.
  Matrix qkv;
  Vector qkv_bias;             // [query_size + 2 * kv_size]
  Vector q_norm, k_norm;       // By head or whole; with latent attention [q_rank] and [kv_rank].
  Matrix q_b;                  // [heads * key_dim, q_rank]; if latent attention has a q_rank.
  Heads kv_b;                  // Latent attention's.
  Matrix o;                    // [hidden, attended_size]
  Vector o_bias;               // [hidden]
  Vector post_attention_norm;  // [hidden]
  Vector attention_output_norm, feed_forward_output_norm;  // [hidden]
  bool sparse = false;
  GatedLayer<Vector, Matrix> mlp;                   // A dense layer's.
  Matrix router;                                    // A sparse layer's, [experts, hidden].
  Vector router_bias;                               // [experts]
  std::vector<GatedLayer<Vector, Matrix>> experts;  // Those that this rank holds, in order.
  std::optional<GatedLayer<Vector, Matrix>> shared;
};

// `loader` must have, for tensors that are concatenated (matrices: stacked, with equally many
// columns):
//   absl::StatusOr<Vector> Vectors(const std::vector<std::optional<WeightSpec>>&); a default Vector
//       if the family has none of them
//   absl::StatusOr<Matrix> Matrices(const std::vector<WeightSpec>&)
//   absl::StatusOr<Vector> RouterBias(const std::optional<WeightSpec>&), in float32
//   absl::StatusOr<Heads> ByHead(const WeightSpec& kv_b)
template <typename Gated, typename Loader>
absl::StatusOr<Gated> LoadGatedLayer(const GatedWeights& weights, Loader& loader) {
  Gated layer;
  BATON_ASSIGN_OR_RETURN(layer.gate_up, loader.Matrices({weights.gate, weights.up}));
  BATON_ASSIGN_OR_RETURN(layer.gate_up_bias, loader.Vectors({weights.gate_bias, weights.up_bias}));
  BATON_ASSIGN_OR_RETURN(layer.down, loader.Matrices({weights.down}));
  BATON_ASSIGN_OR_RETURN(layer.down_bias, loader.Vectors({weights.down_bias}));
  return layer;
}

template <typename Layer, typename Loader>
absl::Status LoadLatent(const LatentWeights& weights, Loader& loader, Layer& layer) {
  BATON_ASSIGN_OR_RETURN(layer.qkv,
                         loader.Matrices({weights.q_a.value_or(weights.q), weights.kv_a}));
  if (weights.q_a.has_value()) {
    BATON_ASSIGN_OR_RETURN(layer.q_b, loader.Matrices({weights.q}));
  }
  BATON_ASSIGN_OR_RETURN(layer.q_norm, loader.Vectors({weights.q_norm}));
  BATON_ASSIGN_OR_RETURN(layer.k_norm, loader.Vectors({weights.kv_norm}));
  BATON_ASSIGN_OR_RETURN(layer.kv_b, loader.ByHead(weights.kv_b));
  return absl::OkStatus();
}

template <typename Layer, typename Loader>
absl::StatusOr<Layer> LoadDecoderLayer(const LayerWeights& weights, Loader& loader) {
  Layer layer;
  BATON_ASSIGN_OR_RETURN(layer.input_norm, loader.Vectors({weights.input_norm}));
  if (weights.latent.has_value()) {
    BATON_RETURN_IF_ERROR(LoadLatent(*weights.latent, loader, layer));
  } else {
    BATON_ASSIGN_OR_RETURN(layer.qkv, loader.Matrices({weights.q, weights.k, weights.v}));
    BATON_ASSIGN_OR_RETURN(layer.qkv_bias,
                           loader.Vectors({weights.q_bias, weights.k_bias, weights.v_bias}));
    BATON_ASSIGN_OR_RETURN(layer.q_norm, loader.Vectors({weights.q_norm}));
    BATON_ASSIGN_OR_RETURN(layer.k_norm, loader.Vectors({weights.k_norm}));
  }
  BATON_ASSIGN_OR_RETURN(layer.o, loader.Matrices({weights.o}));
  BATON_ASSIGN_OR_RETURN(layer.o_bias, loader.Vectors({weights.o_bias}));
  BATON_ASSIGN_OR_RETURN(layer.post_attention_norm, loader.Vectors({weights.post_attention_norm}));
  BATON_ASSIGN_OR_RETURN(layer.attention_output_norm,
                         loader.Vectors({weights.attention_output_norm}));
  BATON_ASSIGN_OR_RETURN(layer.feed_forward_output_norm,
                         loader.Vectors({weights.feed_forward_output_norm}));
  using Gated = decltype(layer.mlp);
  layer.sparse = weights.router.has_value();
  if (!layer.sparse) {
    BATON_ASSIGN_OR_RETURN(layer.mlp, LoadGatedLayer<Gated>(*weights.mlp, loader));
    return layer;
  }
  BATON_ASSIGN_OR_RETURN(layer.router, loader.Matrices({*weights.router}));
  BATON_ASSIGN_OR_RETURN(layer.router_bias, loader.RouterBias(weights.router_bias));
  for (const GatedWeights& expert : weights.experts) {
    BATON_ASSIGN_OR_RETURN(layer.experts.emplace_back(), LoadGatedLayer<Gated>(expert, loader));
  }
  if (weights.shared.has_value()) {
    BATON_ASSIGN_OR_RETURN(layer.shared, LoadGatedLayer<Gated>(*weights.shared, loader));
  }
  return layer;
}

}  // namespace baton

#endif  // COMMON_ENGINE_WEIGHTS_STAGE_SETUP_H_
