// A contiguous range of a model's layers over batches of token runs, with a paged KV cache of its
// own, computed by whoever calls: what is behind an executor on one queue (threaded_executor.h).
//
// Batch invariance: every output row is computed by the same sequence of floating-point operations
// whatever else is in the batch, however the prompt is cut into chunks or pages, and whatever the
// number of stages (kernels/kernels.h says how). Equal inputs give equal bits, so a request's text
// depends on nothing but the request. It holds per machine type and linear backend "native".
#ifndef COMMON_ENGINE_STAGE_MODEL_H_
#define COMMON_ENGINE_STAGE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/device/memory.h"
#include "common/engine/executor_options.h"
#include "common/engine/kv_memory.h"
#include "common/model/model_config.h"
#include "common/types/tensor_rank.h"

namespace baton {

class Communicator;

// A run and what is wanted of it. All spans must outlive the Forward call.
struct SequenceSlice : TokenRun {
  // Whether Forward computes the logits of the slice's last token (last stage only).
  bool wants_logits = false;
  // Called with the logits [rows, vocab] of all the slice's tokens, a few rows at a time and in
  // order, the first being of token `first` of the slice: so those of a long prompt take bounded
  // memory. On Forward's thread, which may call ParallelFor; last stage only; null if not wanted.
  // On ranks that get no logits it is not called, but has to be there where rank 0's is.
  std::function<void(int first, std::span<const float> logits)> on_logits;
};

// Slices are packed along tokens in this order: rows of `in` and `out`.
struct Batch {
  std::vector<SequenceSlice> slices;
  // When it was handed over. A device with a queue of its own begins it then, or when it is done
  // with the batch before; models that compute on the calling thread don't care.
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

// One thread calls a model; its pages may be exported and landed in by another one between and
// during calls as long as no page of a running Forward is.
class StageModel {
 public:
  StageModel() = default;
  virtual ~StageModel() = default;
  StageModel(const StageModel&) = delete;
  StageModel& operator=(const StageModel&) = delete;

  // The whole model's configuration, not only these layers.
  virtual const ModelConfig& config() const = 0;
  virtual const KvGeometry& kv() const = 0;

  // The pages; zero at start.
  virtual KvMemory& kv_memory() = 0;

  // What `in` and `out` of Forward consist of, and the memory that they must be in.
  virtual ElementType activation_type() const { return ElementType::kFloat32; }
  // Columns of them: the model's hidden size, or 1 / ranks of it where each rank has its slice,
  // which is that part of all elements in their order, row by row; the whole is the slices one
  // behind the other. So a rank sends its counterpart in the next stage 1 / ranks of the bytes,
  // and ranks that take slices gather them before they begin.
  virtual int activation_columns() const { return config().hidden_size; }
  virtual absl::StatusOr<MemoryBuffer> AllocateActivations(size_t bytes) {
    return AllocateHost(bytes);
  }

  // Threads that compute, the caller's of Forward included. ParallelFor spreads other work of a
  // step over them: it calls body(begin, end) on contiguous parts of [0, count), at most one per
  // thread, and waits for all. Called like Forward; `body` must not throw.
  virtual int threads() const { return 1; }
  virtual void ParallelFor(int count, const std::function<void(int begin, int end)>& body) {
    if (count > 0) body(0, count);
  }

  // Which part of its layers this model computes. With more ranks than one it has to have joined
  // their group, and all ranks run the same batches in the same order.
  virtual TensorRank tensor_rank() const { return {}; }
  // Joins a group that has formed, in place of one that has ended. Called like Forward, by all
  // ranks: they may exchange something. InvalidArgument where it is not a group of these ranks.
  virtual absl::Status JoinGroup(std::shared_ptr<Communicator> /*group*/) {
    return absl::InvalidArgumentError("computes whole layers, with no other rank");
  }
  // Ends the group because a step has failed here outside of Forward: the others wait for it.
  virtual void EndGroup(const absl::Status& /*why*/) {}
  // Whether logits come out here: on the last stage, of its rank 0.
  bool tells_logits() const { return last_stage() && tensor_rank().rank == 0; }

  bool first_stage() const { return kv().layer_begin == 0; }
  bool last_stage() const { return kv().layer_end == config().num_hidden_layers; }

  // Runs these layers over `batch`, writes its KV into the pages and fills
  //   out    [tokens, activation_columns()] for the next stage; none on the last stage,
  //   logits [batch.LogitsCount(), vocab] in slice order; empty where none come out
  //          (tells_logits). Slices say what they want on every rank alike.
  // `in` is the previous stage's `out`, none on the first stage. `in` and `out` may be the same
  // memory. Blocks until done.
  // InvalidArgument (nothing was written) when the batch is not well-formed: wrong shapes, page ids
  // out of range, token ids outside the vocabulary, positions past the model's maximum; Internal or
  // ResourceExhausted when a library failed, with the pages' new tokens undefined; and with them
  // what has ended the ranks' group (common/collective/communicator.h: RankOf says who is blamed).
  // A rank that fails ends it, so that the others' steps fail as well; but not by refusing a batch,
  // which all ranks do.
  virtual absl::Status Forward(const Batch& batch, const TensorView& in, const TensorView& out,
                               std::span<float> logits) = 0;
};

// The buffers that Forward was given.
struct ForwardBuffers {
  const TensorView& in;
  const TensorView& out;
  ElementType activation_type;  // That they must have,
  int activation_columns;       // and these.
  size_t logits;                // Floats.
  bool tells_logits = true;     // Whether the wanted ones come out here.
};

// InvalidArgument naming the slice and the value that is wrong; see StageModel::Forward.
absl::Status ValidateBatch(const Batch& batch, const ForwardBuffers& buffers,
                           const ModelConfig& config, const KvGeometry& kv);

}  // namespace baton

#endif  // COMMON_ENGINE_STAGE_MODEL_H_
