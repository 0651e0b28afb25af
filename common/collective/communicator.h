// What the ranks of a group exchange: collectives between the tensor-parallel ranks of a stage, and
// sends between two of them. One communicator a process, group and epoch: whoever starts again
// joins the next epoch's group, never the old one.
//
// Order. All ranks submit the same collectives in the same order, and two ranks that send and
// receive do so at the same place between the collectives that both take part in (NCCL's rule for
// one stream). Every message carries what its sender takes it for, so ranks that disagree end with
// FAILED_PRECONDITION and both sides' words instead of wrong sums or silence. What is submitted is
// done in order; so is the completion.
//
// Ends. `done` runs exactly once: with OK when the tensors may be used again and hold the result,
// otherwise with the status that ended the group; after it no thread of the communicator touches
// them. It runs on the submitting thread, before Submit returns, or on one of the communicator's;
// it must be short and may submit. A group ends as a whole, at the first rank that dies, falls
// silent for `operation_timeout_ms`, disagrees or aborts, and everywhere with the same words: the
// rank that finds it tells the others. RankOf says who is blamed. There is no way back but a new
// group.
//
// Memory. Views name their memory's kind. The implementations for CPUs take host and pinned memory
// and refuse a GPU's; one over NCCL takes its own device's, and what it is given is then ordered by
// the stream of Queue::kCommunication (common/device/queue.h).
#ifndef COMMON_COLLECTIVE_COMMUNICATOR_H_
#define COMMON_COLLECTIVE_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/device/memory.h"
#include "common/types/tensor_rank.h"

namespace baton {

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kSend,
  kReceive,
};

// "all-reduce"
const char* CollectiveName(CollectiveKind kind);

enum class ReduceOrder : uint8_t {
  // ((x0 + x1) + x2) + ..., by rank: no element's bits depend on its place in the tensor, on the
  // tensor's length or on who computes it. A ring's order changes with the place, and so with the
  // batch.
  kRankOrder,
  // Any order, whichever the implementation is fastest in; equal on all ranks.
  kFastest,
};

// Who is in a group; equal on all ranks but for `rank`.
struct GroupDescription {
  std::string name;  // As statuses write it: "stage 1".
  uint64_t epoch = 0;
  int rank = 0;
  std::vector<std::string> members;  // The instances' names, by rank.

  int size() const { return static_cast<int>(members.size()); }
  // "rank 2 of stage 1 (prefill-1-2)"
  std::string Describe(int of_rank) const;
};

inline constexpr int kGroupSizeMax = kMaxTensorRanks;

// InvalidArgument for a group of nobody or too many, or a rank that is not in it.
absl::Status ValidateGroup(const GroupDescription& group);

struct CommunicatorOptions {
  // While a collective is the first of its rank and nothing of it comes or goes: a long transfer on
  // a slow network takes longer in all. It has to cover how much later than this rank another may
  // come to it.
  int64_t operation_timeout_ms = 3000;
  // Submitted and not done; what is more is refused with RESOURCE_EXHAUSTED.
  size_t pending_max = 1024;
};

// One of them. The functions of Communicator say what the views are.
struct Collective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  ReduceOrder order = ReduceOrder::kRankOrder;
  TensorView input;
  TensorView output;
  int peer = 0;  // Broadcast: the root. Send, receive: the other rank.
};

class Communicator {
 public:
  using Done = std::function<void(absl::Status)>;

  virtual ~Communicator() = default;

  // Each rank's `tensor` becomes the sum of all. bfloat16 is summed in float32 and rounded once, to
  // nearest even.
  void AllReduce(const TensorView& tensor, ReduceOrder order, Done done) {
    Submit({CollectiveKind::kAllReduce, order, tensor, tensor}, std::move(done));
  }
  // `full` becomes the ranks' shards one after another; `shard` may be its own place in it.
  void AllGather(const TensorView& shard, const TensorView& full, Done done) {
    Submit({CollectiveKind::kAllGather, ReduceOrder::kRankOrder, shard, full}, std::move(done));
  }
  // `shard` becomes part `rank` of the sum of all ranks' `full`, which holds `size` equal parts;
  // `shard` may be its own place in it.
  void ReduceScatter(const TensorView& full, const TensorView& shard, ReduceOrder order,
                     Done done) {
    Submit({CollectiveKind::kReduceScatter, order, full, shard}, std::move(done));
  }
  // `tensor` becomes the root's.
  void Broadcast(const TensorView& tensor, int root, Done done) {
    Submit({CollectiveKind::kBroadcast, ReduceOrder::kRankOrder, tensor, tensor, root},
           std::move(done));
  }
  // To and from one other rank; nobody else takes part. Done with a send does not say that it has
  // arrived.
  void Send(const TensorView& tensor, int to_rank, Done done) {
    Submit({CollectiveKind::kSend, ReduceOrder::kRankOrder, tensor, {}, to_rank}, std::move(done));
  }
  void Receive(const TensorView& tensor, int from_rank, Done done) {
    Submit({CollectiveKind::kReceive, ReduceOrder::kRankOrder, {}, tensor, from_rank},
           std::move(done));
  }

  // Takes a collective; any thread, but the order of calls is the order of the group. What
  // ValidateCollective refuses is done at once with its status; it is sent to nobody and the group
  // goes on, so a caller that can't give every rank the same has to abort.
  virtual void Submit(const Collective& collective, Done done) = 0;

  // Ends the group, here at once (whatever is pending is done when Abort returns, or will be by the
  // call that runs now) and at the others when they hear of it. Any thread; the first reason
  // stands. A `why` of some rank's (WithRank) keeps its blame.
  virtual void Abort(absl::Status why) = 0;

  virtual const GroupDescription& group() const = 0;
};

// InvalidArgument, naming the views, for what no group could do: no elements, sizes that do not
// fit, element types that differ, a peer that is not another rank; memory the host can't read, or,
// for a group of GPUs, memory that is not this one's (`cuda_device`).
absl::Status ValidateCollective(const GroupDescription& group, const Collective& collective,
                                std::optional<int> cuda_device = std::nullopt);

// Marks the rank that a status blames.
absl::Status WithRank(absl::Status status, int rank);
std::optional<int> RankOf(const absl::Status& status);

}  // namespace baton

#endif  // COMMON_COLLECTIVE_COMMUNICATOR_H_
