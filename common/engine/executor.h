// The executor: runs a contiguous range of a model's layers over batches of token runs, with a
// paged KV cache of its own. It is the seam behind which libtorch, SIMD kernels, a timed stand-in
// and CUDA live; prefill stages and decode services know nothing else of the engine.
//
// Batch invariance: every output row is computed by the same sequence of floating-point operations
// whatever else is in the batch, however the prompt is cut into chunks or pages, and whatever the
// number of stages (kernels/kernels.h says how). Equal inputs give equal bits, so a request's text
// depends on nothing but the request. It holds per machine type and linear backend "native".
#ifndef COMMON_ENGINE_EXECUTOR_H_
#define COMMON_ENGINE_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/types/kv_layout.h"

namespace baton {

// How an executor's KV pool lies in memory: [page][layer][K/V][head][token][dim], so that the
// layers of one stage are one run of bytes within a page.
struct KvGeometry {
  int layer_begin = 0;  // Layers [layer_begin, layer_end) of the model are here.
  int layer_end = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int page_size = 0;  // Tokens per page.
  int page_count = 0;
  int bytes_per_element = 4;  // float32.

  int layers() const { return layer_end - layer_begin; }
  // Bytes of one head's keys (or values) of one page and layer: [token][dim].
  size_t HeadBytes() const {
    return static_cast<size_t>(page_size) * static_cast<size_t>(head_dim) *
           static_cast<size_t>(bytes_per_element);
  }
  // The pool's page as the hand-off describes it, with this executor's layers alone.
  KvLayout layout() const { return {layers(), kv_heads, head_dim, page_size, bytes_per_element}; }
  // Bytes of one layer of one page: [K/V][head][token][dim].
  size_t LayerBytes() const { return layout().BytesPerLayer(); }
  // Bytes of one page: [layer][K/V][head][token][dim].
  size_t PageBytes() const { return layout().BandBytes({layer_begin, layer_end}); }
  // Bytes that one token takes in all layers of this executor.
  size_t TokenBytes() const { return PageBytes() / static_cast<size_t>(page_size); }
};

// Consecutive tokens of one sequence. All spans must outlive the Forward call.
struct SequenceSlice {
  // [token_count] ids on the stage that embeds (layer_begin == 0); ignored on later stages.
  std::span<const int32_t> tokens;
  int token_count = 0;
  // Tokens of this sequence whose KV is in `pages` already; this slice's KV is written after them.
  int prefix_length = 0;
  // Page ids in sequence order: page i holds tokens [i * page_size, (i + 1) * page_size). At least
  // ceil((prefix_length + token_count) / page_size); more are allowed and not touched.
  std::span<const int32_t> pages;
  // Whether Forward computes the logits of the slice's last token (last stage only).
  bool wants_logits = false;
  // Called with the logits [rows, vocab] of all the slice's tokens, a few rows at a time and in
  // order, the first being of token `first` of the slice: so those of a long prompt take bounded
  // memory. On Forward's thread, which may call ParallelFor; last stage only; null if not wanted.
  std::function<void(int first, std::span<const float> logits)> on_logits;
};

// Slices are packed along tokens in this order: rows of `in` and `out`.
struct Batch {
  std::vector<SequenceSlice> slices;

  int TokenCount() const {
    int count = 0;
    for (const SequenceSlice& slice : slices) count += slice.token_count;
    return count;
  }
  int LogitsCount() const {
    int count = 0;
    for (const SequenceSlice& slice : slices) count += slice.wants_logits ? 1 : 0;
    return count;
  }
};

// One thread calls an executor; its pages may be read and written by others between and during
// calls as long as no page of a running Forward is.
class Executor {
 public:
  Executor() = default;
  virtual ~Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // The whole model's configuration, not only this executor's layers.
  virtual const ModelConfig& config() const = 0;
  virtual const KvGeometry& kv() const = 0;

  // The bytes of page `page` in [0, kv().page_count), kv().PageBytes() long; stable for the life of
  // the executor. Zero at start.
  virtual std::span<std::byte> KvPage(int page) = 0;

  // Threads that compute, the caller's of Forward included. ParallelFor spreads other work of a
  // step over them: it calls body(begin, end) on contiguous parts of [0, count), at most one per
  // thread, and waits for all. Called like Forward; `body` must not throw.
  virtual int threads() const { return 1; }
  virtual void ParallelFor(int count, const std::function<void(int begin, int end)>& body) {
    if (count > 0) body(0, count);
  }

  bool first_stage() const { return kv().layer_begin == 0; }
  bool last_stage() const { return kv().layer_end == config().num_hidden_layers; }

  // Runs this executor's layers over `batch`, writes its KV into the pages and fills
  //   out    [tokens, hidden] float32 activations for the next stage; empty on the last stage,
  //   logits [batch.LogitsCount(), vocab] in slice order; empty on other stages.
  // `in` is the previous stage's `out`, empty on the first stage. `in` and `out` may be the same
  // memory. Blocks until done.
  // InvalidArgument (nothing was written) when the batch is not well-formed: wrong sizes, page ids
  // out of range, token ids outside the vocabulary, positions past the model's maximum; Internal or
  // ResourceExhausted when a library failed, with the pages' new tokens undefined.
  virtual absl::Status Forward(const Batch& batch, std::span<const float> in, std::span<float> out,
                               std::span<float> logits) = 0;
};

// Which implementation multiplies by weights. kAuto takes kNative.
enum class LinearBackend { kAuto, kNative, kTorch };

struct ExecutorOptions {
  std::string model_path;  // A Hugging Face model directory.
  // Layers to load; layer_end -1 means all up to the last. Layer 0 brings the embeddings, the last
  // layer the final norm and the head.
  int layer_begin = 0;
  int layer_end = -1;
  int page_size = 64;    // Tokens; a multiple of 16.
  int page_count = 256;  // All pages are allocated at start.
  int threads = 1;       // Threads that compute, the caller's included.
  LinearBackend linear = LinearBackend::kAuto;
  // Which kernels: "" (the best that this CPU runs), "scalar", "avx2" or "avx512".
  std::string kernels;
  // Called on the loading thread with the loaded fraction in [0, 1], last with 1.
  std::function<void(double)> on_progress;
};

// Loads the weights of the layer range and allocates the pages. The one factory of executors.
absl::StatusOr<std::unique_ptr<Executor>> CreateExecutor(const ExecutorOptions& options);

}  // namespace baton

#endif  // COMMON_ENGINE_EXECUTOR_H_
