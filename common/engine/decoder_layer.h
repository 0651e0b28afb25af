// The weights of one decoder layer, and their reading, whatever holds them: the one place that says
// which projections are stacked.
#ifndef COMMON_ENGINE_DECODER_LAYER_H_
#define COMMON_ENGINE_DECODER_LAYER_H_

#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "common/model/weight_names.h"

namespace baton {

// Projections that read the same input are one matrix. A vector that the family does not have is a
// default `Vector`.
template <typename Vector, typename Matrix>
struct DecoderLayer {
  Vector input_norm;           // [hidden]
  Matrix qkv;                  // [query_size + 2 * kv_size, hidden]
  Vector qkv_bias;             // [query_size + 2 * kv_size]
  Vector q_norm, k_norm;       // [head_dim]
  Matrix o;                    // [hidden, query_size]
  Vector post_attention_norm;  // [hidden]
  Matrix gate_up;              // [2 * intermediate, hidden], gate first.
  Matrix down;                 // [hidden, intermediate]
};

// `loader` has, for tensors one behind the other (matrices: one below the other, with as many
// columns):
//   absl::StatusOr<Vector> Vectors(const std::vector<std::optional<WeightSpec>>&), a default one if
//       the family has none of them;
//   absl::StatusOr<Matrix> Matrices(const std::vector<WeightSpec>&).
template <typename Layer, typename Loader>
absl::StatusOr<Layer> LoadDecoderLayer(const LayerWeights& weights, Loader& loader) {
  Layer layer;
  BATON_ASSIGN_OR_RETURN(layer.input_norm, loader.Vectors({weights.input_norm}));
  BATON_ASSIGN_OR_RETURN(layer.qkv, loader.Matrices({weights.q, weights.k, weights.v}));
  BATON_ASSIGN_OR_RETURN(layer.qkv_bias,
                         loader.Vectors({weights.q_bias, weights.k_bias, weights.v_bias}));
  BATON_ASSIGN_OR_RETURN(layer.q_norm, loader.Vectors({weights.q_norm}));
  BATON_ASSIGN_OR_RETURN(layer.k_norm, loader.Vectors({weights.k_norm}));
  BATON_ASSIGN_OR_RETURN(layer.o, loader.Matrices({weights.o}));
  BATON_ASSIGN_OR_RETURN(layer.post_attention_norm, loader.Vectors({weights.post_attention_norm}));
  BATON_ASSIGN_OR_RETURN(layer.gate_up, loader.Matrices({weights.gate, weights.up}));
  BATON_ASSIGN_OR_RETURN(layer.down, loader.Matrices({weights.down}));
  return layer;
}

}  // namespace baton

#endif  // COMMON_ENGINE_DECODER_LAYER_H_
