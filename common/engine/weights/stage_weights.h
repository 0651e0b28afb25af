// The loaded weights of a range of layers.
#ifndef COMMON_ENGINE_WEIGHTS_STAGE_WEIGHTS_H_
#define COMMON_ENGINE_WEIGHTS_STAGE_WEIGHTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/weights/linear.h"
#include "common/engine/weights/stage_setup.h"
#include "common/engine/weights/weight_conversion.h"
#include "common/types/instance.h"

namespace baton {

// A vector is empty if the model family does not have it.
using GatedBlock = GatedLayer<std::vector<float>, std::unique_ptr<Linear>>;
// Latent attention in its absorbed form: a query's product with a key is that of keys' [kv_rank,
// nope_dim] times the query with the cached row, and a value is values' [value_dim, kv_rank] times
// the row.
struct HeadBlock {
  std::unique_ptr<HeadLinear> keys, values;
};
using LayerBlock = DecoderLayer<std::vector<float>, std::unique_ptr<Linear>, HeadBlock>;

// One rank's part of the weights. Dimension `hidden` is always the whole model's.
struct StageBlocks {
  int hidden_size = 0;
  float embedding_scale = 1;
  IndexRange vocabulary;  // The tokens whose rows `embedding` and `head` hold.
  std::vector<LayerBlock> layers;
  // First stage only; null if the head's rows are the embeddings.
  std::unique_ptr<EmbeddingTable> embedding;
  std::vector<float> final_norm;  // Last stage.
  std::unique_ptr<Linear> head;   // Last stage, [vocabulary.size(), hidden].

  // Writes the scaled embeddings of `tokens`, which are inside the model's vocabulary, to out
  // [tokens.size(), hidden]. Rows of tokens that other ranks hold become zeros.
  void Embed(std::span<const int32_t> tokens, float* out) const;
};

// Reads the layers, and the embeddings, norm and head that this stage has. Each matrix is kept in
// the type that `make_linear` chooses, norms and biases in float32. FP8 stays FP8 if there is a
// `make_scaled`, and is worth its float32 values else, as it is in what `make_heads` makes. Memory
// beyond the result is bounded by one block of rows. InvalidArgument names a tensor that would have
// to be rounded but must not.
absl::StatusOr<StageBlocks> LoadStage(StageSetup& stage, const LinearFactory& make_linear,
                                      const ScaledLinearFactory& make_scaled,
                                      const HeadLinearFactory& make_heads,
                                      const std::function<void(double)>& on_progress);

}  // namespace baton

#endif  // COMMON_ENGINE_WEIGHTS_STAGE_WEIGHTS_H_
