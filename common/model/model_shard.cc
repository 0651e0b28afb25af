#include "common/model/model_shard.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton {
namespace {

absl::Status CheckDivides(int size, int count, std::string_view what) {
  if (count % size == 0) return absl::OkStatus();
  return InvalidField("tp_size", absl::StrCat("is ", size, ", which does not divide the model's ",
                                              count, " ", what.data()));
}

// Part `rank` of `count` things.
IndexRange PartOf(int count, TensorRank rank) {
  const int part = count / rank.size;
  return {rank.rank * part, (rank.rank + 1) * part};
}

// The same where size need not divide the count: the first ranks have one more.
IndexRange RunOf(int count, TensorRank rank) {
  const auto begin = [&](int of) {
    return of * (count / rank.size) + std::min(of, count % rank.size);
  };
  return {begin(rank.rank), begin(rank.rank + 1)};
}

}  // namespace

absl::StatusOr<ModelShard> ShardModel(const ModelConfig& config, TensorRank rank) {
  if (rank.size < 1) {
    return InvalidField("tp_size", absl::StrCat("must be positive, is ", rank.size));
  }
  if (rank.rank < 0 || rank.rank >= rank.size) {
    return InvalidField("tp_rank", absl::StrCat("is ", rank.rank, ", must be one of the ",
                                                rank.size, " ranks from 0"));
  }
  const int kv_heads = config.num_key_value_heads;
  BATON_RETURN_IF_ERROR(CheckDivides(rank.size, config.num_attention_heads, "attention heads"));
  if (rank.size % kv_heads != 0) {
    BATON_RETURN_IF_ERROR(CheckDivides(rank.size, kv_heads, "key-value heads (nor is divided by)"));
  }
  const int layers = config.num_hidden_layers;
  const bool has_dense = config.experts.count == 0 || config.SparseLayers(0, layers) < layers;
  if (has_dense) {
    BATON_RETURN_IF_ERROR(CheckDivides(rank.size, config.intermediate_size,
                                       "columns of the feed-forward layers (intermediate_size)"));
  }
  if (config.experts.count > 0 && rank.size > config.experts.count) {
    return InvalidField("tp_size", absl::StrCat("is ", rank.size, ", more than the model's ",
                                                config.experts.count, " experts"));
  }
  BATON_RETURN_IF_ERROR(
      CheckDivides(rank.size, config.experts.shared_inner, "columns of the shared experts"));
  BATON_RETURN_IF_ERROR(CheckDivides(rank.size, config.vocab_size, "tokens (vocab_size)"));

  ModelShard shard;
  shard.rank = rank;
  shard.query_heads = PartOf(config.num_attention_heads, rank);
  shard.kv_heads = KvHeadsOf(kv_heads, rank);
  if (has_dense) shard.inner = PartOf(config.intermediate_size, rank);
  shard.experts = RunOf(config.experts.count, rank);
  shard.shared = PartOf(config.experts.shared_inner, rank);
  shard.vocabulary = PartOf(config.vocab_size, rank);
  shard.sizes = config;
  shard.sizes.num_attention_heads = shard.query_heads.size();
  shard.sizes.num_key_value_heads = shard.kv_heads.size();
  shard.sizes.intermediate_size = shard.inner.size();
  shard.sizes.experts.held = shard.experts.size();
  shard.sizes.experts.shared_inner = shard.shared.size();
  shard.sizes.vocab_size = shard.vocabulary.size();
  return shard;
}

absl::Status CheckActivationSlices(const ModelConfig& config, int size) {
  return CheckDivides(size, config.hidden_size, "columns of activations (hidden_size)");
}

}  // namespace baton
