// What an executor is made from.
#ifndef COMMON_ENGINE_EXECUTOR_OPTIONS_H_
#define COMMON_ENGINE_EXECUTOR_OPTIONS_H_

#include <functional>
#include <optional>
#include <string>

#include "common/engine/ranks/row_parallel.h"
#include "common/types/element_type.h"
#include "common/types/tensor_rank.h"

namespace baton {

// Which implementation multiplies by weights.
enum class LinearBackend { kNative, kTorch };

// Baton's own kernels, libtorch's operators, or no computation: waits as long as a profile says.
enum class Backend { kNative, kTorch, kTimed };

struct ExecutorOptions {
  Backend backend = Backend::kNative;
  std::string device = "cpu";  // With kTorch also "cuda" or "cuda:N".
  std::string model_path;      // A Hugging Face model directory.
  // The layers to load; layer_end -1 means all up to the last. The stage with layer 0 also loads
  // the embeddings, the one with the last layer the final norm and the head.
  int layer_begin = 0;
  int layer_end = -1;
  TensorRank tensor_rank;  // Which part of each layer to load.
  // With kNative and more than one rank: each rank takes and returns its slice of the activations
  // (activation_columns()) instead of all of them.
  bool slice_activations = false;
  RowParallelOptions row_parallel;                // With kNative and more than one rank.
  int page_size = 64;                             // Tokens; a multiple of 16.
  int page_count = 256;                           // All pages are allocated at start.
  int threads = 1;                                // Threads that compute, including the caller's.
  LinearBackend linear = LinearBackend::kNative;  // With kNative.
  // The type of the weights in memory. With kBFloat16 the residual stream is also rounded after
  // each layer (README.md says why). Unset: the checkpoint's type (StoredWeightType).
  std::optional<ElementType> dtype;
  std::optional<ElementType> kv_dtype;  // Type of keys and values in the pages; unset: dtype.
  std::string timed_profile;            // With kTimed: a file (timed/README.md).
  // With kNative, which kernels: "" (the best that this CPU runs), "scalar", "avx2" or "avx512".
  std::string kernels;
  // Called on the loading thread with the loaded fraction in [0, 1]; the last call has 1.
  std::function<void(double)> on_progress;
};

}  // namespace baton

#endif  // COMMON_ENGINE_EXECUTOR_OPTIONS_H_
