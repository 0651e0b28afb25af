// A contiguous range of a model's layers that computes batches of token runs on the calling thread,
// with a paged KV cache of its own. ThreadedExecutor (executors/threaded_executor.h) makes an
// executor of it.
//
// Batch invariance: every output row is computed by the same sequence of floating-point operations,
// whatever else is in the batch, however the prompt is cut into chunks or pages, and whatever the
// number of stages (kernels/kernels.h says how). Equal inputs give equal bits, so a request's text
// depends on the request alone. This holds for one machine type and the linear backend "native".
#ifndef COMMON_ENGINE_STAGE_MODEL_H_
#define COMMON_ENGINE_STAGE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/device/memory.h"
#include "common/engine/kv_memory.h"
#include "common/engine/ranks/row_parallel.h"
#include "common/engine/sampling/sampling_params.h"
#include "common/model/model_config.h"
#include "common/types/instance.h"
#include "common/types/kv_layout.h"

namespace baton {

namespace kernels {
struct Bf16Products;
}  // namespace kernels

// What an executor is made from.

// Which implementation multiplies by weights.
enum class LinearBackend { kNative, kTorch };

// How the native backend multiplies by bfloat16 weights: one multiply-add of float32 after the
// other, with the same bits on every machine; or by what is fastest on this one.
enum class CpuNumerics { kExact, kAuto };

// Baton's own kernels, libtorch's operators, or no computation: waits as long as a profile says.
enum class Backend { kNative, kTorch, kTimed };

inline constexpr int kDefaultCudaGraphRows = 64;

struct ExecutorOptions {
  Backend backend = Backend::kNative;
  std::string device = "cpu";  // With kTorch also "cuda" or "cuda:N".
  // On such a device: whether memory where KV has landed goes back to the kernel once it is copied.
  // Not where a NIC may hold on to it (MayRegisterMemory, common/transport/data_plane.h).
  bool give_back_landings = false;
  std::string model_path;      // A Hugging Face model directory.
  int64_t context_tokens = 0;  // The longest text's: see LoadModelConfig.
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
  LinearBackend linear = LinearBackend::kNative;  // With kNative,
  CpuNumerics numerics = CpuNumerics::kExact;     // and kNative again.
  // The type of the weights in memory. With kBFloat16 the residual stream is also rounded after
  // each layer (README.md says why). Unset: the checkpoint's type (StoredWeightType).
  std::optional<ElementType> dtype;
  std::optional<ElementType> kv_dtype;  // Type of keys and values in the pages; unset: dtype.
  std::string timed_profile;            // With kTimed: a file (timed/README.md).
  // With kNative, which kernels: "" (the best that this CPU runs), "scalar", "avx2" or "avx512".
  std::string kernels;
  // With kTorch on a GPU: steps of up to so many single tokens are captured as graphs; 0: none.
  int cuda_graph_max_rows = kDefaultCudaGraphRows;
  // Called on the loading thread with the loaded fraction in [0, 1]; the last call has 1.
  std::function<void(double)> on_progress;
};

// kernels::FastestBf16Products() if weights of type `weights` are multiplied by it; nullptr:
// products are exact.
const kernels::Bf16Products* ProductsOf(const ExecutorOptions& options, ElementType weights);
// Its name, or "".
std::string_view NumericsOf(const ExecutorOptions& options, ElementType weights);

class Communicator;

// One that a device computes, and the next.
inline constexpr int kBegunBatches = 2;

// A run of tokens, and whose logits are wanted. All spans must outlive the Forward call.
struct SequenceSlice : TokenRun {
  // Whether Forward computes the logits of the slice's last token (last stage only).
  bool wants_logits = false;
  // Instead: Forward draws the token that follows, as Sampler would, and writes its id to `drawn`,
  // or -1 if a logit is not finite. Only what the model Draws().
  RowDraw draw;
  int32_t* drawn = nullptr;
  // Instead of the slice's one token, which may be any: the token that the batch begun before
  // draws, by its place among that batch's draws. Begin only.
  std::optional<int> follows;
  bool wants_row() const { return wants_logits || drawn != nullptr; }
  // Called with the logits [rows, vocab] of all the slice's tokens, a few rows at a time and in
  // order, so that a long prompt takes bounded memory. `first` is the index in the slice of the
  // first row's token. Called on Forward's thread; it may call ParallelFor. Last stage only; null
  // if not wanted. Ranks that compute no logits don't call it, but all ranks must agree on whether
  // it is set.
  std::function<void(int first, std::span<const float> logits)> on_logits;
};

// Slices are packed along tokens in this order: they are the rows of `in` and `out`.
struct Batch {
  std::vector<SequenceSlice> slices;
  // When the batch was submitted. A device with a queue of its own starts it then, or when the
  // batch before it is done. Models that compute on the calling thread ignore it.
  int64_t submitted_us = NowUs();

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

// A batch that a device computes while the host goes on.
class BegunBatch {
 public:
  BegunBatch() = default;
  virtual ~BegunBatch() = default;
  BegunBatch(const BegunBatch&) = delete;
  BegunBatch& operator=(const BegunBatch&) = delete;

  // Waits for the device, and writes what the batch's slices draw. Once, on any one thread. Errors
  // are Forward's.
  virtual absl::Status End() = 0;
};

// One thread calls a model. Another thread may export pages and land KV in them, between and during
// calls, unless the running Forward uses these pages.
class StageModel {
 public:
  StageModel() = default;
  virtual ~StageModel() = default;
  StageModel(const StageModel&) = delete;
  StageModel& operator=(const StageModel&) = delete;

  // The configuration of the whole model, not of these layers alone.
  virtual const ModelConfig& config() const = 0;
  virtual const KvGeometry& kv() const = 0;

  // The pages; they are zero at the start.
  virtual KvMemory& kv_memory() = 0;

  // The type of the elements of `in` and `out` of Forward, and the memory that they must be in.
  virtual ElementType activation_type() const { return ElementType::kFloat32; }
  // The number of columns of `in` and `out`: the model's hidden size, or 1 / ranks of it if each
  // rank sends and receives its slice only. A slice is a contiguous part of all elements, row by
  // row; concatenated by rank, the slices are the whole. Each rank then sends 1 / ranks of the
  // bytes to the same rank of the next stage. Ranks that receive slices gather them first.
  virtual int activation_columns() const { return config().hidden_size; }
  virtual absl::StatusOr<MemoryBuffer> AllocateActivations(size_t bytes) {
    return AllocateHost(bytes);
  }

  // The number of threads that compute, including the caller's of Forward. ParallelFor spreads
  // other work of a step over them: it calls body(begin, end) on contiguous parts of [0, count), at
  // most one per thread, and waits for all. It is called on the same thread as Forward; `body` must
  // not throw.
  virtual int threads() const { return 1; }
  virtual void ParallelFor(int count, const std::function<void(int begin, int end)>& body) {
    if (count > 0) body(0, count);
  }

  // Which part of its layers this model computes. With more than one rank, it must have joined a
  // group, and all ranks run the same batches in the same order.
  virtual TensorRank tensor_rank() const { return {}; }
  // Joins a group that has formed; it replaces a group that has ended. Called on the same thread as
  // Forward, by all ranks, since joining may exchange data. InvalidArgument for a group of other
  // ranks.
  virtual absl::Status JoinGroup(std::shared_ptr<Communicator> /*group*/) {
    return absl::InvalidArgumentError("computes whole layers, with no other rank");
  }
  // Ends the group because a step has failed on this rank outside Forward: the other ranks wait for
  // it.
  virtual void EndGroup(const absl::Status& /*why*/) {}
  // Whether Forward returns logits: only rank 0 of the last stage does.
  bool tells_logits() const { return last_stage() && tensor_rank().rank == 0; }

  // Whether a slice may ask for this draw. On a device the logits then stay there.
  virtual bool Draws(const RowDraw& /*draw*/) const { return false; }

  bool first_stage() const { return kv().layer_begin == 0; }
  bool last_stage() const { return kv().layer_end == config().num_hidden_layers; }

  // Runs these layers over `batch`, writes the KV into the pages, and fills
  //   out    [tokens, activation_columns()] for the next stage; empty on the last stage,
  //   logits [batch.LogitsCount(), vocab] in slice order; empty unless tells_logits(). All ranks
  //          must be given the same wants_logits and on_logits.
  // `in` is the previous stage's `out`; empty on the first stage. `in` and `out` may share memory.
  // Blocks until done.
  //
  // InvalidArgument if the batch is not well-formed: wrong shapes, page ids out of range, token ids
  // outside the vocabulary, positions past the model's maximum. Nothing was written then. Internal
  // or ResourceExhausted if a library failed; the KV of the batch's tokens is then undefined. If
  // the group of ranks has ended, the status that ended it; RankOf
  // (common/collective/communicator.h) gives the rank at fault. A rank whose step fails ends the
  // group, so that the other ranks' steps fail as well. A batch that is refused does not end the
  // group, since all ranks refuse it.
  virtual absl::Status Forward(const Batch& batch, const TensorView& in, const TensorView& out,
                               std::span<float> logits) = 0;

  // Whether Begin takes any batch.
  virtual bool begins() const { return false; }
  // Hands the batch to the device, behind all that were handed over before, and returns at once:
  // nullptr if the host takes part in it, so that it has to wait for them and call Forward. Errors
  // are Forward's. At most kBegunBatches have begun and not ended, and none when Forward is called.
  // What `drawn` points to stays until then.
  virtual absl::StatusOr<std::unique_ptr<BegunBatch>> Begin(const Batch& /*batch*/) {
    return nullptr;
  }

 protected:
  // What every stage model checks before it touches memory. InvalidArgument names the slice and the
  // wrong value; see Forward.
  absl::Status Validate(const Batch& batch, const TensorView& in, const TensorView& out,
                        size_t logits) const;
};

// Turns exceptions of libraries (c10::Error, std::bad_alloc) into statuses.

// Calls `body`, which returns a Status or StatusOr, and returns its result.
template <typename Body>
auto GuardLibraries(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the executor is out of memory");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace baton

#endif  // COMMON_ENGINE_STAGE_MODEL_H_
