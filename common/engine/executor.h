// The executor: computes a contiguous range of a model's layers, on whatever device, and draws
// tokens. It is the seam behind which kernels, libtorch, CUDA and a timed stand-in live; prefill
// stages and decode services know nothing else of the engine. README.md says how a new backend is
// added.
//
// It is asynchronous: a step is submitted and its end told later. What the host must see of it are
// the tokens; activations and KV stay in memory of the executor's kind until somebody passes them
// on (common/device/memory.h, kv_memory.h), and logits never leave it.
#ifndef COMMON_ENGINE_EXECUTOR_H_
#define COMMON_ENGINE_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "common/device/memory.h"
#include "common/engine/kv_memory.h"
#include "common/engine/sampling/sampling_params.h"
#include "common/model/model_config.h"
#include "common/types/sampled_token.h"
#include "common/types/tensor_rank.h"

namespace baton {

class Communicator;

// Wants the log-probabilities of a prompt's tokens.
struct PromptReport {
  // The tokens that follow each of the sequence's: as many as it has, or one less at the prompt's
  // end, where nothing follows the last.
  std::span<const int32_t> following;
  int top = 0;  // Most probable ones to tell beside each.
};

// A run and what is to be told of it.
struct SequenceStep : TokenRun {
  std::optional<Draw> draw;            // Last stage only.
  std::optional<PromptReport> report;  // Last stage only.
};

// One pass over the executor's layers. Sequences are packed along tokens: rows of `in` and `out`.
struct Step {
  std::vector<SequenceStep> sequences;
  // [tokens, activation_columns()] of activation_type(); none on the stage that embeds.
  TensorView in;
  TensorView out;  // Likewise; none on the last stage. May be the memory of `in`.
  // Keeps alive what the spans and views point to. Let go after `done` has returned.
  std::shared_ptr<const void> keeps;
};

struct StepResult {
  // InvalidArgument (nothing was written) when the step is not well-formed: wrong shapes, page ids
  // out of range, token ids outside the vocabulary, positions past the model's maximum, draws on a
  // stage that has no logits. Internal or ResourceExhausted when a library or device failed, with
  // the pages' new tokens undefined, and what has ended the ranks' group, which RankOf
  // (common/collective/communicator.h) says the culprit of. Cancelled when the executor has
  // stopped.
  absl::Status status;
  int64_t compute_us = 0;  // From its begin on the device to its end.
  // Of the sequences with a draw and those with a report, in order; an error concerns one alone. Of
  // tensor-parallel ranks rank 0's executor has them alone.
  std::vector<absl::StatusOr<SampledToken>> drawn;
  std::vector<absl::StatusOr<std::vector<SampledToken>>> reported;
};

class Executor {
 public:
  Executor() = default;
  virtual ~Executor() = default;  // As Stop.
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // The whole model's configuration, not only this executor's layers.
  virtual const ModelConfig& config() const = 0;
  virtual const KvGeometry& kv() const = 0;
  virtual KvMemory& kv_memory() = 0;

  // What `in` and `out` consist of, on the wire between stages too.
  virtual ElementType activation_type() const = 0;
  // Their columns: the hidden size, or a rank's slice of it (StageModel::activation_columns).
  virtual int activation_columns() const { return config().hidden_size; }
  // Memory for activations that Submit takes and that a transport reads and writes. Any thread.
  virtual absl::StatusOr<MemoryBuffer> AllocateActivations(size_t bytes) = 0;

  // Runs the step after all that were submitted before. Any thread. `done` is called exactly once,
  // in the order of submissions, on a thread of the executor's; or on the calling one, before
  // Submit returns, if the executor has stopped. It must be short, and may submit.
  virtual void Submit(Step step, std::function<void(StepResult)> done) = 0;

  // Which part of its layers this executor computes. With more ranks than one it takes steps once
  // it has joined their group, and all ranks are submitted the same steps in the same order; but
  // what draws is read on rank 0 alone.
  virtual TensorRank tensor_rank() const { return {}; }
  // Joins a group that has formed, in place of one that has ended, between the steps that were
  // submitted before and those after. All ranks must be told, since they may exchange something.
  // `done` is called as a step's is: with InvalidArgument for a group of other ranks, or what has
  // ended the group.
  virtual void JoinGroup(std::shared_ptr<Communicator> /*group*/,
                         const std::function<void(absl::Status)>& done) {
    done(absl::InvalidArgumentError("computes whole layers, with no other rank"));
  }

  // When the step that runs began, on NowUs()'s clock; 0: none runs. Any thread.
  virtual int64_t running_since_us() const = 0;

  // Takes nothing more, and returns when every step that was submitted has ended. Idempotent; not
  // on a thread of the executor's.
  virtual void Stop() = 0;

  bool first_stage() const { return kv().layer_begin == 0; }
  bool last_stage() const { return kv().layer_end == config().num_hidden_layers; }
};

class Submissions {
 public:
  explicit Submissions(Executor* executor) : executor_(executor) {}  // Not owned.
  ~Submissions() { Stop(); }
  Submissions(const Submissions&) = delete;
  Submissions& operator=(const Submissions&) = delete;

  // As Executor::Submit; after Stop, `done` is told CANCELLED within the call.
  void Submit(Step step, std::function<void(StepResult)> done);

  // Takes nothing more and returns when all have ended. Not from within a `done`.
  void Stop();

 private:
  Executor* const executor_;
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  int under_way_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton

#endif  // COMMON_ENGINE_EXECUTOR_H_
