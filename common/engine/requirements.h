// What executors on the CPU take and what they will hold in memory, from plain numbers: they refuse
// by these checks, and whoever plans a cluster asks the same functions before any weight is read.
// Needs neither weights nor torch.
#ifndef COMMON_ENGINE_REQUIREMENTS_H_
#define COMMON_ENGINE_REQUIREMENTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "common/types/element_type.h"
#include "common/types/kv_layout.h"

namespace baton {

// Rows that pass through a layer together: enough to read each weight seldom, few enough for the
// scratch to stay in the second-level cache. A multiple of every table's register tile.
inline constexpr int kRowBlock = 192;

// Rows of logits that are there at once when a prompt wants all of them: 20 MB at a vocabulary of
// 152K, and enough for the head's weights to be read seldom.
inline constexpr int kLogitRows = 32;

// Of one thread's Sampler, for each token of the vocabulary: a float (adjusted logits) beside what
// TokenWeights says of itself.
inline constexpr int64_t kSamplerTokenBytes = 22;

// Scores that libtorch's attention holds at once, whatever the lengths: 256 MB of float32.
inline constexpr int64_t kTorchScoreElements = int64_t{1} << 26;

inline constexpr int kMaxThreads = 256;

// Unimplemented for a head_dim that the kernels don't take.
absl::Status CheckModelRuns(const ModelConfig& config);

// InvalidArgument with the field "page_size" or "threads".
absl::Status CheckExecutorSizes(int64_t page_size, int64_t threads);

// An executor as it will be, all that its memory depends on.
struct ExecutorShape {
  LayerRange layers;
  ElementType matrices = ElementType::kFloat32;
  ElementType activations = ElementType::kFloat32;  // Between stages.
  ElementType kv = ElementType::kFloat32;
  int embedding_element_bytes = 2;  // Where they are not the head's rows.
  int64_t page_size = 64;           // Tokens.
  int64_t page_count = 0;
  int64_t batch_tokens = 0;    // Of the largest Forward.
  int64_t context_tokens = 0;  // Of the longest sequence; only libtorch's footprint asks.
  bool all_logits = false;     // A slice may want those of all its tokens.
};

// Bytes; each saturates at 2^60.
struct ExecutorFootprint {
  int64_t weights = 0;       // Packed matrices, norms, biases; the embeddings.
  int64_t kv_per_token = 0;  // In all of the shape's layers.
  int64_t kv = 0;            // All pages.
  int64_t scratch = 0;       // Of Forward: one row block, and what grows with the batch.
};

// `config` has passed CheckModelRuns and the layers are a range of its own.
ExecutorFootprint FootprintOf(const ModelConfig& config, const ExecutorShape& shape);

// The same of libtorch's layers (torch/torch_stage_model.h): nothing is packed, and what an
// operator gives is as large as the batch.
ExecutorFootprint TorchFootprintOf(const ModelConfig& config, const ExecutorShape& shape);

}  // namespace baton

#endif  // COMMON_ENGINE_REQUIREMENTS_H_
