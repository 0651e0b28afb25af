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

// Which implementation multiplies by weights. kAuto takes kNative.
enum class LinearBackend { kAuto, kNative, kTorch };

// What computes: Baton's own kernels, libtorch's operators, or nobody, for as long as it would
// take.
enum class Backend { kNative, kTorch, kTimed };

struct ExecutorOptions {
  Backend backend = Backend::kNative;
  std::string device = "cpu";  // Of kTorch also "cuda" or "cuda:N".
  std::string model_path;      // A Hugging Face model directory.
  // Layers to load; layer_end -1 means all up to the last. Layer 0 brings the embeddings, the last
  // layer the final norm and the head.
  int layer_begin = 0;
  int layer_end = -1;
  TensorRank tensor_rank;  // Which part of each of these layers.
  // Of kNative, with more ranks than one: each takes and gives its own part of the activations, as
  // activation_columns() says, instead of all of them.
  bool slice_activations = false;
  RowParallelOptions row_parallel;              // Of kNative, with more ranks than one.
  int page_size = 64;                           // Tokens; a multiple of 16.
  int page_count = 256;                         // All pages are allocated at start.
  int threads = 1;                              // Threads that compute, the caller's included.
  LinearBackend linear = LinearBackend::kAuto;  // Of kNative.
  // How weights lie in memory and, with kBFloat16, that the residual stream is rounded behind each
  // layer (README.md says why). Nothing: as the checkpoint (StoredWeightType).
  std::optional<ElementType> dtype;
  std::optional<ElementType> kv_dtype;  // Of keys and values in the pages; nothing: as dtype.
  std::string timed_profile;            // Of kTimed: a file (timed/README.md).
  // Of kNative: which kernels. "" (the best that this CPU runs), "scalar", "avx2" or "avx512".
  std::string kernels;
  // Called on the loading thread with the loaded fraction in [0, 1], last with 1.
  std::function<void(double)> on_progress;
};

}  // namespace baton

#endif  // COMMON_ENGINE_EXECUTOR_OPTIONS_H_
