// The loaded weights of a range of layers, ready to compute with.
#ifndef COMMON_ENGINE_STAGE_WEIGHTS_H_
#define COMMON_ENGINE_STAGE_WEIGHTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/linear.h"
#include "common/engine/weight_conversion.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "common/types/element_type.h"

namespace baton {

// One decoder layer. Projections that read the same input are one matrix.
struct LayerBlock {
  std::vector<float> input_norm;           // [hidden]
  std::unique_ptr<Linear> qkv;             // [query_size + 2 * kv_size, hidden]
  std::vector<float> qkv_bias;             // [query_size + 2 * kv_size], or empty.
  std::vector<float> q_norm, k_norm;       // [head_dim], or empty.
  std::unique_ptr<Linear> o;               // [hidden, query_size]
  std::vector<float> post_attention_norm;  // [hidden]
  std::unique_ptr<Linear> gate_up;         // [2 * intermediate, hidden], gate first.
  std::unique_ptr<Linear> down;            // [hidden, intermediate]
};

struct StageBlocks {
  std::vector<LayerBlock> layers;
  // First stage, unless the head's rows are the embeddings.
  std::unique_ptr<EmbeddingTable> embedding;
  std::vector<float> final_norm;  // Last stage.
  std::unique_ptr<Linear> head;   // Last stage, [vocab, hidden].

  // The embeddings of `tokens`, which are inside the vocabulary: out [tokens.size(), hidden].
  void Embed(std::span<const int32_t> tokens, float* out) const;
};

struct StageToLoad {
  int layer_begin = 0;
  int layer_end = 0;
  ElementType dtype = ElementType::kFloat32;  // How the weights' values are rounded, if at all.
  // Whether a matrix that is stored in another type than bfloat16 may be rounded to it: somebody
  // asked for it, and it did not follow from the checkpoint.
  bool may_round = false;
};

// Reads the layers and what belongs to the ends of the model; each matrix is kept in the type that
// `make_linear` makes it for, norms and biases in float32. Memory beyond the result is bounded by
// one block of rows. InvalidArgument, naming the tensor, where one would have to be rounded and
// must not.
absl::StatusOr<StageBlocks> LoadStage(WeightReader& reader, const ModelConfig& config,
                                      const StageToLoad& stage, const LinearFactory& make_linear,
                                      const std::function<void(double)>& on_progress);

}  // namespace baton

#endif  // COMMON_ENGINE_STAGE_WEIGHTS_H_
