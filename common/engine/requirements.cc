#include "common/engine/requirements.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/engine/kernels/kernels.h"

namespace baton {
namespace {

using Wide = __int128;

constexpr Wide kFloatBytes = 4;

int64_t Saturated(Wide bytes) { return static_cast<int64_t>(std::min(bytes, Wide{1} << 60)); }

Wide Bytes(ElementType type) { return static_cast<Wide>(ElementBytes(type)); }

// Bytes of a matrix in panels; the last panel is padded.
Wide PackedBytes(int64_t outputs, int64_t inputs, ElementType type) {
  const int64_t width = kernels::FindKernels("")->panel_width;
  return Wide{(outputs + width - 1) / width} * width * inputs * Bytes(type);
}

// The same of a layer's projections, which may be FP8: a byte for each element, and scales.
struct Projections {
  ElementType type;
  bool fp8;

  Wide Bytes(int64_t outputs, int64_t inputs) const {
    if (!fp8) return PackedBytes(outputs, inputs, type);
    const int64_t width = kernels::FindKernels("")->panel_width;
    const int64_t blocks = (inputs + kFp8Block - 1) / kFp8Block;
    return Wide{(outputs + width - 1) / width} * width * (inputs + blocks * kFloatBytes);
  }
  Wide Gated(int64_t hidden, int64_t inner) const {
    return Bytes(2 * inner, hidden) + Bytes(hidden, inner);
  }
};

// What attention reads, without the output projection. kv_b is kept for each head, its part for
// keys transposed, and FP8 as float32.
Wide AttentionBytes(const ModelConfig& config, const Projections& of) {
  const int64_t hidden = config.hidden_size;
  const LatentAttention& latent = config.latent;
  if (latent.kv_rank == 0) {
    const int64_t qkv = int64_t{config.query_size()} + 2 * int64_t{config.kv_size()};
    const int64_t bias = (config.qkv_bias ? qkv : 0) + (config.o_bias ? hidden : 0);
    const int64_t norms = int64_t{config.q_norm_size()} + config.k_norm_size();
    return of.Bytes(qkv, hidden) + (bias + norms) * kFloatBytes;
  }
  const int64_t queries = int64_t{config.num_attention_heads} * latent.key_dim();
  const int64_t from_hidden = latent.q_rank > 0 ? latent.q_rank : queries;
  const ElementType by_head = of.fp8 ? ElementType::kFloat32 : of.type;
  return of.Bytes(from_hidden + latent.row(), hidden) +
         (latent.q_rank > 0 ? of.Bytes(queries, latent.q_rank) : 0) +
         Wide{config.num_attention_heads} *
             (PackedBytes(latent.kv_rank, latent.nope_dim, by_head) +
              PackedBytes(latent.value_dim, latent.kv_rank, by_head)) +
         (latent.q_rank + latent.kv_rank) * kFloatBytes;
}

Wide LayerBytes(const ModelConfig& config, const ExecutorShape& shape) {
  const LayerRange layers = shape.layers;
  const Projections of{shape.matrices, config.fp8 && shape.keeps_fp8};
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  const Wide shared = AttentionBytes(config, of) + of.Bytes(hidden, config.attended_size()) +
                      Wide{config.output_norms ? 4 : 2} * hidden * kFloatBytes;
  const Wide dense =
      of.Gated(hidden, inner) + (config.mlp_bias ? 2 * inner + hidden : 0) * kFloatBytes;
  const Experts& experts = config.experts;
  const Wide sparse = PackedBytes(experts.count, hidden, shape.matrices) +
                      (experts.bias ? experts.count : 0) * kFloatBytes +
                      experts.held * of.Gated(hidden, experts.inner) +
                      of.Gated(hidden, experts.shared_inner);
  const int64_t sparse_layers = config.SparseLayers(layers.begin, layers.end);
  return layers.size() * shared + (layers.size() - sparse_layers) * dense + sparse_layers * sparse;
}

// The widest of the layers' gated layers.
int64_t InnerColumns(const ModelConfig& config) {
  return std::max({config.intermediate_size, config.experts.inner, config.experts.shared_inner});
}

// What a sparse layer holds beside the buffers of every layer: the rows, what is added to them,
// their scores and which experts they go to; and one expert's rows.
Wide SparseScratchBytes(const ModelConfig& config, const ExecutorShape& shape) {
  if (config.SparseLayers(shape.layers.begin, shape.layers.end) == 0) return 0;
  const Wide row =
      2 * Wide{config.hidden_size} + config.experts.count + 5 * Wide{config.experts.active};
  const Wide rows = std::min<Wide>(shape.batch_tokens, kSparseRows);
  return (row * rows + 2 * Wide{config.hidden_size} * kRowBlock) * kFloatBytes;
}

Wide WeightBytes(const ModelConfig& config, const ExecutorShape& shape) {
  const Wide vocabulary = Wide{config.vocab_size} * config.hidden_size;
  const bool first = shape.layers.begin == 0;
  const bool last = shape.layers.end == config.num_hidden_layers;
  Wide bytes = LayerBytes(config, shape);
  // Tied embeddings are the head's rows where both are here.
  const bool shared = last && config.tie_word_embeddings;
  if (first && !shared) bytes += vocabulary * shape.embedding_element_bytes;
  if (last) {
    bytes += PackedBytes(config.vocab_size, config.hidden_size, shape.matrices);
    bytes += config.hidden_size * kFloatBytes;
  }
  return bytes;
}

// Columns of attention's buffers for a block of rows.
Wide AttentionColumns(const ModelConfig& config) {
  const LatentAttention& latent = config.latent;
  if (latent.kv_rank == 0) return 2 * Wide{config.query_size()} + 2 * Wide{config.kv_size()};
  const Wide queries = Wide{config.num_attention_heads} * latent.key_dim();
  return config.hidden_size + queries + (latent.q_rank > 0 ? 2 * Wide{latent.q_rank} : queries) +
         latent.row() + config.attended_size();
}

Wide ScratchBytes(const ModelConfig& config, const ExecutorShape& shape) {
  const Wide block_columns =
      2 * Wide{config.hidden_size} + AttentionColumns(config) + 3 * Wide{InnerColumns(config)};
  const Wide by_thread =
      config.latent.kv_rank == 0
          ? 0
          : Wide{shape.threads} * kLatentRows * (config.latent.row() + config.latent.kv_rank) +
                Wide{shape.threads} * kRowBlock *
                    std::max(config.latent.nope_dim, config.latent.kv_rank);
  // Per token: cosines and sines, its RowPlace, and the residual stream unless it is computed in
  // the memory of the activations that are sent on.
  const int ropes = config.sliding_rope_theta > 0 ? 2 : 1;
  Wide token = ropes * Wide{config.rope_dim()} * kFloatBytes + 8;
  Wide logits = 0;
  const bool last = shape.layers.end == config.num_hidden_layers;
  if (last || shape.activations != ElementType::kFloat32) token += config.hidden_size * kFloatBytes;
  if (last && shape.all_logits) logits = Wide{kLogitRows} * config.vocab_size * kFloatBytes;
  return (block_columns * kRowBlock + by_thread) * kFloatBytes + SparseScratchBytes(config, shape) +
         token * shape.batch_tokens + logits;
}

// The memory of the pages; the same for every backend.
ExecutorFootprint PagesOf(const ModelConfig& config, const ExecutorShape& shape) {
  const Wide token =
      Wide{config.kv_planes} * config.kv_size() * shape.layers.size() * Bytes(shape.kv);
  ExecutorFootprint footprint;
  footprint.kv_per_token = Saturated(token);
  footprint.kv = Saturated(token * shape.page_size * shape.page_count);
  return footprint;
}

}  // namespace

absl::Status CheckModelRuns(const ModelConfig& config) {
  const LatentAttention& latent = config.latent;
  if (config.head_dim % kernels::kKeyTile == 0 && config.head_dim <= kernels::kMaxHeadDim &&
      latent.kv_rank % kernels::kKeyTile == 0) {
    return absl::OkStatus();
  }
  if (latent.kv_rank > 0) {
    return absl::UnimplementedError(absl::StrCat(
        "config.json: \"kv_lora_rank\" is ", latent.kv_rank, " and \"qk_rope_head_dim\" is ",
        latent.rope_dim, "; supported are multiples of ", kernels::kKeyTile, ", together up to ",
        kernels::kMaxHeadDim));
  }
  return absl::UnimplementedError(absl::StrCat("config.json: \"head_dim\" is ", config.head_dim,
                                               "; supported are multiples of ", kernels::kKeyTile,
                                               " up to ", kernels::kMaxHeadDim));
}

absl::Status CheckExecutorSizes(int64_t page_size, int64_t threads) {
  if (page_size <= 0 || page_size % kernels::kKeyTile != 0) {
    return InvalidField("page_size", absl::StrCat("must be a positive multiple of ",
                                                  kernels::kKeyTile, ", is ", page_size));
  }
  if (threads < 1 || threads > kMaxThreads) {
    return InvalidField("threads",
                        absl::StrCat("must be between 1 and ", kMaxThreads, ", is ", threads));
  }
  return absl::OkStatus();
}

ExecutorFootprint FootprintOf(const ModelConfig& config, const ExecutorShape& shape) {
  ExecutorFootprint footprint = PagesOf(config, shape);
  footprint.weights = Saturated(WeightBytes(config, shape));
  footprint.scratch = Saturated(ScratchBytes(config, shape));
  return footprint;
}

ExecutorFootprint TorchFootprintOf(const ModelConfig& config, const ExecutorShape& shape) {
  ExecutorFootprint footprint = PagesOf(config, shape);
  const Wide vocabulary = Wide{config.vocab_size} * config.hidden_size;
  const bool first = shape.layers.begin == 0;
  const bool last = shape.layers.end == config.num_hidden_layers;
  Wide elements = config.LayerParameters(shape.layers.begin, shape.layers.end);
  if (first) elements += vocabulary;
  if (last && !(first && config.tie_word_embeddings)) elements += vocabulary;
  if (last) elements += config.hidden_size;
  footprint.weights = Saturated(elements * Bytes(shape.matrices));
  // The widest set of tensors that a layer holds at once: the residual stream and its float32
  // copies, and either queries, keys and values, or the two halves of the gated layer and their
  // product.
  const Wide width = std::max<Wide>(3 * Wide{config.query_size()} + 2 * Wide{config.kv_size()},
                                    4 * Wide{InnerColumns(config)});
  const Wide token = 4 * Wide{config.hidden_size} + width + config.head_dim +
                     2 * Wide{config.attended_size()};  // Sums of blocks of keys.
  // Scores, masked scores and their softmax; keys and values of pages.
  const Wide scores =
      std::min(Wide{kTorchScoreElements},
               Wide{config.num_attention_heads} * shape.batch_tokens * shape.context_tokens);
  const Wide gathered =
      shape.on_gpu ? Wide{kTorchGatherElements} * kTorchDeviceGathers : Wide{kTorchGatherElements};
  Wide scratch = token * shape.batch_tokens + 3 * scores +
                 3 * std::max(gathered, Wide{config.kv_size()} * shape.page_size);
  // The router's scores and their softmax; an expert's rows and what it adds to all rows.
  if (config.experts.count > 0) {
    scratch += (2 * Wide{config.experts.count} + 3 * Wide{config.hidden_size}) * shape.batch_tokens;
    // With grouped products: rows, what comes in and goes out of each product, and the outputs in
    // the order of tokens, all in bfloat16.
    const Wide routes =
        std::min(Wide{kTorchGroupedRows}, Wide{config.experts.active} * shape.batch_tokens);
    const Wide columns = 3 * Wide{config.hidden_size} + 4 * Wide{config.experts.inner};
    if (shape.on_gpu) scratch += routes * columns / 2;
  }
  if (last && shape.all_logits) scratch += 2 * Wide{kLogitRows} * config.vocab_size;
  // What draws take is free while layers are computed.
  const Wide draws = Wide{kTorchDrawFloats} * kLogitRows * config.vocab_size;
  if (last && shape.on_gpu) scratch = std::max(scratch, draws);
  footprint.scratch = Saturated(scratch * kFloatBytes);
  return footprint;
}

}  // namespace baton
