// Which part of every layer one tensor-parallel rank computes, as Megatron-LM cuts a transformer
// (arXiv:1909.08053, section 3): query, key and value heads and feed-forward columns are dealt out
// in runs, so that a rank's attention and its gated layer need no other rank; the projections
// behind them have the same columns and give partial sums, one of each a layer. Experts are dealt
// out whole, in runs whose lengths differ by at most one: every rank routes all tokens, and the sum
// that a dense layer needs joins what the ranks' experts add. An expert that all tokens share is
// cut as a dense layer is. Embeddings and head are cut along the vocabulary.
//
// A rank beyond the KV heads shares one with its neighbours: every rank whose queries read a KV
// head computes it, since keys and values are a sliver of a layer and sending them is not. So every
// rank has the rows of latent attention.
#ifndef COMMON_MODEL_MODEL_SHARD_H_
#define COMMON_MODEL_MODEL_SHARD_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/types/instance.h"

namespace baton {

struct ModelShard {
  TensorRank rank;
  // This rank's parts of the whole model.
  IndexRange query_heads;
  IndexRange kv_heads;
  IndexRange inner;    // Columns of dense feed-forward layers; none if there are no such layers.
  IndexRange experts;  // In every sparse layer.
  IndexRange shared;   // Columns of every sparse layer's shared expert.
  IndexRange vocabulary;
  // The model as this rank computes it: its own counts of heads, columns, tokens and held experts,
  // and all else the model's.
  ModelConfig sizes;
};

// InvalidArgument with the field "tp_rank" for a rank that there is not, and "tp_size" for a size
// that does not divide the model, with both numbers. Rejected for vocabularies: padding. It would
// help no model in use, as 8 divides all their vocabularies, and every sampler would have to skip
// the padding's logits.
absl::StatusOr<ModelShard> ShardModel(const ModelConfig& config, TensorRank rank);

// InvalidArgument with the field "tp_size" unless each of `size` ranks can send its own part of the
// activations.
absl::Status CheckActivationSlices(const ModelConfig& config, int size);

}  // namespace baton

#endif  // COMMON_MODEL_MODEL_SHARD_H_
