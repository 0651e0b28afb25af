// The executor computes a contiguous range of a model's layers on one device, and draws tokens. It
// is all that prefill stages and decode services know of the engine: kernels, libtorch, CUDA and
// the timed executor are behind it. README.md says how to add a backend.
//
// It is asynchronous: Submit returns at once, and `done` is called when the step has ended. The
// host gets tokens only. Activations and KV stay in the executor's kind of memory until a service
// sends them (common/device/memory.h, kv_memory.h). Logits never leave the executor.
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
#include "common/types/instance.h"
#include "common/types/sampled_token.h"

namespace baton {

class Communicator;

// Asks for the log-probabilities of a prompt's tokens.
struct PromptReport {
  // The token that follows each of the sequence's tokens. It has as many entries as the sequence,
  // or one less at the end of the prompt, where no token follows the last one.
  std::span<const int32_t> following;
  int top = 0;  // How many of the most probable tokens to report at each position.
};

// A run of tokens, and what the caller wants to know about it.
struct SequenceStep : TokenRun {
  std::optional<Draw> draw;  // Last stage only.
  // Gets the token that is drawn, if one is, before a step that was submitted later reads its
  // tokens: so that step may feed it. May be null.
  int32_t* drawn = nullptr;
  std::optional<PromptReport> report;  // Last stage only.
};

// One pass over the executor's layers. Sequences are packed along tokens: they are the rows of `in`
// and `out`.
struct Step {
  std::vector<SequenceStep> sequences;
  // [tokens, activation_columns()] of activation_type(). Empty on the first stage, which embeds
  // tokens.
  TensorView in;
  TensorView out;  // The same shape; empty on the last stage. May share the memory of `in`.
  // Keeps alive what the spans and views point to. Released after `done` has returned.
  std::shared_ptr<const void> keeps;
};

struct StepResult {
  // InvalidArgument if the step is not well-formed: wrong shapes, page ids out of range, token ids
  // outside the vocabulary, positions past the model's maximum, draws on a stage without logits.
  // Nothing was written then. Internal or ResourceExhausted if a library or device failed; the KV
  // of the step's tokens is then undefined. If the group of ranks has ended, the status that ended
  // it; RankOf (common/collective/communicator.h) gives the rank at fault. Cancelled if the
  // executor has stopped.
  absl::Status status;
  int64_t compute_us = 0;  // From the step's start on the device to its end.
  // One entry for each sequence with a draw, and one for each with a report, in order. An error
  // concerns that sequence alone. With several tensor-parallel ranks, only rank 0's executor fills
  // them.
  std::vector<absl::StatusOr<SampledToken>> drawn;
  std::vector<absl::StatusOr<std::vector<SampledToken>>> reported;
};

class Executor {
 public:
  Executor() = default;
  virtual ~Executor() = default;  // Stops first, as Stop does.
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // The configuration of the whole model, not of this executor's layers alone.
  virtual const ModelConfig& config() const = 0;
  virtual const KvGeometry& kv() const = 0;
  virtual KvMemory& kv_memory() = 0;

  // The type of the elements of `in` and `out`, also on the wire between stages.
  virtual ElementType activation_type() const = 0;
  // The number of columns of `in` and `out`: the hidden size, or one rank's slice of it
  // (StageModel::activation_columns).
  virtual int activation_columns() const { return config().hidden_size; }
  // Allocates memory for activations that Submit accepts and that a transport can read and write.
  // Any thread.
  virtual absl::StatusOr<MemoryBuffer> AllocateActivations(size_t bytes) = 0;

  // Runs the step after all steps that were submitted before. Any thread. `done` is called exactly
  // once, in the order of submissions and one after the other, on one of the executor's threads. If
  // the executor has stopped, `done` is called on the calling thread before Submit returns. `done`
  // must be short and may submit.
  virtual void Submit(Step step, std::function<void(StepResult)> done) = 0;

  // Which part of its layers this executor computes. With more than one rank, it runs steps only
  // after it has joined a group. All ranks must be given the same steps in the same order. Draws
  // are read on rank 0 alone.
  virtual TensorRank tensor_rank() const { return {}; }
  // Joins a group that has formed; it replaces a group that has ended. Takes effect after the steps
  // that were submitted before and ahead of those submitted later. All ranks must call it, since
  // joining may exchange data. `done` is called as a step's is, with InvalidArgument for a group of
  // other ranks, or with the status that has ended the group.
  virtual void JoinGroup(std::shared_ptr<Communicator> /*group*/,
                         const std::function<void(absl::Status)>& done) {
    done(absl::InvalidArgumentError("computes whole layers, with no other rank"));
  }

  // When the running step began, on NowUs()'s clock; 0 if none runs. Any thread.
  virtual int64_t running_since_us() const = 0;

  // Accepts no more steps, and returns when every submitted step has ended. Idempotent. Must not be
  // called on one of the executor's threads.
  virtual void Stop() = 0;

  bool first_stage() const { return kv().layer_begin == 0; }
  bool last_stage() const { return kv().layer_end == config().num_hidden_layers; }
};

// Counts one user's steps at an executor, so that the user can be destroyed before the executor.
class Submissions {
 public:
  explicit Submissions(Executor* executor) : executor_(executor) {}  // Not owned.
  ~Submissions() { Stop(); }
  Submissions(const Submissions&) = delete;
  Submissions& operator=(const Submissions&) = delete;

  // As Executor::Submit. After Stop, `done` gets CANCELLED before Submit returns.
  void Submit(Step step, std::function<void(StepResult)> done);

  // Accepts no more steps, and returns when all of this user's steps have ended. Not from within a
  // `done`.
  void Stop();

 private:
  Executor* const executor_;
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  int under_way_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton

#endif  // COMMON_ENGINE_EXECUTOR_H_
