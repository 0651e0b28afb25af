// What executors on the CPU accept and how much memory they will hold, computed from plain numbers.
// Executors check their options with these functions, and preflight and planning call them before
// any weight is read. Needs neither weights nor torch.
#ifndef COMMON_ENGINE_REQUIREMENTS_H_
#define COMMON_ENGINE_REQUIREMENTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "common/types/kv_layout.h"

namespace baton {

// Rows that pass through a layer together: enough to read each weight rarely, few enough for the
// scratch to stay in the second-level cache. A multiple of the register tile of every kernel table.
inline constexpr int kRowBlock = 192;

// Rows that pass through a sparse layer together. Each expert gets a few of them, so that there are
// more: with 8 of 128 experts a token, an expert's weights are read once for 128 rows.
inline constexpr int kSparseRows = 2048;

// Rows of one head that pass through latent attention together on one thread, of several heads if
// there are fewer rows: they share the reading of the keys.
inline constexpr int kLatentRows = 768;

// Rows of logits that exist at once when a prompt wants all of them: 20 MB at a vocabulary of 152K,
// and enough to read the head's weights rarely.
inline constexpr int kLogitRows = 32;

// Bytes that one thread's Sampler holds for each token of the vocabulary: a float (adjusted logits)
// and TokenWeights' own 18 bytes.
inline constexpr int64_t kSamplerTokenBytes = 22;

// What libtorch's attention holds at once, for any length: scores; keys, and values, that single
// tokens gather, and how many times as many on a GPU; keys that a chunk's rows are multiplied by,
// and those that a GPU's own operator reads at once.
inline constexpr int64_t kTorchScoreElements = int64_t{1} << 22;
inline constexpr int64_t kTorchGatherElements = int64_t{1} << 20;
inline constexpr int64_t kTorchDeviceGathers = 16;
inline constexpr int64_t kTorchKeyBlock = 1024;
inline constexpr int64_t kTorchFlashKeys = 32768;
// Rows of experts, one for each route of a token, that a GPU multiplies together.
inline constexpr int64_t kTorchGroupedRows = 32768;
// Floats for each logit that a GPU draws a token from: mostly weights, ranks and sums of 64 bits.
inline constexpr int64_t kTorchDrawFloats = 14;

inline constexpr int kMaxThreads = 256;

// Unimplemented for a head_dim, or a latent row, that the kernels don't support.
absl::Status CheckModelRuns(const ModelConfig& config);

// InvalidArgument with the field "page_size" or "threads".
absl::Status CheckExecutorSizes(int64_t page_size, int64_t threads);

// What an executor's memory depends on.
struct ExecutorShape {
  LayerRange layers;
  ElementType matrices = ElementType::kFloat32;
  bool keeps_fp8 = true;                            // Whether FP8 matrices stay FP8 instead.
  ElementType activations = ElementType::kFloat32;  // Between stages.
  ElementType kv = ElementType::kFloat32;
  int embedding_element_bytes = 2;  // Unless the embeddings are the head's rows.
  int64_t page_size = 64;           // Tokens.
  int64_t page_count = 0;
  int64_t batch_tokens = 0;    // In the largest Forward.
  int64_t context_tokens = 0;  // In the longest sequence; for libtorch's footprint only.
  int64_t threads = 1;
  bool on_gpu = false;      // Likewise.
  bool all_logits = false;  // Whether a slice may want the logits of all its tokens.
};

// Bytes; each saturates at 2^60.
struct ExecutorFootprint {
  int64_t weights = 0;       // Packed matrices, norms, biases; the embeddings.
  int64_t kv_per_token = 0;  // In all of the shape's layers.
  int64_t kv = 0;            // All pages.
  int64_t scratch = 0;       // Forward's: one row block, and what grows with the batch.
};

// `config` must have passed CheckModelRuns, and the layers must be a range of its layers.
ExecutorFootprint FootprintOf(const ModelConfig& config, const ExecutorShape& shape);

// The same for libtorch's layers (torch/torch_stage_model.h): nothing is packed, and the result of
// an operator is as large as the batch.
ExecutorFootprint TorchFootprintOf(const ModelConfig& config, const ExecutorShape& shape);

}  // namespace baton

#endif  // COMMON_ENGINE_REQUIREMENTS_H_
