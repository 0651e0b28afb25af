// The exchange between the ranks of a group: collectives between the tensor-parallel ranks of a
// stage, and sends between two of them. There is one communicator per process, group and epoch. A
// process that restarts joins the group of the next epoch, never the old one.
//
// Order. All ranks submit the same collectives in the same order. Two ranks that send and receive
// do so at the same place between the collectives that both take part in (NCCL's rule for one
// stream). Every message says which collective its sender takes it for, so ranks that disagree end
// with FAILED_PRECONDITION and a description of both sides instead of wrong sums or a hang.
// Collectives are done in the order of submission, and so are their completions.
//
// Completion. `done` runs exactly once: with OK when the tensors hold the result and may be used
// again, otherwise with the status that ended the group. After it no thread of the communicator
// accesses the tensors. It runs on the submitting thread before Submit returns, or on one of the
// communicator's threads. It must be short and may submit.
//
// End. A group ends as a whole when a rank dies, is silent for `operation_timeout_ms`, disagrees or
// aborts. All ranks end with the same message: the rank that detects the failure tells the others.
// RankOf gives the rank at fault. Only a new group follows.
//
// Memory. Views carry the kind of their memory. The implementations for CPUs accept host and pinned
// memory and refuse a GPU's. The one over NCCL accepts its own device's memory; its work is then
// ordered by the stream of Queue::kCommunication (common/device/queue.h).
#ifndef COMMON_COLLECTIVE_COMMUNICATOR_H_
#define COMMON_COLLECTIVE_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "common/device/memory.h"
#include "common/types/instance.h"

namespace baton {

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kAllGather,
  kBroadcast = 3,  // 2 was a reduce-scatter; the numbers are on the wire.
  kSend,
  kReceive,
};

// "all-reduce"
const char* CollectiveName(CollectiveKind kind);

// The members of a group. Equal on all ranks, except for `rank`.
struct GroupDescription {
  std::string name;  // As in statuses: "stage 1".
  uint64_t epoch = 0;
  int rank = 0;
  std::vector<std::string> members;  // The instances' names, by rank.

  int size() const { return static_cast<int>(members.size()); }
  // "rank 2 of stage 1 (prefill-1-2)"
  std::string Describe(int of_rank) const;
};

inline constexpr int kGroupSizeMax = kMaxTensorRanks;

// InvalidArgument for a group with no or too many members, or if `rank` is not in it.
absl::Status ValidateGroup(const GroupDescription& group);

struct CommunicatorOptions {
  // The longest time without progress of a rank's oldest collective. A long transfer over a slow
  // network may take longer in all. It has to cover how much later than this rank another one may
  // start the collective.
  int64_t operation_timeout_ms = 3000;
  // The most collectives that are submitted and not done; more are refused with RESOURCE_EXHAUSTED.
  size_t pending_max = 1024;
};

// One collective. The functions of Communicator say what the views are.
struct Collective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  TensorView input;
  TensorView output;
  int peer = 0;  // Broadcast: the root. Send, receive: the other rank.
};

class Communicator {
 public:
  using Done = std::function<void(absl::Status)>;

  virtual ~Communicator() = default;

  // Each rank's `tensor` becomes the sum of all ranks', ((x0 + x1) + x2) + ..., by rank: an
  // element's bits don't depend on its place in the tensor, on the tensor's length or on the rank
  // that computes it. In a ring the order depends on the place, and therefore on the batch.
  // bfloat16 is summed in float32 and rounded once, to nearest even.
  void AllReduce(const TensorView& tensor, Done done) {
    Submit({CollectiveKind::kAllReduce, tensor, tensor}, std::move(done));
  }
  // `full` becomes the concatenation of the ranks' shards; `shard` may be its own place in it.
  void AllGather(const TensorView& shard, const TensorView& full, Done done) {
    Submit({CollectiveKind::kAllGather, shard, full}, std::move(done));
  }
  // `tensor` becomes the root's.
  void Broadcast(const TensorView& tensor, int root, Done done) {
    Submit({CollectiveKind::kBroadcast, tensor, tensor, root}, std::move(done));
  }
  // Between two ranks; the others take no part. When a send is done, the data has not necessarily
  // arrived.
  void Send(const TensorView& tensor, int to_rank, Done done) {
    Submit({CollectiveKind::kSend, tensor, {}, to_rank}, std::move(done));
  }
  void Receive(const TensorView& tensor, int from_rank, Done done) {
    Submit({CollectiveKind::kReceive, {}, tensor, from_rank}, std::move(done));
  }

  // Submits a collective. Any thread, but the order of calls is the order of the group. If
  // ValidateCollective refuses it, it is done at once with that status. Nothing is sent then and
  // the group goes on, so a caller that can't give every rank the same collective has to abort.
  virtual void Submit(const Collective& collective, Done done) = 0;

  // Ends the group. On this rank, everything pending is done when Abort returns, or by the call
  // that is running now; the other ranks end when they are told. Any thread; the first reason
  // stands. If `why` names a rank (WithRank), it stays the rank at fault.
  virtual void Abort(absl::Status why) = 0;

  virtual const GroupDescription& group() const = 0;
};

// InvalidArgument, naming the views, for a collective that no group can carry out: no elements,
// sizes that don't fit, different element types, a peer that is not another rank, or memory that
// the host can't read. With `cuda_device`: memory that is not on that device.
absl::Status ValidateCollective(const GroupDescription& group, const Collective& collective,
                                std::optional<int> cuda_device = std::nullopt);

// Sets and gets the rank that is at fault for a status.
absl::Status WithRank(absl::Status status, int rank);
std::optional<int> RankOf(const absl::Status& status);

// Blocking waits for collectives, for callers with a thread to spare.

// Any number of collectives that are waited for together:
//   Pending chunks;
//   for (...) communicator.AllReduce(chunk, chunks.Add());
//   absl::Status status = chunks.Wait();
// One thread adds and waits. A Pending may be destroyed before the collectives are done; their
// tensors may not.
class Pending {
 public:
  // The completion of one collective; submit it once.
  Communicator::Done Add() {
    {
      MutexLock lock(&state_->mutex);
      ++state_->open;
    }
    return [state = state_](absl::Status status) {
      MutexLock lock(&state->mutex);
      --state->open;
      state->first_error.Update(std::move(status));
    };
  }

  // Returns when all added collectives are done: OK, or the first error. Bounded, since every
  // communicator bounds its collectives.
  absl::Status Wait() {
    State& state = *state_;
    MutexLock lock(&state.mutex);
    state.mutex.Await([&state]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) { return state.open == 0; });
    return std::exchange(state.first_error, absl::OkStatus());
  }

 private:
  struct State {
    Mutex mutex;
    int open ABSL_GUARDED_BY(mutex) = 0;
    absl::Status first_error ABSL_GUARDED_BY(mutex);
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace baton

#endif  // COMMON_COLLECTIVE_COMMUNICATOR_H_
