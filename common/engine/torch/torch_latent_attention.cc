// TorchStageModel's attention over latent rows.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>

#include "common/engine/torch/torch_stage_model.h"

namespace baton {

// Absorbed, for prefill and decode alike (native/latent_attention.h).
at::Tensor TorchStageModel::LatentAttention(const TorchStep& step, int layer,
                                            const TorchLayer& weights, const at::Tensor& normed) {
  const baton::LatentAttention& latent = config_.latent;
  const int64_t tokens = normed.size(0);
  const int64_t heads = sizes_.num_attention_heads;
  const at::Tensor compressed = at::linear(normed, weights.qkv);
  const int64_t before = compressed.size(1) - latent.row();
  at::Tensor query = compressed.narrow(1, 0, before);
  if (weights.q_b.defined()) {
    query = at::linear(Norm(query, weights.q_norm, baton::LatentAttention::kNormEps), weights.q_b);
  }
  query = query.reshape({tokens, heads, latent.key_dim()});
  const at::Tensor turned = Rotate(
      InHalves(compressed.narrow(1, before + latent.kv_rank, latent.rope_dim).unsqueeze(1)), step);
  const at::Tensor cached = at::cat({Norm(compressed.narrow(1, before, latent.kv_rank),
                                          weights.k_norm, baton::LatentAttention::kNormEps)
                                         .unsqueeze(1),
                                     turned},
                                    -1);
  Pages(layer, 0).transpose(1, 2).index_put_({step.page, step.slot},
                                             cached.to(pages_.scalar_type()));
  // By head: [heads, tokens, nope_dim] times [heads, nope_dim, kv_rank].
  const at::Tensor absorbed = at::matmul(query.narrow(2, 0, latent.nope_dim).transpose(0, 1),
                                         weights.kv_b.narrow(1, 0, latent.nope_dim));
  const at::Tensor positioned =
      Rotate(InHalves(query.narrow(2, latent.nope_dim, latent.rope_dim)), step);
  const at::Tensor attended =
      AttendAll(step, layer, at::cat({absorbed.transpose(0, 1), positioned}, -1), cached, {});
  const at::Tensor values = weights.kv_b.narrow(1, latent.nope_dim, latent.value_dim);
  return at::matmul(attended.view({tokens, heads, latent.kv_rank}).transpose(0, 1),
                    values.transpose(1, 2))
      .transpose(0, 1)
      .reshape({tokens, heads * latent.value_dim});
}

// Pairs (2i, 2i + 1) become pairs (i, i + dim/2), if the model's are such.
at::Tensor TorchStageModel::InHalves(const at::Tensor& heads) const {
  if (!config_.latent.interleaved) return heads;
  return heads.unflatten(-1, {-1, 2}).transpose(-1, -2).flatten(-2);
}

}  // namespace baton
