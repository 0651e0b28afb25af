// The loaded weights of a range of layers, ready to compute with.
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
#include "common/types/tensor_rank.h"

namespace baton {

// Vectors are empty where the family has none.
using LayerBlock = DecoderLayer<std::vector<float>, std::unique_ptr<Linear>>;

// A rank's part of each, which are [.., hidden] or [hidden, ..] of the whole model's hidden size.
struct StageBlocks {
  int hidden_size = 0;
  IndexRange vocabulary;  // The tokens that `embedding` and `head` have rows of.
  std::vector<LayerBlock> layers;
  // First stage, unless the head's rows are the embeddings.
  std::unique_ptr<EmbeddingTable> embedding;
  std::vector<float> final_norm;  // Last stage.
  std::unique_ptr<Linear> head;   // Last stage, [vocabulary.size(), hidden].

  // The embeddings of `tokens`, which are inside the model's vocabulary: out [tokens.size(),
  // hidden]; zeros for those that other ranks have.
  void Embed(std::span<const int32_t> tokens, float* out) const;
};

// Reads the layers and what belongs to the ends of the model; each matrix is kept in the type that
// `make_linear` makes it for, norms and biases in float32. Memory beyond the result is bounded by
// one block of rows. InvalidArgument, naming the tensor, where one would have to be rounded and
// must not.
absl::StatusOr<StageBlocks> LoadStage(StageSetup& stage, const LinearFactory& make_linear,
                                      const std::function<void(double)>& on_progress);

}  // namespace baton

#endif  // COMMON_ENGINE_WEIGHTS_STAGE_WEIGHTS_H_
